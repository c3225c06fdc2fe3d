// A sum of what must be the same on all ranks.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "attn/cluster.h"

namespace attn::cluster {

/// A sum of everything that is added, in its order (FNV-1a by words).
class Sum {
 public:
  void add(uint64_t word) { sum_ = (sum_ ^ word) * 0x100000001b3U; }
  void add(int64_t word) { add(static_cast<uint64_t>(word)); }
  void add(bool flag) { add(uint64_t{flag}); }
  void add(double x) {
    uint64_t word = 0;
    std::memcpy(&word, &x, sizeof word);
    add(word);
  }
  void add(const std::optional<double>& x) {
    add(x.has_value());
    add(x.value_or(0));
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum x) { add(static_cast<uint64_t>(x)); }
  template <class T>
  void add(std::span<const T> values) {
    add(uint64_t{values.size()});
    for (const T value : values) add(value);
  }
  void add(const Window& window) {
    add(window.left);
    add(window.right);
  }
  void add(const BlockLayout& blocks) {
    add(blocks.allowed);
    add(blocks.offsets);
    add(blocks.indices);
    add(blocks.query_block);
    add(blocks.key_block);
  }
  void add(const Shard& shard) {
    add(shard.first_batch);
    add(shard.first_head);
  }
  void add(const std::string& text) {
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
  }
  void add(const Placement& placement) {
    for (int64_t place = 0; place < placement.chunks(); ++place) add(placement.chunk(place).begin);
    for (int rank = 0; rank <= placement.ranks(); ++rank) add(placement.first_place(rank));
    add(placement.tokens());
  }
  /// Elements of a boolean or integer array.
  template <int Rank>
  void add(const ConstView<Rank>& view) {
    add(view.data != nullptr);
    for (const int64_t n : view.size) add(n);
    if (!view) return;
    Shape<Rank> at{};
    for (int64_t count = view.count(); count > 0; --count) {
      int64_t offset = 0;
      for (int axis = 0; axis < Rank; ++axis) offset += at[axis] * view.stride[axis];
      add(element(view, offset));
      for (int axis = Rank - 1; axis >= 0 && ++at[axis] == view.size[axis]; --axis) at[axis] = 0;
    }
  }
  uint64_t value() const { return sum_; }

 private:
  template <int Rank>
  static int64_t element(const ConstView<Rank>& view, int64_t offset) {
    if (view.dtype == DType::boolean) return static_cast<const uint8_t*>(view.data)[offset] != 0;
    if (view.dtype == DType::int32) return static_cast<const int32_t*>(view.data)[offset];
    return static_cast<const int64_t*>(view.data)[offset];
  }

  uint64_t sum_ = 0xcbf29ce484222325U;
};

}  // namespace attn::cluster
