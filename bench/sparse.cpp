// Attention with lists of key blocks: the rate on the pairs that attend, beside that of a call without a layout in the
// same run, for random blocks; and the time of a long text with a window and global tokens.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

using attn::AttentionOptions;
using attn::BlockLists;
using attn::DType;

constexpr int64_t kHeads = 4, kDepth = 128, kTokens = 4096, kCheckedTokens = 400, kDensity = 8;
constexpr int64_t kWindow = 512, kGlobal = 16;
constexpr double kSeconds = 3;  // for each figure, unless --seconds says otherwise

/// The diagonal and random blocks, an eighth of all and at least two a row. Each head has its own.
BlockLists random_blocks(int64_t tokens, int64_t block) {
  const int64_t random = std::max<int64_t>(tokens / block / kDensity - 1, 1);
  return attn::layouts::bigbird(tokens, block, {.side = 0, .global = 0, .random = random, .heads = kHeads});
}

/// The arguments and results of calls of one shape.
class SparseCall {
 public:
  SparseCall(DType dtype, int64_t tokens) : lse_(DType::float32, std::vector<int64_t>{1, kHeads, tokens}) {
    for (attn::Array* x : {&q_, &k_, &v_, &dout_, &out_, &dq_, &dk_, &dv_})
      *x = attn::Array(dtype, std::vector<int64_t>{1, kHeads, tokens, kDepth});
    attn::Random random(1);
    for (const attn::Array& x : {q_, k_, v_, dout_}) attn::fill_normal(x.view<4>(), random);
  }

  void forward(const AttentionOptions& options) { attn::attention(q_, k_, v_, out_, lse_, options); }
  /// Of the last forward, which had the same options.
  void backward(const AttentionOptions& options) {
    attn::attention_backward(q_, k_, v_, out_, lse_, dout_, {.dq = dq_, .dk = dk_, .dv = dv_}, options);
  }
  void reference(const AttentionOptions& options) {
    attn::reference::attention(q_, k_, v_, out_, lse_, options);
    attn::reference::attention_backward(q_, k_, v_, out_, lse_, dout_, {.dq = dq_, .dk = dk_, .dv = dv_}, options);
  }
  double forward_flops(const AttentionOptions& options) const { return attn::explain(q_, k_, v_, options).flops; }
  double backward_flops(const AttentionOptions& options) const {
    return attn::explain_backward(q_, k_, v_, options).flops;
  }
  std::vector<attn::Array> results() const { return {out_, dq_, dk_, dv_}; }

 private:
  attn::Array q_, k_, v_, dout_, out_, dq_, dk_, dv_, lse_;
};

bool check(DType dtype, int64_t block) {
  const BlockLists layout = random_blocks(kCheckedTokens, block);
  SparseCall actual(dtype, kCheckedTokens), expected(dtype, kCheckedTokens);
  actual.forward({.blocks = layout});
  actual.backward({.blocks = layout});
  expected.reference({.blocks = layout});
  return are_close(actual.results(), expected.results(), dtype);
}

/// What a row says beside its samples.
struct Labels {
  const char* call;
  DType dtype;
  std::string layout;
  int64_t tokens;
  int threads;
};

/// Rates are those of the quickest samples: other programs disturb every median.
void add(const Labels& labels, const std::vector<double>& seconds, double flops, double dense_rate, Report& report) {
  const auto [best, worst] = std::minmax_element(seconds.begin(), seconds.end());
  report.add({{"isa", attn::active_isa()},
              {"threads", static_cast<int64_t>(labels.threads)},
              {"call", labels.call},
              {"dtype", attn::name_of(labels.dtype)},
              {"layout", labels.layout},
              {"n", labels.tokens},
              {"ms", median(seconds) * 1e3},
              {"quickest", *best * 1e3},
              {"spread %", 100 * (*worst - *best) / median(seconds), "%.0f"},
              {"GFLOP/s", flops / *best * 1e-9},
              {"without layout", dense_rate * 1e-9},
              {"% of that", 100 * flops / *best / dense_rate}});
}

void add_random(DType dtype, int64_t block, int threads, double seconds, Report& report) {
  const int64_t tokens = seconds < 0.1 ? kCheckedTokens : kTokens;
  const BlockLists layout = random_blocks(tokens, block);
  const AttentionOptions listed{.blocks = layout}, all;
  SparseCall sparse(dtype, tokens), dense(dtype, tokens);
  const auto taken = in_turn({[&] { return seconds_of([&] { sparse.forward(listed); }); },
                              [&] { return seconds_of([&] { dense.forward(all); }); },
                              [&] { return seconds_of([&] { sparse.backward(listed); }); },
                              [&] { return seconds_of([&] { dense.backward(all); }); }},
                             3, seconds);
  const auto rate = [](double flops, const std::vector<double>& samples) {
    return flops / *std::min_element(samples.begin(), samples.end());
  };
  const std::string name = "random blocks of " + std::to_string(block);
  add({"forward", dtype, name, tokens, threads}, taken[0], sparse.forward_flops(listed),
      rate(dense.forward_flops(all), taken[1]), report);
  add({"backward", dtype, name, tokens, threads}, taken[2], sparse.backward_flops(listed),
      rate(dense.backward_flops(all), taken[3]), report);
}

/// Longformer's layout in blocks of as many tokens as are global.
void add_long_text(DType dtype, int64_t tokens, int threads, Report& report) {
  const int64_t first[] = {0};
  const BlockLists layout = attn::layouts::longformer(tokens, kGlobal, kWindow / 2 / kGlobal, first);
  const AttentionOptions options{.blocks = layout};
  SparseCall call(dtype, tokens);
  const auto both = [&] {
    call.forward(options);
    call.backward(options);
  };
  const auto taken =
      in_turn({[&] { return seconds_of([&] { call.forward(options); }); }, [&] { return seconds_of(both); }}, 3);
  const double forward = call.forward_flops(options);
  const std::string name = "window 512 and 16 global tokens";
  add({"forward", dtype, name, tokens, threads}, taken[0], forward, NAN, report);
  add({"forward and backward", dtype, name, tokens, threads}, taken[1], forward + call.backward_flops(options), NAN,
      report);
}

}  // namespace

bool run_sparse(const Settings& settings, Report& report) {
  const double seconds = settings.seconds > 0 ? settings.seconds : kSeconds;
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const int64_t block : {128, 64})
      if (!check(dtype, block)) {
        std::fprintf(stderr, "blocks of %d in %s: WRONG\n", static_cast<int>(block),
                     std::string(attn::name_of(dtype)).c_str());
        return false;
      }
  for (const int threads : settings.threads) {
    attn::set_thread_count(threads);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const int64_t block : {128, 64}) add_random(dtype, block, threads, seconds, report);
      if (settings.sparse_text > 0) add_long_text(dtype, settings.sparse_text, threads, report);
    }
  }
  return true;
}

}  // namespace bench
