// A checked call, in the form that the schedules work on: a list of sequences over strided memory.
//
// Rows. The query heads of one key/value head share its keys, so they are processed together: row r of a sequence is
// query r / G, head hk * G + r % G, with G = H / Hk. Keys are counted inside the sequence.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attention.h"
#include "core/checker.h"
#include "core/layout.h"
#include "core/overlap.h"

namespace attn::detail {

/// Bytes of a key or value of n numbers in a KV page.
inline int64_t row_bytes(KVStorage storage, DType dtype, int64_t n) {
  return storage == KVStorage::int8 ? n + int64_t{sizeof(float)} : n * size_of(dtype);
}

/// KV pages of one batch row: key j is row (first + j) % page_size of page (first + j) / page_size.
struct PageTable {
  const void* const* keys = nullptr;    // per page: [Hk][page_size] rows
  const void* const* values = nullptr;  // the same
  int64_t page_size = 0;
  int64_t first = 0;     // rows of page 0 before key 0
  int64_t bias_key = 0;  // the key of the bias that is key 0
};

/// Queries that attend to the same keys.
struct Sequence {
  int64_t batch = 0;
  int64_t query_begin = 0, query_count = 0;
  int64_t key_begin = 0, key_count = 0;  // keys that exist
  int64_t shift = 0;                     // p_i = i + shift, i and keys counted inside the sequence
  PageTable pages = {};                  // in place of k and v
};

/// A list that needs no heap while it is short: a small call allocates nothing.
template <class T, size_t N>
class ShortList {
 public:
  void push_back(const T& value) {
    if (size_ < N) few_[size_] = value;
    else if (size_ == N) many_.assign(few_.begin(), few_.end());
    if (size_ >= N) many_.push_back(value);
    ++size_;
  }
  size_t size() const { return size_; }
  T* begin() { return size_ > N ? many_.data() : few_.data(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return size_ > N ? many_.data() : few_.data(); }
  const T* end() const { return begin() + size_; }
  const T& operator[](size_t i) const { return begin()[i]; }
  T& operator[](size_t i) { return begin()[i]; }

 private:
  size_t size_ = 0;
  std::array<T, N> few_;
  std::vector<T> many_;
};

struct Problem {
  ConstView<4> q, k, v;
  int64_t B = 0, H = 0, Hk = 0, G = 1, Lq = 0, Lk = 0, D = 0, Dv = 0;
  const AttentionOptions* options = nullptr;
  double scale = 1;
  int64_t left = std::numeric_limits<int64_t>::max();   // keys before p_i
  int64_t right = std::numeric_limits<int64_t>::max();  // keys after p_i
  ShortList<Sequence, 8> sequences;
  int64_t queries = 0, keys = 0;         // Lq and Lk of the whole
  KVStorage storage = KVStorage::exact;  // of the pages
  int64_t key_bytes = 0;                 // of the keys and values of all sequences

  const Shard& shard() const { return options->shard; }
  int64_t rows(const Sequence& s) const { return s.query_count * G; }
  bool has_key_masks() const {  // something besides intervals decides who is allowed
    return options->mask || options->query_segment_ids || options->blocks.given();
  }
};

/// A part of the matrix of queries and keys.
struct Rectangle {
  int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

/// Element i of row b of ids [B|1, n], int32 or int64.
inline int64_t id_at(const ConstView<2>& ids, int64_t b, int64_t i) {
  const int64_t offset = (ids.size[0] == 1 ? 0 : b * ids.stride[0]) + i * ids.stride[1];
  if (ids.dtype == DType::int32) return static_cast<const int32_t*>(ids.data)[offset];
  return static_cast<const int64_t*>(ids.data)[offset];
}

/// Address of element (a, b, c, 0) of a rank-4 view; an axis of extent 1 is broadcast.
template <class Pointer>
auto* at(const BasicView<Pointer, 4>& view, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  int64_t offset = 0;
  const int64_t index[4] = {a, b, c, d};
  for (int axis = 0; axis < 4; ++axis)
    if (view.size[axis] != 1) offset += index[axis] * view.stride[axis];
  return static_cast<Byte*>(view.data) + offset * size_of(view.dtype);
}

/// Stride of the last axis, 0 where it is broadcast.
template <class Pointer>
int64_t last_stride(const BasicView<Pointer, 4>& view) {
  return view.size[3] == 1 ? 0 : view.stride[3];
}

/// Zero in every element of row (b, h, i).
void fill_zero_row(const View<4>& view, int64_t b, int64_t h, int64_t i);

/// Reads or writes a float32 or float64 element of an [B, H, Lq] view.
double load_row_value(const ConstView<3>& view, int64_t b, int64_t h, int64_t i);
void store_row_value(const View<3>& view, int64_t b, int64_t h, int64_t i, double value);

/// Checks what every call shares and fills the problem; violated conditions go to `checker`.
Problem make_problem(Checker& checker, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
                     const AttentionOptions& options);
/// Resolves causal, window, scale and the per-sequence lengths of `problem`, which has its sizes.
void resolve_options(Checker& checker, Problem& problem, const AttentionOptions& options);

/// True if every query is somewhere on the axis of keys: the alignment is named, or both axes are one,
bool has_positions(const Problem& problem);
/// and what to say if not.
std::string unnamed_alignment(const Problem& problem);

/// Checks an [B, H, Lq] view of statistics: shape, float32 (float64 where q is).
void check_row_values(Checker& checker, const char* name, const ConstView<3>& view, const Problem& problem);
/// Checks the options that are numbers, of which something can be said without shapes.
void check_numbers(Checker& checker, const AttentionOptions& options);
/// Checks a bias for all pairs [B, H, Lq, Lk].
void check_bias(Checker& checker, const ConstView<4>& bias, const Shape<4>& pairs);
/// Checks ids [batch|1, length], int32 or int64.
void check_ids(Checker& checker, const char* name, const ConstView<2>& view, int64_t batch, int64_t length);
/// Checks shape and floating type.
void check_tensor(Checker& checker, const char* name, const ConstView<4>& view, const Shape<4>& expected);

/// Checks where the gradients of a call go, but for what they overlap.
void check_gradients(Checker& checker, const Problem& problem, const AttentionGradients& gradients);

}  // namespace attn::detail
