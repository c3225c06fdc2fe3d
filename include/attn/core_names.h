// core: names of the values of enumerations, as files and command lines have them.
//
// ```cpp
// #include "attn/core_names.h"
// enum class Colour { red, green };
// constexpr auto enum_names(Colour) { return std::to_array<std::string_view>({"red", "green"}); }
// int main() {
//   const bool is_same = attn::from_name<Colour>("green") == Colour::green && attn::name_of(Colour::red) == "red";
//   return is_same ? 0 : 1;
// }
// ```
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/core_dtype.h"  // which refuses a compiler of C++17

#pragma GCC visibility push(default)
namespace attn {

/// An enumeration beside which enum_names() gives a name for each of its values, which are 0, 1, 2, ...
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  enum_names(E());
};

/// "" for what is no value of the enumeration.
template <NamedEnum E>
constexpr std::string_view name_of(E value) {
  const auto names = enum_names(E());
  const auto n = static_cast<size_t>(value);
  return n < names.size() ? names[n] : std::string_view();
}

/// Nothing for a name that no value has.
template <NamedEnum E>
constexpr std::optional<E> from_name(std::string_view name) {
  const auto names = enum_names(E());
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return {};
  return static_cast<E>(found - names.begin());
}

/// In the order of the values.
template <NamedEnum E>
std::vector<std::string> names_of() {
  const auto names = enum_names(E());
  return {names.begin(), names.end()};
}

}  // namespace attn
#pragma GCC visibility pop
