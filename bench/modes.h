// The modes of attn_bench. Each checks results before it times them, adds rows to a report, and returns whether all
// results were right (and, for the gate, quick enough).
#pragma once

#include <string>
#include <vector>

#include "report.h"
#include "workload.h"

namespace bench {

struct Settings {
  std::string set = "operator", filter, csv, workloads;
  std::vector<std::string> isas;
  std::vector<int> threads;
  int repeats = 7;
  bool list = false;
  double seconds = 0;          // for each figure of a mode that is not calls; 0: the default of the mode
  int64_t long_text = 100000;  // tokens of the last call of statistics and linear; 0: without it
  int64_t steps = 1500, every = 25, width = 128;  // of induction
  uint64_t seed = 1337;
  int64_t longest = 16384, layer_width = 512;  // of mixers
  int64_t sparse_text = 131072;                // tokens of the last call of sparse; 0: without it
};

/// The bound on max |x - reference| / max |reference|. It catches a result that is wrong, not one that is less exact
/// than it could be: the tests have the tight bounds.
double error_bound(attn::DType dtype);
/// True if every result is within this bound of the reference in its place.
bool are_close(const std::vector<attn::Array>& results, const std::vector<attn::Array>& references, attn::DType dtype);

/// Calls of the operator, next to the peaks of the multiply-add unit and of the memory.
bool run_calls(const Settings& settings, const WorkloadFile& file, Report& report);
/// The peaks themselves.
bool run_peaks(const Settings& settings, Report& report);
/// A few workloads of each instruction set: false if one has fallen below its floor.
bool run_gate(const WorkloadFile& file, Report& report);
/// Each kernel alone, the sum of the kernels, and what a whole call makes of them.
bool run_kernels(const Settings& settings, Report& report);
/// attention_statistics() and its backward, in units of the call of attention beside them.
bool run_statistics(const Settings& settings, Report& report);
/// Calls of linear_attention(), beside dense products, a read and a write of the states, and time against length.
bool run_linear(const Settings& settings, Report& report);
/// Layers that mix tokens, against the length.
bool run_mixers(const Settings& settings, Report& report);
/// Attention with lists of key blocks, beside that of all pairs, and on a long text.
bool run_sparse(const Settings& settings, Report& report);
/// Products of layers, beside oneDNN, a plain read of the weights, and the peak of the unit that multiplies.
bool run_products(const Settings& settings, Report& report);
/// Products with weights of 8 and 4 bits, beside float32, oneDNN's int8 and a plain read of the weights.
bool run_quantized(const Settings& settings, Report& report);
/// Trains a model of two layers in which an induction head forms.
bool run_induction(const Settings& settings, Report& report);

}  // namespace bench
