// The two ways to accumulate a product: one element at a time (fma), or two 16-bit elements at a time (dpbf16).
//
// A Dot has: Elem (operand element), kPack (elements consumed by one step), Acc (the vector type of the accumulator),
// kPanelVectors (vectors in the widest panel),
// broadcast(p): the kPack elements at p in every lane; load(p): W groups of kPack elements; operand(r): the same from a
// register; step(b, x, c) = c + b x. A key of `few` kernels is of type Key, and load_key(p) brings W groups into a
// register. A kInt8 key is followed by the scale of its sum: kScaleBytes, else 0.
#pragma once

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

template <class V>
struct FmaDot {
  using Acc = V;
  using Elem = typename V::T;
  using Key = Elem;
  using Operand = typename V::Reg;
  static constexpr int kPack = 1;
  static constexpr int kPanelVectors = 3;
  static constexpr int kScaleBytes = 0;
  static typename V::Reg load_key(const Key* p) { return V::loadu(p); }
  static Operand broadcast(const Elem* p) { return V::set1(*p); }
  static Operand load(const Elem* p) { return V::load(p); }
  static Operand operand(typename V::Reg r) { return r; }
  static typename V::Reg step(Operand b, Operand x, typename V::Reg c) { return V::fma(b, x, c); }
};

/// Keys of a 16-bit type or of kInt8, widened as they are loaded.
template <class V, int kType>
struct WideningDot : FmaDot<V> {
  using Key = typename Stored<kType>::Type;
  static constexpr int kScaleBytes = kType == kInt8 ? kRowScaleBytes : 0;
  static typename V::Reg load_key(const Key* p) { return load_vector<V>(kType, p, 0); }
};

}  // namespace
}  // namespace attn::kernels
