// What the operations of the tape ask of their values: that there is one, of the form in the comment of the operation.
// What is inside (element types, ids, lengths) is checked by ops.
#pragma once

#include <string>

#include "attn/autograd.h"
#include "core/checker.h"

namespace attn::autograd {

/// "x is float32 [7, 32], must be [B, L, C]"
inline bool refuse_form(Checker& checker, const char* name, const Value& x, const std::string& form) {
  return checker.require(false, std::string(name) + " is " + x.data().describe() + ", must be " + form);
}

inline bool require_value(Checker& checker, const char* name, const Value& x) {
  return checker.require(static_cast<bool>(x), [&] { return std::string(name) + " is an empty value"; });
}

/// So many axes, named by `form`.
inline bool require_rank(Checker& checker, const char* name, const Value& x, size_t rank, const char* form) {
  return require_value(checker, name, x) && (x.shape().size() == rank || refuse_form(checker, name, x, form));
}

/// At least one axis: rows of C.
inline bool require_rows(Checker& checker, const char* name, const Value& x) {
  return require_value(checker, name, x) && (!x.shape().empty() || refuse_form(checker, name, x, "[.., C]"));
}

/// A vector of so many elements.
inline bool require_vector(Checker& checker, const char* name, const Value& x, int64_t count) {
  if (!require_value(checker, name, x)) return false;
  const bool fits = x.shape().size() == 1 && x.shape()[0] == count;
  return fits || refuse_form(checker, name, x, to_string(&count, 1));
}

}  // namespace attn::autograd
