// Chat templates, known by their tokens.
#include "attn/generate_chat.h"

#include <array>

#include "attn/core.h"

namespace attn::generate {
namespace {

using std::string_view_literals::operator""sv;

struct Format {
  ChatFormat kind;
  std::string_view marker;  // what a template of this format has
  std::string_view begin;   // of a text, if the template names bos_token
  std::string_view before, after_role, end;
  std::string_view assistant;  // the role of answers
  bool trims;
};
constexpr Format kFormats[] = {
    {ChatFormat::chatml, "<|im_start|>", "", "<|im_start|>", "\n", "<|im_end|>\n", "assistant", false},
    {ChatFormat::llama3, "<|start_header_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
     "<|eot_id|>", "assistant", true},
    {ChatFormat::gemma, "<start_of_turn>", "<bos>", "<start_of_turn>", "\n", "<end_of_turn>\n", "model", true},
    {ChatFormat::zephyr, "<|user|>", "", "<|", "|>\n", "</s>\n", "assistant", false}};

const Format& format_of(ChatFormat kind) {
  for (const Format& format : kFormats)
    if (format.kind == kind) return format;
  return kFormats[0];
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) + 1 - first));
}

/// The literal between the beginning and the end of a system message in a template of ChatML: texts in quotes with \n
/// for a line break, or a line break itself. "" where the template computes it.
std::string system_literal(std::string_view jinja) {
  for (const std::string_view begin : {"<|im_start|>system\\n"sv, "<|im_start|>system\n"sv})
    for (size_t at = jinja.find(begin); at != std::string_view::npos; at = jinja.find(begin, at + 1)) {
      const std::string_view rest = jinja.substr(at + begin.size());
      const std::string_view literal = rest.substr(0, std::min(rest.find("<|im_end|>"), rest.size()));
      if (!literal.empty() && literal.size() < rest.size() &&
          literal.find_first_of("'\"{}\\") == std::string_view::npos)
        return std::string(literal);
    }
  return "";
}

/// An answer without what the model thought before it.
std::string_view without_thoughts(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = answer.rfind(kEnd);
  if (end == std::string_view::npos) return answer;
  answer.remove_prefix(end + kEnd.size());
  return answer.substr(std::min(answer.find_first_not_of('\n'), answer.size()));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja) {
  if (jinja.empty()) throw Error("chat", {"the model has no chat_template: it was not trained to converse"});
  const auto has = [&](std::string_view part) { return jinja.find(part) != std::string_view::npos; };
  const Format* found = nullptr;
  for (const Format& format : kFormats)
    if (!found && has(format.marker)) found = &format;
  if (!found)
    throw Error("chat", {"the model's chat_template is of a family that is not supported; supported are templates with "
                         "<|im_start|> (ChatML), <|start_header_id|> (LLaMA 3), <start_of_turn> (Gemma) and <|user|> "
                         "(Zephyr)"});
  kind_ = found->kind;
  begins_ = has("bos_token") && !found->begin.empty();
  drops_thoughts_ = has("</think>");
  names_date_ = has("Cutting Knowledge Date");
  if (kind_ == ChatFormat::chatml) default_system_ = system_literal(jinja);
  if (names_date_) default_system_ = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
}

std::string_view ChatTemplate::end_of_answer() const {
  const std::string_view end = format_of(kind_).end;
  return end.substr(0, end.find('\n'));
}

std::string ChatTemplate::format(std::span<const ChatMessage> messages) const {
  const Format& as = format_of(kind_);
  if (messages.empty()) throw Error("chat", {"there is no message"});
  std::string text = begins_ ? std::string(as.begin) : "";
  const auto add = [&](std::string_view role, std::string_view content) {
    text += std::string(as.before) + std::string(role) + std::string(as.after_role) +
            (as.trims && !(names_date_ && role == "system") ? trimmed(content) : std::string(content)) +
            std::string(as.end);
  };
  const bool has_system = messages[0].role == "system";
  if (!has_system && !default_system_.empty()) add("system", default_system_);
  for (size_t n = 0; n < messages.size(); ++n) {
    const ChatMessage& message = messages[n];
    const bool known = message.role == "user" || message.role == "assistant" || (message.role == "system" && n == 0);
    if (!known)
      throw Error("chat", {"message " + std::to_string(n) + " is of the role '" + message.role +
                           "', must be user or assistant, or the first of them system"});
    if (message.role == "system" && kind_ == ChatFormat::gemma)
      throw Error("chat", {"a system message is given, which the model's chat_template does not have"});
    if (message.role == "system" && names_date_) add("system", default_system_ + trimmed(message.content));
    else if (message.role == "assistant")
      add(as.assistant, drops_thoughts_ ? without_thoughts(message.content) : std::string_view(message.content));
    else add(message.role, message.content);
  }
  return text + std::string(as.before) + std::string(as.assistant) + std::string(as.after_role);
}

// ------------------------------------------------------------------------------------------------------ conversations

Conversation::Conversation(const TextGenerator& generator, ChatTemplate format, std::string system)
    : generator_(generator), format_(std::move(format)) {
  if (system.empty()) return;
  messages_.push_back({"system", std::move(system)});
  format_.format(messages_);  // throws where there is no such message
}

std::vector<int64_t> Conversation::tokens() const {
  return generator_.tokenizer().encode(format_.format(messages_), {.add_special_tokens = false}).ids;
}

Conversation::Answer Conversation::say(std::string_view message, const TextOptions& given,
                                       const TextGenerator::OnText& on_text) {
  const std::vector<ChatMessage> before = messages_;
  TextOptions options = given;
  options.return_full_text = false;
  options.stop_strings.emplace_back(format_.end_of_answer());
  options.text_cache = &cache_;
  const int64_t context = generator_.context(options);
  Answer answer;
  try {
    messages_.push_back({"user", std::string(message)});
    std::vector<int64_t> ids = tokens();
    while (std::ssize(ids) + generator_.options(options).max_new_tokens > context &&
           std::ssize(messages_) > first() + 1) {
      messages_.erase(messages_.begin() + first(), messages_.begin() + first() + 2);
      answer.forgotten += 2;
      ids = tokens();
    }
    if (std::ssize(ids) >= context)
      throw Error("chat", {"the message makes a text of " + std::to_string(ids.size()) +
                           " tokens, the model's context is " + std::to_string(context)});
    GeneratedText written = generator_.write(ids, options, on_text);
    answer.prompt_tokens = std::ssize(ids);
    answer.text = std::move(written.text);
    answer.generated = std::move(written.generated);
  } catch (...) {
    messages_ = before;
    throw;
  }
  messages_.push_back({"assistant", answer.text});
  return answer;
}

std::string Conversation::take_back() {
  if (std::ssize(messages_) < first() + 2) return "";
  std::string message = std::move(messages_[messages_.size() - 2].content);
  messages_.resize(messages_.size() - 2);
  return message;
}

void Conversation::clear() { messages_.resize(static_cast<size_t>(first())); }

}  // namespace attn::generate
