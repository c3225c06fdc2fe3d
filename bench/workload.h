// What is measured: one call of the operator. A workload is its name,
//
//   operation/option/dtype/B<batch>/H<heads>[:<key heads>]/n<queries>[:<keys>]/D<head size>/layout
//
// for instance forward/causal/float32/B1/H32:8/n1024/D128/blhd. bench/workloads.json lists them for attn_bench and for
// the Python package.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attn/attn.h"

namespace bench {

enum class Operation {
  forward,   // attention()
  backward,  // attention_backward()
  decode,    // attention() of one query
  paged      // KVCache::attend() of one query
};

enum class Option { full, causal, window, mask, bias, alibi, dropout, softcap, lengths };

/// The order of [B, H, L, D] tensors in memory.
enum class TensorLayout {
  blhd,  // [B, L, H, D]: what the projections of a model write
  bhld,  // [B, H, L, D]: contiguous heads
  qkv    // q, k and v are slices of one [B, L, (H + 2 Hk) D] array
};

struct Workload {
  Operation operation = Operation::forward;
  Option option = Option::full;
  attn::DType dtype = attn::DType::float32;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t depth = 0;  // D = Dv
  TensorLayout layout = TensorLayout::blhd;
  int64_t window = 0;     // keys that a query of Option::window sees, its own among them
  double dropout = 0;     // of Option::dropout
  double softcap = 0;     // of Option::softcap
  int64_t key_count = 0;  // keys that are not padding, of Option::lengths
  std::string isa = {};
  int threads = 1;

  bool reads_cache() const { return operation == Operation::decode || operation == Operation::paged; }
  /// (query, key) pairs of one head that attend.
  double pairs() const;
  /// Multiply-adds on those pairs, counted as two: two matrix products forward, five backward.
  double flops() const;
  /// Bytes of keys and values.
  int64_t kv_bytes() const;
  /// Without instruction set and threads.
  std::string name() const;
};

/// bench/workloads.json.
class WorkloadFile {
 public:
  /// Throws std::runtime_error for a file that cannot be read.
  explicit WorkloadFile(const std::string& path);
  /// The workloads of a set, in their order, each once. Throws std::runtime_error for an unknown set, and for a
  /// workload that attn_bench cannot run (batches, Dv != D, prefills, packed sequences, training).
  std::vector<Workload> set(const std::string& name) const;

  /// The least share of the peak that a workload must reach for the gate.
  struct Floor {
    Workload workload;
    double of_peak;
  };
  std::vector<Floor> floors(const std::string& isa) const;

 private:
  Workload parse(const std::string& name) const;
  nlohmann::json content_;
};

}  // namespace bench
