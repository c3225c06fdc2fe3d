// One workload made real: its tensors, the call to time, and the check that comes before any timing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attn/attn.h"
#include "workload.h"

namespace bench {

class TimedCall {
 public:
  /// Inputs are uniform numbers of variance 1, the same in every run.
  explicit TimedCall(const Workload& workload);

  /// The call that is timed.
  void call();
  /// What the library says it will do. A paged cache is explained by the same call on dense keys.
  attn::AttentionPlan plan() const;
  /// max |x - reference| / max |reference|, where the float64 reference has computed a few query rows of the first and
  /// the last key/value head and, backward, what these rows give to the gradients of all their keys.
  double check();

  attn::ConstView<4> keys() const { return k_.view; }
  attn::ConstView<4> values() const { return v_.view; }

 private:
  struct Array {
    Array() = default;
    Array(attn::DType dtype, const attn::Shape<4>& size, TensorLayout layout);  // zero
    attn::Buffer memory;
    attn::View<4> view;
  };
  /// Neighbouring query rows of all query heads that share a key/value head.
  struct Sample {
    int64_t kv_head;
    int64_t first_query;
    int64_t queries;
  };

  Array random_array(int64_t heads, int64_t rows, uint64_t seed) const;
  void fuse();
  attn::View<3> log_sums() const;
  void set_option();
  void fill_cache();
  void backward(attn::ConstView<4> dout);
  std::vector<Sample> samples_of(int64_t kv_head) const;
  std::vector<int64_t> sampled_heads() const;
  attn::View<4> rows_of(const Array& array, const Sample& sample) const;
  attn::View<4> head_of(const Array& array, int64_t kv_head) const;
  attn::AttentionOptions options_of(const Sample& sample) const;
  double forward_error() const;
  double backward_error();

  Workload workload_;
  Array q_, k_, v_, out_;
  Array fused_;                      // holds q, k and v where they are slices
  Array dout_, dq_, dk_, dv_, lse_;  // backward alone
  Array extra_;                      // the mask or the bias
  std::vector<int64_t> key_length_;
  std::vector<float> slopes_;
  attn::AttentionOptions options_;
  std::optional<attn::KVCache> cache_;
  int64_t sequence_ = 0;
};

}  // namespace bench
