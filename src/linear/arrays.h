// What the checks of the module have in common: one array, and the sequences of a call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/checker.h"
#include "core/layout.h"

namespace attn::linear {

/// Tokens first .. first + count - 1 of a row of the batch, which share one state.
struct TokenRange {
  int64_t batch, first, count;
};

template <class Pointer, int Rank>
void check_array(Checker& checker, const char* name, const BasicView<Pointer, Rank>& view,
                 const std::type_identity_t<Shape<Rank>>& expected, const char* axes) {
  checker.require(is_floating(view.dtype), [&] {
    return std::string(name) + " is " + std::string(name_of(view.dtype)) + ", must be a floating type";
  });
  checker.require(view.size == expected, [&] {
    return std::string(name) + " has size " + to_string(view.size) + ", must be " + axes + " = " + to_string(expected);
  });
  checker.require(view.data || view.empty(), [&] { return std::string(name) + " must have data"; });
  detail::check_layout(checker, name, view);
}

inline void check_type(Checker& checker, const char* name, DType given, DType wanted, const char* whose) {
  checker.require(given == wanted, [&] {
    return std::string(name) + " is " + std::string(name_of(given)) + ", must be " + std::string(name_of(wanted)) +
           whose;
  });
}

/// The sequences of a call whose first argument, `name`, has a batch of B and L tokens.
inline std::vector<TokenRange> checked_sequences(Checker& checker, std::span<const int64_t> cu_seqlens,
                                                 const char* name, int64_t B, int64_t L) {
  std::vector<TokenRange> sequences;
  if (cu_seqlens.empty()) {
    for (int64_t b = 0; b < B; ++b) sequences.push_back({b, 0, L});
    return sequences;
  }
  checker.require(B == 1, [&] {
    return "cu_seqlens is for a batch of 1, but " + std::string(name) + " has a batch of " + std::to_string(B);
  });
  bool rising = cu_seqlens.front() >= 0 && cu_seqlens.back() <= L;
  for (size_t n = 1; n < cu_seqlens.size(); ++n) rising = rising && cu_seqlens[n - 1] <= cu_seqlens[n];
  if (!checker.require(rising, [&] { return "cu_seqlens must rise, within 0 .. L = " + std::to_string(L); }))
    return sequences;
  for (size_t n = 1; n < cu_seqlens.size(); ++n)
    sequences.push_back({0, cu_seqlens[n - 1], cu_seqlens[n] - cu_seqlens[n - 1]});
  return sequences;
}

}  // namespace attn::linear
