// Each kernel alone, on what the operator gives it: one panel of queries, blocks of keys that walk through 2048,
// operands from the caches. What a call loses beyond the sum of its kernels is packing, merging and scheduling.
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "kernels/dispatch.h"
#include "kernels/entered.h"
#include "modes.h"
#include "timed_call.h"
#include "timer.h"

namespace bench {
namespace {

using attn::kernels::Entered;
using attn::kernels::TileKernels;

constexpr int64_t kKeys = 2048, kForwardBlock = 256, kBackwardBlock = 128;
constexpr int kPanels = 3;
constexpr int64_t kTokens = 1024;      // of the whole call: one head, some milliseconds
constexpr double kSeconds = 0.5;       // for each figure, unless --seconds says otherwise
constexpr int64_t kWideningHeads = 4;  // enough rows for the widest groups of the forward
constexpr double kWidening = 8;        // times kSeconds for a ratio

struct KernelCall {
  std::string name;
  double flops;
  std::function<void()> run;
};

/// Memory full of small numbers of a type.
class Numbers {
 public:
  Numbers(attn::DType type, int64_t count) : memory_(count * attn::size_of(type) + 64) {
    for (int64_t i = 0; i < count; ++i) {
      const float x = static_cast<float>(i * 7919 % 2001 - 1000) * 1e-4f;
      char* at = static_cast<char*>(memory_.data()) + i * attn::size_of(type);
      if (type == attn::DType::float64) *reinterpret_cast<double*>(at) = x;
      else if (type == attn::DType::float32) *reinterpret_cast<float*>(at) = x;
      else *reinterpret_cast<attn::bfloat16*>(at) = attn::bfloat16(x);
    }
  }
  template <class T = char>
  T* data() const {
    return static_cast<T*>(memory_.data());
  }

 private:
  attn::Buffer memory_;
};

/// The operands of all kernels of one arithmetic.
class KernelOperands {
 public:
  KernelOperands(const TileKernels& tk, attn::DType acc, int64_t depth)
      : tk_(tk),
        D_(depth),
        operand_(static_cast<attn::DType>(tk.type)),
        query_(operand_, tk.query_bytes(D_, tk.panel) / attn::size_of(operand_)),
        keys_(operand_, tk.key_rows.bytes(kKeys, D_) / attn::size_of(operand_)),
        values_(operand_, tk.value_rows.bytes(kKeys, D_) / attn::size_of(operand_)),
        rows_(operand_, kPanels * tk.outer_rows.bytes(tk.panel, D_) / attn::size_of(operand_)),
        weights_(operand_, kPanels * tk.weights_bytes(kForwardBlock, tk.panel) / attn::size_of(operand_)),
        probabilities_(acc, kForwardBlock * tk.panel),
        ds_(operand_, tk.weights_bytes(kForwardBlock, tk.panel) / attn::size_of(operand_)),
        out_(acc, tk.accumulator_bytes(D_, tk.panel) / attn::size_of(acc)),
        gradient_(acc, kKeys * D_),
        lanes_(acc, tk.panel),
        sums_(acc, tk.panel) {}

  std::vector<KernelCall> forward() {
    return {{"scores and softmax", flops(kForwardBlock, tk_.score_products),
             [this] {
               const Entered entered(tk_);
               tk_.scores_softmax({.in = scores(kForwardBlock),
                                   .reference = lanes_.data(),
                                   .allowed = nullptr,
                                   .sum = sums_.data(),
                                   .weights = weights_.data(),
                                   .late = nullptr},
                                  4);
             }},
            {"values", flops(kForwardBlock, tk_.sum_products), [this] { values(kForwardBlock); }}};
  }

  std::vector<KernelCall> backward() {
    const double score = flops(kBackwardBlock, tk_.score_products), sum = flops(kBackwardBlock, tk_.sum_products);
    const auto outer = [this] { this->outer(); };
    return {{"scores and probabilities", score,
             [this] {
               const Entered entered(tk_);
               tk_.scores_probabilities(scores(kBackwardBlock), lanes_.data(), probabilities_.data());
             }},
            {"dP and dS", score, [this] { grad(); }},
            {"dV", kPanels * sum, outer},
            {"dK", kPanels * sum, outer},
            {"dQ", sum, [this] { values(kBackwardBlock); }}};
  }

 private:
  /// Of the unit, which takes so many products for one.
  double flops(int64_t keys, int products) const { return 2.0 * static_cast<double>(keys * tk_.panel * D_ * products); }

  /// The first key of the next block.
  int64_t next(int64_t block) { return at_ = (at_ + block) % kKeys; }

  attn::kernels::ScoresArgs scores(int64_t block) {
    return {.query = query_.data(),
            .width = tk_.panel,
            .rows = tk_.panel,
            .keys = keys_.data() + tk_.key_rows.bytes(next(block), D_),
            .key_stride = tk_.key_rows.stride(D_),
            .count = block,
            .depth = D_,
            .scale = 1,
            .highest = 1e30,
            .scores = nullptr,
            .maximum = nullptr,
            .from_memory = false};
  }

  void values(int64_t block) {
    const Entered entered(tk_);
    tk_.values({.weights = weights_.data(),
                .width = tk_.panel,
                .rows = tk_.panel,
                .values = values_.data() + tk_.value_rows.bytes(next(block), D_),
                .value_stride = tk_.value_rows.stride(D_),
                .count = block,
                .depth = D_,
                .out = out_.data(),
                .from_memory = false});
  }

