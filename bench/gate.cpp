#include "gate.h"

#include <cstdio>
#include <string_view>
#include <vector>

#include "measure.h"
#include "problem.h"
#include "race.h"

namespace bench {
namespace {

// About two thirds of what a quiet core reaches at this size (Zen 4; Cascade Lake without bfloat16; Sapphire Rapids
// with tiles): a spilled accumulator or a lost vectorisation costs half.
struct Floor {
  std::string_view isa;
  Operation operation;
  attn::DType dtype;
  int64_t depth;
  double of_peak;
};
constexpr Floor floors[] = {
    {"baseline", Operation::forward, attn::DType::float32, 64, 0.45},
    {"avx2", Operation::forward, attn::DType::float32, 64, 0.52},
    {"avx2", Operation::backward, attn::DType::float32, 64, 0.45},
    {"avx512", Operation::forward, attn::DType::float32, 64, 0.52},
    {"avx512", Operation::forward, attn::DType::float32, 128, 0.55},
    {"avx512", Operation::backward, attn::DType::float32, 64, 0.45},
    {"avx512", Operation::forward, attn::DType::float64, 64, 0.45},
    {"amx", Operation::forward, attn::DType::float32, 64, 0.38},
    {"amx", Operation::backward, attn::DType::float32, 64, 0.27},
    {"amx", Operation::forward, attn::DType::bfloat16, 64, 0.15},
    {"amx", Operation::forward, attn::DType::bfloat16, 128, 0.20},
    {"amx", Operation::backward, attn::DType::bfloat16, 64, 0.10},
    {"avx512_bf16", Operation::forward, attn::DType::bfloat16, 64, 0.42},
    {"avx512_bf16", Operation::forward, attn::DType::bfloat16, 128, 0.45},
    {"avx512_bf16", Operation::backward, attn::DType::bfloat16, 64, 0.40},
};
// One head of so many tokens takes about a millisecond, see race.h: medians of longer calls fell from 80 to 50 %.
constexpr int64_t kRows = 512;
constexpr double kChanceSeconds = 0.3;
constexpr int kChances = 20;

bool holds(const Floor& floor) {
  Workload workload;
  workload.operation = floor.operation;
  workload.dtype = floor.dtype;
  workload.queries = workload.keys = kRows;
  workload.depth = floor.depth;
  workload.isa = floor.isa;
  attn::set_thread_count(workload.threads);
  attn::set_isa(workload.isa);
  Problem problem(workload);
  const bool correct = problem.check() <= error_bound(floor.dtype);
  const attn::AttentionPlan plan = problem.plan();
  Race race([&] { problem.call(); }, plan.unit_flops, attn::peaks::unit_for(plan.isa, plan.unit_type));
  double of_peak = race.run(kChanceSeconds);
  for (int chance = 1; correct && of_peak < floor.of_peak && chance < kChances; ++chance)
    of_peak = race.run(kChanceSeconds);
  std::printf("%-60s %5.1f %% of peak, floor %2.0f %%%s\n", workload.name().c_str(), 100 * of_peak, 100 * floor.of_peak,
              correct ? "" : ", WRONG");
  return correct && of_peak >= floor.of_peak;
}

}  // namespace

bool run_gate() {
  bool all = true;
  for (const std::string& isa : attn::available_isas())
    for (const Floor& floor : floors)
      if (floor.isa == isa) all = holds(floor) && all;
  return all;
}

}  // namespace bench
