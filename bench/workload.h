// What is measured: one call of the operator, described by its shape, type, option and place of execution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/attn.h"

namespace bench {

enum class Operation {
  forward,   // attention() on n queries and n keys
  backward,  // attention_backward() of the same
  decode,    // attention() of one query on n keys
  paged      // KVCache::attend() of one query on n keys
};

/// What a call asks for besides softmax(q k^T) v.
enum class Option { full, causal, window, mask, bias, alibi, dropout, softcap, lengths };

/// Where [B, H, L, D] tensors are.
enum class Layout {
  blhd,  // [B, L, H, D] in memory: what the projections of a model write
  bhld,  // contiguous heads
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
  Layout layout = Layout::blhd;
  std::string isa = {};
  int threads = 1;

  bool reads_cache() const { return operation == Operation::decode || operation == Operation::paged; }
  /// (query, key) pairs of one head that attend.
  double pairs() const;
  /// Multiply-adds on those pairs, counted as two: two matrix products forward, five backward.
  double flops() const;
  /// Bytes of keys and values that have to be read.
  int64_t kv_bytes() const;
  /// "forward/causal/float32/n:1024/D:64/blhd/avx512/threads:1"
  std::string name() const;
};

std::string name_of(Operation operation);
std::string name_of(Option option);
std::string name_of(Layout layout);

constexpr int64_t kWindow = 256;  // keys in a window, the query's own among them
constexpr double kDropout = 0.1;
constexpr double kSoftcap = 30;
constexpr double kLengthFraction = 0.75;  // of the keys that exist

/// All sizes, types, options and operations.
std::vector<Workload> full_set();
/// A choice that runs in under a minute on two cores.
std::vector<Workload> quick_set();

}  // namespace bench
