// The requests and answers of the interface that OpenAI's clients speak, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/generate_chat.h"
#include "request_fields.h"

namespace cli {

/// An answer that is an error: its HTTP status and what it says.
struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& reason, std::string field_name = {})
      : std::runtime_error(reason), status(http_status), field(std::move(field_name)) {}
  int status;
  std::string field;  ///< of the request; may be empty
};
/// {"error": {"message": .., "type": .., "param": .., "code": ..}}
std::string error_body(const ApiError& error);

/// What a request for texts says.
struct TextRequest {
  bool is_chat = false;
  std::vector<attn::generate::ChatMessage> messages = {};
  std::vector<std::string> prompts = {};                 ///< texts, or
  std::vector<std::vector<int64_t>> prompt_tokens = {};  ///< token ids
  attn::generate::TextOptions options = {};              ///< max_new_tokens as in the request
  int64_t n = 1;                                         ///< texts for each prompt
  bool stream = false, include_usage = false;
};
/// Throws FieldError for JSON that is not a request, and for what is not supported.
TextRequest read_text_request(const std::string& body, bool is_chat);

struct EmbeddingRequest {
  std::vector<std::string> texts = {};
  bool base64 = false;
};
EmbeddingRequest read_embedding_request(const std::string& body);
/// [texts, width] of float32.
std::string embedding_body(const attn::Array& rows, bool base64, const std::string& model, int64_t tokens);

/// A new token with its log probability, and the most probable ones.
struct TokenText {
  std::string text = {};   ///< of a part of a character: its label
  int64_t characters = 0;  ///< a part of a character counts as one
  double logprob = 0;
  std::vector<std::pair<std::string, double>> top = {};
};
/// tokens[1 ..], which follow tokens[0], as texts.
std::vector<TokenText> token_texts(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& tokens,
                                   const std::vector<attn::generate::TokenLogprobs>& logprobs);

/// One text of an answer, or a part of it.
struct Choice {
  std::string text = {}, finish_reason = {};  ///< "" while the text goes on
  std::vector<TokenText> tokens = {};         ///< of a text that has ended, if the request wants them
};
struct Usage {
  int64_t prompt_tokens = 0, reused_tokens = 0, new_tokens = 0;
};

/// The answers to one request for texts.
class TextAnswer {
 public:
  TextAnswer(bool is_chat, std::string model, int64_t number);
  std::string whole(const std::vector<Choice>& choices, const Usage& usage) const;
  /// "data: {..}" of server-sent events. The first piece of a conversation has the role.
  std::string piece(const Choice& choice, bool is_first) const;
  std::string usage_piece(const Usage& usage) const;

 private:
  nlohmann::ordered_json frame(bool is_piece) const;
  bool is_chat_;
  std::string model_, id_;
  int64_t created_;
};

/// A model, and the list of the one that there is.
std::string model_body(const std::string& name);
std::string models_body(const std::string& name);

}  // namespace cli
