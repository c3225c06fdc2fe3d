#include "workload.h"

#include <algorithm>
#include <utility>

namespace bench {
namespace {

using attn::DType;

// Every prefill has as many query rows as the longest one, in more heads if they are shorter.
constexpr int64_t kRows = 16384;

Workload prefill(Operation operation, Option option, DType dtype, int64_t n, int64_t depth) {
  const int64_t heads = std::max<int64_t>(1, kRows / n);
  return {.operation = operation,
          .option = option,
          .dtype = dtype,
          .heads = heads,
          .kv_heads = heads,
          .queries = n,
          .keys = n,
          .depth = depth};
}

Workload one_token(Operation operation, DType dtype, int64_t group, int64_t keys) {
  return {.operation = operation,
          .dtype = dtype,
          .heads = 8 * group,
          .kv_heads = 8,
          .queries = 1,
          .keys = keys,
          .depth = 128};
}

/// Calls of which the fixed cost is a good part: the least there is, and the heads of a short sequence.
void add_small_calls(std::vector<Workload>& set) {
  for (auto [heads, n] : {std::pair<int64_t, int64_t>{1, 1}, {8, 32}}) {
    Workload workload = prefill(Operation::forward, Option::full, DType::float32, n, 64);
    workload.heads = workload.kv_heads = heads;
    set.push_back(workload);
  }
}

void add_options(std::vector<Workload>& set, DType dtype, int64_t n, int64_t depth) {
  for (Option option : {Option::full, Option::mask, Option::bias, Option::alibi, Option::window, Option::dropout,
                        Option::softcap, Option::lengths}) {
    set.push_back(prefill(Operation::forward, option, dtype, n, depth));
  }
}

}  // namespace

double Workload::pairs() const {
  const double nq = static_cast<double>(queries), nk = static_cast<double>(keys);
  const double window = static_cast<double>(std::min(queries, kWindow));
  switch (option) {
    case Option::causal: return nq * (nq + 1) / 2;
    case Option::window: return window * (window + 1) / 2 + (nq - window) * window;
    case Option::mask: return nq * (nk - 1);  // one hole a row
    case Option::lengths: return nq * static_cast<double>(static_cast<int64_t>(nk * kLengthFraction));
    default: return nq * nk;
  }
}

double Workload::flops() const {
  const double products = operation == Operation::backward ? 5 : 2;
  return 2 * products * static_cast<double>(depth * heads) * pairs();
}

int64_t Workload::kv_bytes() const { return 2 * kv_heads * keys * depth * attn::size_of(dtype); }

std::string Workload::name() const {
  std::string text = name_of(operation) + "/" + name_of(option) + "/" + std::string(attn::name_of(dtype)) +
                     "/n:" + std::to_string(keys) + "/D:" + std::to_string(depth);
  if (reads_cache()) text += "/G:" + std::to_string(heads / kv_heads);
  return text + "/" + name_of(layout) + "/" + isa + "/threads:" + std::to_string(threads);
}

std::string name_of(Operation operation) {
  constexpr const char* kNames[] = {"forward", "backward", "decode", "paged"};
  return kNames[static_cast<int>(operation)];
}

std::string name_of(Option option) {
  constexpr const char* kNames[] = {"full",  "causal",  "window",  "mask",   "bias",
                                    "alibi", "dropout", "softcap", "lengths"};
  return kNames[static_cast<int>(option)];
}

std::string name_of(Layout layout) {
  constexpr const char* kNames[] = {"blhd", "bhld", "qkv"};
  return kNames[static_cast<int>(layout)];
}

std::vector<Workload> full_set() {
  std::vector<Workload> set;
  for (Operation operation : {Operation::forward, Operation::backward}) {
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
      for (Option option : {Option::full, Option::causal, Option::window}) {
        for (int64_t depth : {32, 64, 80, 128, 256}) {
          for (int64_t n = 128; n <= kRows; n *= 2) set.push_back(prefill(operation, option, dtype, n, depth));
        }
      }
    }
  }
  for (Operation operation : {Operation::decode, Operation::paged}) {
    for (DType dtype : {DType::bfloat16, DType::float32}) {
      for (int64_t keys : {4096, 32768}) {
        for (int64_t group : {1, 4, 8}) set.push_back(one_token(operation, dtype, group, keys));
      }
    }
  }
  add_small_calls(set);
  for (DType dtype : {DType::float32, DType::bfloat16}) add_options(set, dtype, 2048, 64);
  return set;
}

std::vector<Workload> quick_set() {
  std::vector<Workload> set;
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (int64_t depth : {64, 128}) {
      set.push_back(prefill(Operation::forward, Option::full, dtype, 2048, depth));
      set.push_back(prefill(Operation::forward, Option::causal, dtype, 2048, depth));
      set.push_back(prefill(Operation::backward, Option::causal, dtype, 2048, depth));
    }
  }
  for (DType dtype : {DType::float16, DType::float64}) {
    set.push_back(prefill(Operation::forward, Option::full, dtype, 2048, 64));
  }
  for (int64_t group : {1, 8}) set.push_back(one_token(Operation::decode, DType::bfloat16, group, 32768));
  set.push_back(one_token(Operation::paged, DType::bfloat16, 8, 32768));
  add_small_calls(set);
  add_options(set, DType::float32, 1024, 64);
  return set;
}

}  // namespace bench
