#include "serve_api.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>

#include "attn/core_base64.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A text, or the text parts of a list.
std::string content_of(const Json& message, const std::string& where) {
  const auto found = message.find("content");
  if (found != message.end() && found->is_string()) return found->get<std::string>();
  if (found == message.end() || !found->is_array()) throw FieldError(where + ".content must be a text", "messages");
  std::string text;
  for (const Json& part : *found) {
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") || !part["text"].is_string())
      throw FieldError(where + ".content has a part that is not text; images and sound are not supported", "messages");
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<attn::generate::ChatMessage> read_messages(const Json& list) {
  if (!list.is_array() || list.empty()) throw FieldError("messages must be a list of at least one message", "messages");
  std::vector<attn::generate::ChatMessage> messages;
  for (const Json& each : list) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    if (!each.is_object() || !each.contains("role") || !each["role"].is_string())
      throw FieldError(where + " must have a role and a content", "messages");
    std::string role = each["role"].get<std::string>();
    if (role == "developer") role = "system";
    messages.push_back({role, content_of(each, where)});
  }
  return messages;
}

std::vector<int64_t> ids_of(const Json& list) {
  std::vector<int64_t> ids;
  for (const Json& each : list) {
    if (!each.is_number_integer())
      throw FieldError("a prompt of tokens has something else than whole numbers", "prompt");
    ids.push_back(each.get<int64_t>());
  }
  return ids;
}

constexpr size_t kPrompts = 256;
constexpr double kTopLogprobs = 20;
constexpr const char* kNoCharacter = "\xef\xbf\xbd";  // U+FFFD, which replaces bytes that are no character

void read_prompts(const Json& prompt, TextRequest& request) {
  if (prompt.is_string()) request.prompts = {prompt.get<std::string>()};
  else if (all_of(prompt, &Json::is_string)) request.prompts = prompt.get<std::vector<std::string>>();
  else if (all_of(prompt, &Json::is_number_integer)) request.prompt_tokens = {ids_of(prompt)};
  else if (all_of(prompt, &Json::is_array))
    for (const Json& each : prompt) request.prompt_tokens.push_back(ids_of(each));
  else throw FieldError("prompt must be a text, a list of texts, or token ids", "prompt");
  if (std::max(request.prompts.size(), request.prompt_tokens.size()) > kPrompts)
    throw FieldError(fmt::format("prompt has more than {} entries", kPrompts), "prompt");
}

/// What both interfaces for texts have.
void read_options(Fields& fields, attn::generate::TextOptions& options) {
  static std::atomic<uint64_t> fresh = std::random_device()();  // texts without a seed differ
  options.seed = ++fresh;
  read_sampling(fields, options);
  fields.number("max_tokens", options.max_new_tokens, 1, 1e9);
  fields.refuse("frequency_penalty", {0});
  fields.refuse("presence_penalty", {0});
  fields.refuse("logit_bias", {Json::object()});
  fields.ignore({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
}

std::string text_of(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string error_body(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  return text_of({{"error",
                   {{"message", error.what()},
                    {"type", type},
                    {"param", error.field.empty() ? Json() : Json(error.field)},
                    {"code", nullptr}}}}) +
         "\n";
}

TextRequest read_text_request(const std::string& body, bool is_chat) {
  Fields fields(body, "the body");
  TextRequest request{.is_chat = is_chat};
  if (is_chat) {
    request.messages = read_messages(fields.required("messages"));
    fields.refuse("tools", {Json::array()});
    fields.refuse("tool_choice", {"none", "auto"});
    fields.refuse("parallel_tool_calls", {true, false});
    fields.refuse("functions", {Json::array()});
    fields.refuse("response_format", {{{"type", "text"}}});
    fields.refuse("modalities", {{"text"}});
    const bool wanted = fields.flag("logprobs");
    fields.number("top_logprobs", request.options.top_logprobs, 0, kTopLogprobs);
    if (!wanted && request.options.top_logprobs.value_or(0) > 0)
      throw FieldError("top_logprobs needs logprobs", "top_logprobs");
    if (!wanted) request.options.top_logprobs.reset();
    else if (!request.options.top_logprobs) request.options.top_logprobs = 0;
    fields.number("max_completion_tokens", request.options.max_new_tokens, 1, 1e9);
  } else {
    read_prompts(fields.required("prompt"), request);
    fields.refuse("echo", {false});
    fields.refuse("suffix", {""});
    fields.number("logprobs", request.options.top_logprobs, 0, kTopLogprobs);
    fields.refuse("best_of", {1});
    request.options.max_new_tokens = 16;  // as this interface says
  }
  read_options(fields, request.options);
  std::optional<int64_t> n;
  fields.number("n", n, 1, 64);
  request.n = n.value_or(1);
  request.stream = fields.flag("stream");
  if (const Json* options = fields.take("stream_options"))
    request.include_usage = options->is_object() && options->value("include_usage", Json(false)) == Json(true);
  const size_t texts = std::max({request.prompts.size(), request.prompt_tokens.size(), size_t{1}});
  if (request.stream && (request.n > 1 || texts > 1))
    throw FieldError("stream supports one text at a time", request.n > 1 ? "n" : "prompt");
  fields.done();
  return request;
}

EmbeddingRequest read_embedding_request(const std::string& body) {
  Fields fields(body, "the body");
  EmbeddingRequest request;
  const Json& input = fields.required("input");
  if (input.is_string()) request.texts = {input.get<std::string>()};
  else if (all_of(input, &Json::is_string)) request.texts = input.get<std::vector<std::string>>();
  else throw FieldError("input must be a text or a list of texts", "input");
  if (request.texts.size() > 2048) throw FieldError("input has more than 2048 texts", "input");
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64")
    throw FieldError(fmt::format("encoding_format is {}, must be float or base64", Fields::shown(format)),
                     "encoding_format");
  request.base64 = format == "base64";
  if (fields.take("dimensions")) throw FieldError("dimensions is not supported", "dimensions");
  fields.ignore({"model", "user"});
  fields.done();
  return request;
}

std::string embedding_body(const attn::Array& rows, bool base64, const std::string& model, int64_t tokens) {
  Json data = Json::array();
  const int64_t width = rows.shape()[1];
  for (int64_t n = 0; n < rows.shape()[0]; ++n) {
    const float* row = static_cast<const float*>(rows.data()) + n * width;
    Json vector = base64 ? Json(attn::base64(row, static_cast<size_t>(width) * sizeof(float)))
                         : Json(std::vector<float>(row, row + width));
    data.push_back({{"object", "embedding"}, {"index", n}, {"embedding", std::move(vector)}});
  }
  return text_of({{"object", "list"},
                  {"data", std::move(data)},
                  {"model", model},
                  {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

// ------------------------------------------------------------------------------------------------------------- answers

namespace {

int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

}  // namespace

std::vector<TokenText> token_texts(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& tokens,
                                   const std::vector<attn::generate::TokenLogprobs>& logprobs) {
  const auto text_after = [&](int64_t before, int64_t id) {  // with the space that SentencePiece has between two tokens
    const std::string begun = tokenizer.decode(std::vector{before}), both = tokenizer.decode(std::vector{before, id});
    return both.starts_with(begun) ? both.substr(begun.size()) : tokenizer.decode(std::vector{id});
  };
  const auto shown = [&](const std::string& text, int64_t id) {
    return text.find(kNoCharacter) == std::string::npos ? text : tokenizer.label(id);
  };
  std::vector<TokenText> all;
  for (size_t n = 0; n < logprobs.size(); ++n) {
    const std::string text = text_after(tokens[n], tokens[n + 1]);
    all.push_back({shown(text, tokens[n + 1]), characters_of(text), logprobs[n].logprob, {}});
    for (const auto& [id, logprob] : logprobs[n].top)
      all.back().top.emplace_back(shown(text_after(tokens[n], id), id), logprob);
  }
  return all;
}

TextAnswer::TextAnswer(bool is_chat, std::string model, int64_t number)
    : is_chat_(is_chat),
      model_(std::move(model)),
      id_(fmt::format("{}-{:x}-{}", is_chat ? "chatcmpl" : "cmpl", seconds_now(), number)),
      created_(seconds_now()) {}

Json TextAnswer::frame(bool is_piece) const {
  const char* object = !is_chat_ ? "text_completion" : is_piece ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

namespace {

Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.new_tokens},
          {"total_tokens", usage.prompt_tokens + usage.new_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.reused_tokens}}}};
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

/// As conversations have them.
Json chat_logprobs(const std::vector<TokenText>& tokens) {
  const auto entry = [](const std::string& text, double logprob) {
    return Json{{"token", text}, {"logprob", logprob}, {"bytes", bytes_of(text)}};
  };
  Json content = Json::array();
  for (const TokenText& token : tokens) {
    Json one = entry(token.text, token.logprob), top = Json::array();
    for (const auto& [text, logprob] : token.top) top.push_back(entry(text, logprob));
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

/// As other texts have them: offsets are in characters.
Json text_logprobs(const std::vector<TokenText>& tokens) {
  Json texts = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  int64_t offset = 0;
  for (const TokenText& token : tokens) {
    Json top = Json::object();
    for (const auto& [text, logprob] : token.top)
      if (!top.contains(text)) top[text] = logprob;
    texts.push_back(token.text), logprobs.push_back(token.logprob), tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += token.characters;
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json logprobs_of(const Choice& choice, bool is_chat) {
  if (choice.tokens.empty()) return nullptr;
  return is_chat ? chat_logprobs(choice.tokens) : text_logprobs(choice.tokens);
}

Json reason_of(const Choice& choice) { return choice.finish_reason.empty() ? Json() : Json(choice.finish_reason); }

}  // namespace

std::string TextAnswer::whole(const std::vector<Choice>& choices, const Usage& usage) const {
  Json body = frame(false), list = Json::array();
  for (const Choice& choice : choices) {
    Json one = {{"index", list.size()}};
    if (is_chat_) one["message"] = {{"role", "assistant"}, {"content", choice.text}};
    else one["text"] = choice.text;
    one["logprobs"] = logprobs_of(choice, is_chat_);
    one["finish_reason"] = reason_of(choice);
    list.push_back(std::move(one));
  }
  body["choices"] = std::move(list);
  body["usage"] = usage_of(usage);
  return text_of(body);
}

std::string TextAnswer::piece(const Choice& choice, bool is_first) const {
  Json body = frame(true), one = {{"index", 0}};
  if (is_chat_) {
    Json delta = Json::object();
    if (is_first) delta["role"] = "assistant";
    if (is_first || !choice.text.empty()) delta["content"] = choice.text;
    one["delta"] = std::move(delta);
  } else {
    one["text"] = choice.text;
  }
  one["logprobs"] = logprobs_of(choice, is_chat_);
  one["finish_reason"] = reason_of(choice);
  body["choices"] = Json::array({std::move(one)});
  return "data: " + text_of(body) + "\n\n";
}

std::string TextAnswer::usage_piece(const Usage& usage) const {
  Json body = frame(true);
  body["choices"] = Json::array();
  body["usage"] = usage_of(usage);
  return "data: " + text_of(body) + "\n\n";
}

namespace {

Json model_of(const std::string& name) {
  return {{"id", name}, {"object", "model"}, {"created", 0}, {"owned_by", "attention.cpp"}};
}

}  // namespace

std::string model_body(const std::string& name) { return text_of(model_of(name)); }

std::string models_body(const std::string& name) {
  return text_of({{"object", "list"}, {"data", Json::array({model_of(name)})}});
}

}  // namespace cli
