// Translates Oniguruma's patterns to PCRE2's syntax. The classes \s and \w are written out, because the two libraries
// differ in their members. ^ and $ match at lines, as in Oniguruma. Operations on sets, and escapes whose meaning
// differs, are errors.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <utility>
#include <vector>

#include "attn/core.h"

namespace attn::text {
namespace {

constexpr const char* kSpaces = "\\t-\\r\\x{85}\\p{Z}";
constexpr const char* kWords = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr uint32_t kMaxSteps = 10'000'000;     // per match
constexpr uint32_t kMaxHeap = 64 << 10;        // KiB
constexpr size_t kMaxPattern = 1 << 16;        // bytes
constexpr size_t kMaxStack = size_t{8} << 20;  // bytes, for compiled patterns that need more than the default of 32 KiB

class PatternTranslation {
 public:
  PatternTranslation(const std::string& pattern, const JsonFields& place) : pattern_(pattern), place_(place) {}

  std::string done() {
    while (at_ < pattern_.size()) {
      if (in_class_) step_in_class();
      else step();
    }
    return result_;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    place_.refuse("the pattern " + io::in_quotes(pattern_) + " has " + reason + " at byte " + std::to_string(at_) +
                  ", which is not supported");
  }
  bool begins(const char* text) const { return pattern_.compare(at_, std::string_view(text).size(), text) == 0; }
  void take(size_t count) {
    result_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void step() {
    if (pattern_[at_] == '\\') return escape();
    if (begins("(?m") || begins("(?im") || begins("(?mi")) refuse("the option m");
    if (pattern_[at_] == '[') {
      in_class_ = true;
      take(pattern_.compare(at_, 2, "[^") == 0 ? 2 : 1);
      if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("an empty class");
      return;
    }
    take(1);
  }

  void step_in_class() {
    if (pattern_[at_] == '\\') return escape();
    if (begins("&&")) refuse("an intersection of sets");
    if (begins("[:")) return named_class();
    if (begins("[^")) refuse("a negated set inside a set");
    if (pattern_[at_] == '[') {  // its members are members of the set around it
      ++nested_;
      ++at_;
    } else if (pattern_[at_] == ']' && nested_ > 0) {
      --nested_;
      ++at_;
    } else {
      in_class_ = pattern_[at_] != ']';
      take(1);
    }
  }

  void named_class() {
    static const std::pair<const char*, const char*> kNames[] = {{"[:alpha:]", "\\p{Alphabetic}"},
                                                                 {"[:digit:]", "\\p{Nd}"},
                                                                 {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                                                                 {"[:upper:]", "\\p{Uppercase}"},
                                                                 {"[:lower:]", "\\p{Lowercase}"},
                                                                 {"[:punct:]", "\\p{P}\\p{S}"},
                                                                 {"[:space:]", kSpaces},
                                                                 {"[:word:]", kWords}};
    for (const auto& [name, meaning] : kNames) {
      if (!begins(name)) continue;
      result_ += meaning;
      at_ += std::string_view(name).size();
      return;
    }
    refuse("an unknown class");
  }

  void escape() {
    const char letter = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    const auto put = [&](const std::string& text) {
      result_ += text;
      at_ += 2;
    };
    switch (letter) {
      case 's': return put(in_class_ ? kSpaces : "[" + std::string(kSpaces) + "]");
      case 'w': return put(in_class_ ? kWords : "[" + std::string(kWords) + "]");
      case 'S': return put(in_class_ ? "\\S\\x{180E}" : "[^" + std::string(kSpaces) + "]");
      case 'W':
        if (in_class_) refuse("\\W in a class");
        return put("[^" + std::string(kWords) + "]");
      case 'h':
      case 'H':
      case 'X':
      case 'R':
      case 'K':
      case 'C':
      case 'Q':
      case 'E':
      case 'g':
      case 'y':
      case 'Y': refuse(std::string("\\") + letter);
      default: return take(2);
    }
  }

  const std::string& pattern_;
  const JsonFields& place_;
  std::string result_;
  size_t at_ = 0;
  bool in_class_ = false;
  int nested_ = 0;  // sets inside the class
};

struct Pcre2Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
template <class T>
using Owned = std::unique_ptr<T, Pcre2Free>;

}  // namespace

struct Regex::Compiled {
  Owned<pcre2_code> code;
};

namespace {

/// The reason why the pattern does not compile; "" if it does.
std::string compile(const std::string& pattern, Regex::Compiled& compiled) {
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  compiled.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &code,
                                    &offset, context.get()));
  if (compiled.code) {
    pcre2_jit_compile(compiled.code.get(), PCRE2_JIT_COMPLETE);  // if this fails, the interpreter matches
    return "";
  }
  PCRE2_UCHAR reason[256];
  pcre2_get_error_message(code, reason, sizeof reason);
  return reinterpret_cast<const char*>(reason);
}

}  // namespace

Regex::Regex(const std::string& pattern, const JsonFields& place) : pattern_(pattern), source_(place.source()) {
  if (pattern.size() > kMaxPattern)
    place.refuse("the pattern has " + std::to_string(pattern.size()) + " bytes, must have at most " +
                 std::to_string(kMaxPattern));
  auto compiled = std::make_shared<Compiled>();
  const std::string reason = compile(PatternTranslation(pattern, place).done(), *compiled);
  if (!reason.empty()) place.refuse("the pattern " + io::in_quotes(pattern) + " does not compile: " + reason);
  compiled_ = std::move(compiled);
}

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  auto compiled = std::make_shared<Compiled>();
  if (const std::string reason = compile(pattern, *compiled); !reason.empty()) throw Error("Regex", {reason});
  compiled_ = std::move(compiled);
}

// ------------------------------------------------------------------------------------------------------------- matches

struct Matches::MatchState {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack;
};

Matches::Matches(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), state_(std::make_unique<MatchState>()) {
  pcre2_set_match_limit(state_->context.get(), kMaxSteps);
  pcre2_set_heap_limit(state_->context.get(), kMaxHeap);
}

Matches::~Matches() = default;

int Matches::match() {
  return pcre2_match(regex_.compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from_,
                     PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
}

bool Matches::next() {
  while (from_ <= text_.size()) {
    int found = match();
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !state_->stack) {
      state_->stack.reset(pcre2_jit_stack_create(32 << 10, kMaxStack, nullptr));
      pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
      found = match();
    }
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
      throw Error("encode", {regex_.source_ + ": the pattern " + io::in_quotes(regex_.pattern_) + " takes more than " +
                             std::to_string(kMaxSteps) + " steps at byte " + std::to_string(from_) + " of a text of " +
                             std::to_string(text_.size()) + " bytes"});
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data.get());
    if (ends[0] == ends[1] && has_matched_ && ends[1] == end_) {  // an empty match directly after a match
      ++from_;
      while (from_ < text_.size() && (static_cast<uint8_t>(text_[from_]) & 0xC0) == 0x80) ++from_;
      continue;
    }
    has_matched_ = true;
    begin_ = ends[0];
    from_ = end_ = ends[1];
    return true;
  }
  return false;
}

}  // namespace attn::text
