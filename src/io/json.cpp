// parse_json(): nlohmann's parser, which keeps the last of two equal keys, takes a zero byte for the end and nests
// without limit, under a handler that refuses all three.
#include "io/json.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "attn/core.h"
#include "attn/io.h"
#include "io/foreign.h"

namespace attn::io {
namespace {

// A safetensors header, the largest text that is read here, nests three levels deep and has at most 12 million values:
// 100 MB at the 54 bytes and 6 values of the shortest entry.
constexpr size_t kMaxDepth = 64;
constexpr int64_t kMaxValues = int64_t{1} << 24;
constexpr size_t kShown = 80;    // characters of a text from outside in a message
constexpr size_t kReason = 200;  // and of the parser's own words

/// Builds the value. Every method returns false to stop the parser; reason() then says why.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return place(nullptr) != nullptr; }
  bool boolean(bool value) override { return place(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return place(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return place(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return place(value) != nullptr; }
  bool string(string_t& value) override { return place(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto [entry, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    if (!is_new) return refuse("the key " + in_quotes(name) + " occurs twice in one object");
    slot_ = &entry->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    error_byte_ = std::max<int64_t>(static_cast<int64_t>(position) - 1, 0);
    // "[json.exception...] what is wrong; last read: '...'", where what was read last may be as long as the text.
    const std::string_view words = error.what();
    const size_t begin = std::min(words.find("] "), words.size() - 2) + 2;
    const size_t end = std::min(words.find("; last read"), begin + kReason);
    return refuse(std::string(words.substr(begin, end - begin)));
  }

  Json take() { return std::move(root_); }
  const std::string& reason() const { return reason_; }
  /// Where the text stopped being JSON; -1 if it did not.
  int64_t error_byte() const { return error_byte_; }

 private:
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  Json* place(Json value) {
    if (++values_ > kMaxValues) {
      refuse("more than " + std::to_string(kMaxValues) + " values");
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    if (!open_.back()->is_array()) return &(*slot_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }

  bool open(Json value) {
    if (open_.size() == kMaxDepth) return refuse("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    Json* const placed = place(std::move(value));
    if (placed) open_.push_back(placed);
    return placed != nullptr;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // lists and objects around the place of the next value; stable, as only the last one grows
  Json* slot_ = nullptr;     // the value of the last key
  int64_t values_ = 0;
  int64_t error_byte_ = -1;
  std::string reason_;
};

std::string cut(std::string text) {
  if (text.size() > kShown) text.replace(kShown, std::string::npos, "...");
  return text;
}

}  // namespace

Json parse_json(std::string_view operation, const std::string& source, std::string_view text, int64_t first_byte) {
  const auto refuse_at = [&](int64_t byte, const std::string& reason) {
    const std::string kind = first_byte == 0 ? kind_of_bytes(text) : "";
    if (!kind.empty()) throw Error(operation, {source + ": is " + kind});
    throw Error(operation, {source + ": is not JSON at byte " + std::to_string(first_byte + byte) + ": " + reason});
  };
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    refuse_at(static_cast<int64_t>(zero), "there is a zero byte");
  Builder builder;
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  if (builder.error_byte() >= 0) refuse_at(builder.error_byte(), builder.reason());
  throw Error(operation, {source + ": " + builder.reason()});
}

void check_json(std::string_view operation, const std::string& source, std::string_view text) {
  parse_json(operation, source, text);
}

Json read_json(std::string_view operation, const std::string& path, int64_t limit) {
  return parse_json(operation, path, read_file(path, limit));
}

Json read_python_json(std::string_view operation, const std::string& path, int64_t limit) {
  const std::string text = read_file(path, limit);
  std::string strict;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') in_string = !in_string;
    if (in_string && text[at] == '\\' && at + 1 < text.size()) strict += text[at++];
    std::string_view word;
    for (const std::string_view each : {"-Infinity", "Infinity", "NaN"})
      if (!in_string && std::string_view(text).substr(at).starts_with(each)) word = each;
    if (word.empty()) {
      strict += text[at];
    } else {
      strict += '"' + std::string(word) + '"';
      at += word.size() - 1;
    }
  }
  return parse_json(operation, path, strict);
}

std::optional<std::string> json_string(std::string_view text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    return std::nullopt;
  }
}

std::optional<int64_t> whole_number(const Json& value) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) return std::nullopt;
  const uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::string in_quotes(std::string_view text) {
  const std::string escaped =
      Json(text.substr(0, kShown)).dump(-1, ' ', true, nlohmann::detail::error_handler_t::replace);
  return text.size() > kShown ? escaped + "..." : escaped;
}

std::string as_shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : cut(value.dump());
}

}  // namespace attn::io