  void grad() {
    const Entered entered(tk_);
    tk_.grad({.in = scores(kBackwardBlock),
              .weights = probabilities_.data(),
              .delta = lanes_.data(),
              .allowed = nullptr,
              .keep = nullptr,
              .keep_scale = 1,
              .factor = nullptr,
              .weights_outer = weights_.data(),
              .ds = nullptr,
              .ds_values = ds_.data(),
              .ds_outer = weights_.data()});
  }

  void outer() {
    const Entered entered(tk_);
    attn::kernels::OuterPanel panels[kPanels];
    for (int64_t i = 0; i < kPanels; ++i)
      panels[i] = {.weights = weights_.data() + i * tk_.weights_bytes(kBackwardBlock, tk_.panel),
                   .width = tk_.panel,
                   .rows = tk_.panel,
                   .x = rows_.data() + i * tk_.outer_rows.bytes(tk_.panel, D_)};
    tk_.outer({.panels = panels,
               .panel_count = kPanels,
               .count = kBackwardBlock,
               .x_stride = tk_.outer_rows.stride(D_),
               .out = gradient_.data() + next(kBackwardBlock) * D_ * tk_.acc_bytes});
  }

  const TileKernels& tk_;
  const int64_t D_;
  const attn::DType operand_;
  Numbers query_, keys_, values_, rows_, weights_, probabilities_, ds_, out_, gradient_, lanes_, sums_;
  int64_t at_ = 0;
};

/// Shares of the peak: of each kernel, of their sum, and of a call.
bool add_kernels(const Workload& workload, const std::vector<KernelCall>& kernels, double seconds, Report& report) {
  TimedCall timed_call(workload);
  const attn::AttentionPlan plan = timed_call.plan();
  const attn::peaks::Unit& unit = attn::peaks::unit_for(plan.isa, plan.unit_type);
  const auto add = [&](const std::string& what, double share) {
    report.add({{"isa", workload.isa},
                {"workload", workload.name()},
                {"what", what},
                {"% of peak", 100 * share},
                {"of float32 time", NAN}});
  };
  double slowness = 0;
  for (const KernelCall& kernel : kernels) {
    const double share = PeakShare(kernel.run, kernel.flops, unit).measure(seconds);
    slowness += 1 / share;
    add(kernel.name, share);
  }
  add("all kernels", static_cast<double>(kernels.size()) / slowness);
  const bool correct = timed_call.check() <= error_bound(workload.dtype);
  const double share = PeakShare([&] { timed_call.call(); }, plan.unit_flops, unit).measure(2 * seconds);
  add(correct ? "a call" : "WRONG", share);
  return correct;
}

/// What 16-bit storage costs where its numbers are widened to float32: it should be nothing.
bool add_widening(const char* isa, std::initializer_list<attn::DType> dtypes, double seconds, Report& report) {
  bool all = true;
  for (Operation operation : {Operation::forward, Operation::backward}) {
    for (int64_t depth : {64, 128}) {
      Workload workload{.operation = operation, .heads = kWideningHeads, .kv_heads = kWideningHeads};
      workload.queries = workload.keys = kTokens;
      workload.depth = depth;
      workload.isa = isa;
      TimedCall wide(workload);
      for (attn::DType dtype : dtypes) {
        workload.dtype = dtype;
        TimedCall narrow(workload);
        const bool correct = narrow.check() <= error_bound(dtype);
        const double time = relative_time([&] { narrow.call(); }, [&] { wide.call(); }, kWidening * seconds);
        report.add({{"isa", isa},
                    {"workload", workload.name()},
                    {"what", correct ? "a call" : "WRONG"},
                    {"% of peak", NAN},
                    {"of float32 time", time}});
        all = all && correct;
      }
    }
  }
  return all;
}

}  // namespace

bool run_kernels(const Settings& settings, Report& report) {
  const attn::kernels::Isa& isa = attn::active_kernels();
  const double seconds = settings.seconds > 0 ? settings.seconds : kSeconds;
  attn::set_thread_count(1);
  const std::pair<const TileKernels*, attn::DType> kinds[] = {
      {isa.f32, attn::DType::float32}, {isa.bf16, attn::DType::bfloat16}, {isa.f64, attn::DType::float64}};
  bool correct = true;
  for (const auto& [kernels, dtype] : kinds) {
    if (!kernels) continue;
    for (int64_t depth : {64, 128}) {
      KernelOperands operands(*kernels, dtype == attn::DType::float64 ? dtype : attn::DType::float32, depth);
      Workload workload{.dtype = dtype, .queries = kTokens, .keys = kTokens, .depth = depth, .isa = isa.name};
      correct = add_kernels(workload, operands.forward(), seconds, report) && correct;
      workload.operation = Operation::backward;
      correct = add_kernels(workload, operands.backward(), seconds, report) && correct;
    }
  }
  if (isa.bf16) return add_widening(isa.name, {attn::DType::float16}, seconds, report) && correct;
  return add_widening(isa.name, {attn::DType::bfloat16, attn::DType::float16}, seconds, report) && correct;
}

}  // namespace bench
