// generate: conversations. A chat template turns messages into the text that a model was trained to answer.
//
// ```cpp
// #include "attn/generate_chat.h"
// using namespace attn;
// int main() {
//   const generate::ChatTemplate chat("{{'<|im_start|>' + message['role'] + '\n' + message['content']}}<|im_end|>");
//   const generate::ChatMessage messages[] = {{"user", "Hi"}};
//   return chat.format(messages) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" ? 0 : 1;
// }
// ```
//
// Templates are Jinja programs of the model's folder. They are not run: a template is recognised by its tokens, and
// formats as the templates of that family do. docs/chat.md lists the families.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/generate_text.h"

#pragma GCC visibility push(default)
namespace attn::generate {

struct ChatMessage {
  std::string role = {};  ///< "system", "user" or "assistant"
  std::string content = {};
};

/// The formats that are supported.
enum class ChatFormat {
  chatml,  ///< <|im_start|>: Qwen, SmolLM and many others
  llama3,  ///< <|start_header_id|>: LLaMA 3
  gemma,   ///< <start_of_turn>: Gemma
  zephyr   ///< <|user|>: Zephyr, TinyLlama
};

class ChatTemplate {
 public:
  /// `jinja` is models::Loaded::chat_template. Throws Error for an empty template and for one of another family.
  explicit ChatTemplate(std::string_view jinja);

  ChatFormat kind() const { return kind_; }
  /// The system message that the template adds to a conversation without one; "" if it adds none.
  const std::string& default_system() const { return default_system_; }
  /// The text with special tokens, at whose end the assistant's answer begins. Throws Error for a role that the format
  /// does not have, for a system message that is not the first, and for a conversation that is empty.
  std::string format(std::span<const ChatMessage> messages) const;
  /// The text at which an answer ends; models also end with an eos token.
  std::string_view end_of_answer() const;

 private:
  ChatFormat kind_ = ChatFormat::chatml;
  bool begins_ = false;          // with the token that begins a text
  bool drops_thoughts_ = false;  // of earlier answers, between <think> and </think>
  bool names_date_ = false;      // in a system message, as LLaMA 3.1 and later
  std::string default_system_;
};

/// Messages, and the model's answers to them.
class Conversation {
 public:
  /// Borrows the generator. An empty `system` leaves the template's own system message, if it has one. Throws Error for
  /// a system message where the template has none.
  Conversation(const TextGenerator& generator, ChatTemplate format, std::string system = "");

  struct Answer {
    std::string text = {};
    Generated generated = {};
    int64_t prompt_tokens = 0;  ///< of the whole conversation
    int64_t forgotten = 0;      ///< messages at its beginning, after the system message, that no longer fit
  };
  /// Adds the message, then the answer, which it streams. If on_text ends the answer, its part is kept. Messages leave
  /// the conversation, the oldest first and in pairs, while it and max_new_tokens exceed the model's context. Throws
  /// Error, and leaves the conversation as it was, for a message that does not fit alone and as write() does.
  Answer say(std::string_view message, const TextOptions& options = {}, const TextGenerator::OnText& on_text = {});
  /// Removes the last message and its answer, and returns the message; "" where there is none.
  std::string take_back();
  /// Removes all messages but that of the system.
  void clear();
  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  std::vector<int64_t> tokens() const;
  int64_t first() const { return !messages_.empty() && messages_[0].role == "system"; }
  const TextGenerator& generator_;
  ChatTemplate format_;
  std::vector<ChatMessage> messages_;
  TextCache cache_;
};

}  // namespace attn::generate
#pragma GCC visibility pop
