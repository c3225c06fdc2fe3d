// json: JSON from outside. One value that fills the text, no duplicate keys, bounded depth and number of values; and
// the small parts that messages and writers need.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace attn::io {

using Json = nlohmann::json;

/// Throws Error "[operation] source: ...". Its byte offsets count from `first_byte`, the position of the text in
/// `source`. Exported for attn::view.
[[gnu::visibility("default")]] Json parse_json(std::string_view operation, const std::string& source,
                                               std::string_view text, int64_t first_byte = 0);

/// The same of a file.
Json read_json(std::string_view operation, const std::string& path, int64_t limit = 1 << 24);

/// The same of a file that Python's json may have written: the words Infinity, -Infinity and NaN, which JSON lacks, are
/// read as texts.
Json read_python_json(std::string_view operation, const std::string& path, int64_t limit = 1 << 24);

/// A JSON string; nothing if `text` is not UTF-8.
std::optional<std::string> json_string(std::string_view text);

/// A value in [0, 2^63).
std::optional<int64_t> whole_number(const Json& value);

/// A text from outside as messages show it: in quotes, printable ASCII alone, cut where it is long. Exported for
/// attn::view.
[[gnu::visibility("default")]] std::string in_quotes(std::string_view text);
/// The same of any value; of a list or an object only what it is.
[[gnu::visibility("default")]] std::string as_shown(const Json& value);

}  // namespace attn::io
