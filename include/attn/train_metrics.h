// train: how well predictions fit what was expected, as papers report it.
//
// ```cpp
// #include "attn/train_metrics.h"
// using namespace attn::train;
// int main() {
//   const Predictions said = {.expected = {0, 1, 1, 0}, .predicted = {0, 1, 0, 0}};
//   return metric_value(Metric::accuracy, said) == 0.75 ? 0 : 1;
// }
// ```
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/core_names.h"

#pragma GCC visibility push(default)
namespace attn::train {

enum class Metric {
  loss,      ///< the smaller the better; all others: the larger the better
  accuracy,  ///< share of right classes
  f1,        ///< of the second of two classes: the harmonic mean of precision and recall
  macro_f1,  ///< the mean of F1 over the classes that occur or were predicted
  matthews,  ///< correlation of classes (Gorodkin 2004), as in GLUE's CoLA
  pearson,   ///< correlation of numbers
  spearman,  ///< correlation of their ranks; equal numbers share a rank
  span_f1    ///< F1 of spans of a type, from labels B-, I-, E-, S- and O, as CoNLL-2000's evaluation counts them
};
constexpr auto enum_names(Metric) {
  return std::to_array<std::string_view>(
      {"loss", "accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "span_f1"});
}

/// Predictions beside what was expected: classes, numbers, or both.
struct Predictions {
  std::vector<int64_t> expected = {}, predicted = {};               ///< classes [n]
  std::vector<double> expected_values = {}, predicted_values = {};  ///< numbers [m]
  std::vector<int64_t> ends = {};  ///< for span_f1: where each text ends among the classes; rises to n
  double loss = 0;
};

/// The value of a metric. `labels` are the names of the classes, for span_f1. A correlation without variance is 0.
/// Throws Error for lists of different lengths, for predictions that the metric is not for, and for labels that are no
/// spans.
double metric_value(Metric metric, const Predictions& predictions, std::span<const std::string> labels = {});

/// F1 of a class; nothing for a class that neither occurs nor was predicted.
std::optional<double> f1_of_class(const Predictions& predictions, int64_t label);

}  // namespace attn::train
#pragma GCC visibility pop
