// Accuracy, F1, correlations and F1 of spans.
#include "attn/train_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/checker.h"

namespace attn::train {
namespace {

void check(Metric metric, const Predictions& given) {
  const bool of_numbers = metric == Metric::pearson || metric == Metric::spearman;
  Checker checker("metric");
  const auto require_pairs = [&](const char* what, size_t expected, size_t predicted) {
    checker.require(expected == predicted && expected > 0, [&] {
      return std::string(name_of(metric)) + " needs as many predicted as expected " + what + ", at least one, not " +
             std::to_string(predicted) + " and " + std::to_string(expected);
    });
  };
  if (of_numbers) require_pairs("numbers", given.expected_values.size(), given.predicted_values.size());
  else if (metric != Metric::loss) require_pairs("classes", given.expected.size(), given.predicted.size());
  if (metric == Metric::f1)
    for (const auto* classes : {&given.expected, &given.predicted})
      checker.require(std::all_of(classes->begin(), classes->end(), [](int64_t c) { return c == 0 || c == 1; }),
                      "f1 is for two classes; macro_f1 is for any number of them");
  checker.done();
}

double accuracy(const Predictions& given) {
  int64_t right = 0;
  for (size_t n = 0; n < given.expected.size(); ++n) right += given.expected[n] == given.predicted[n];
  return static_cast<double>(right) / static_cast<double>(given.expected.size());
}

double harmonic(int64_t right, int64_t expected, int64_t predicted) {
  return expected + predicted == 0 ? 0 : 2 * static_cast<double>(right) / static_cast<double>(expected + predicted);
}

double macro_f1(const Predictions& given) {
  std::set<int64_t> classes(given.expected.begin(), given.expected.end());
  classes.insert(given.predicted.begin(), given.predicted.end());
  double sum = 0;
  for (const int64_t each : classes) sum += f1_of_class(given, each).value_or(0);
  return sum / static_cast<double>(classes.size());
}

/// Of one-hot vectors: cov(expected, predicted) / sqrt(cov(expected, expected) cov(predicted, predicted)).
double matthews(const Predictions& given) {
  std::map<int64_t, double> expected, predicted;
  double right = 0;
  const auto n = static_cast<double>(given.expected.size());
  for (size_t r = 0; r < given.expected.size(); ++r) {
    ++expected[given.expected[r]];
    ++predicted[given.predicted[r]];
    right += given.expected[r] == given.predicted[r];
  }
  double both = 0, squares_expected = 0, squares_predicted = 0;
  for (const auto& [label, count] : expected) {
    squares_expected += count * count;
    both += count * (predicted.contains(label) ? predicted.at(label) : 0);
  }
  for (const auto& [label, count] : predicted) squares_predicted += count * count;
  const double variance = (n * n - squares_expected) * (n * n - squares_predicted);
  return variance > 0 ? (right * n - both) / std::sqrt(variance) : 0;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double both = 0, of_a = 0, of_b = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    both += (a[r] - mean_a) * (b[r] - mean_b);
    of_a += (a[r] - mean_a) * (a[r] - mean_a);
    of_b += (b[r] - mean_b) * (b[r] - mean_b);
  }
  return of_a > 0 && of_b > 0 ? both / std::sqrt(of_a * of_b) : 0;
}

/// The place of each number in their order; equal numbers have the mean of their places.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> result(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last + 1 < order.size() && values[order[last + 1]] == values[order[first]]) ++last;
    for (size_t n = first; n <= last; ++n) result[order[n]] = static_cast<double>(first + last) / 2;
    first = last + 1;
  }
  return result;
}

/// A label as "B-PER": its letter and its type.
struct SpanLabel {
  char letter = 'O';
  std::string type = {};
};

SpanLabel span_label(const std::string& label) {
  if (label == "O") return {};
  const bool has_prefix =
      label.size() > 2 && label[1] == '-' && std::string("BIES").find(label[0]) != std::string::npos;
  if (!has_prefix)
    throw Error("metric", {"span_f1 needs the labels O and B-, I-, E- or S- with a type, not " + label +
                           "; accuracy and macro_f1 are for others"});
  return {label[0], label.substr(2)};
}

bool ends_before(const SpanLabel& last, const SpanLabel& next) {
  if (last.letter == 'O') return false;
  return last.letter == 'E' || last.letter == 'S' || next.letter == 'B' || next.letter == 'S' || next.letter == 'O' ||
         last.type != next.type;
}

bool begins_at(const SpanLabel& last, const SpanLabel& next) {
  if (next.letter == 'O') return false;
  return next.letter == 'B' || next.letter == 'S' || last.letter == 'E' || last.letter == 'S' || last.letter == 'O' ||
         last.type != next.type;
}

using Span = std::tuple<int64_t, int64_t, std::string>;  // first, last, type

/// The spans of a list of labels; none crosses the end of a text.
std::set<Span> spans_of(const std::vector<int64_t>& classes, const std::vector<int64_t>& ends,
                        const std::vector<SpanLabel>& parts) {
  std::set<Span> spans;
  size_t text = 0;
  int64_t first = 0;
  SpanLabel last;
  const auto close = [&](int64_t n, const SpanLabel& next) {
    if (ends_before(last, next)) spans.emplace(first, n - 1, last.type);
  };
  for (int64_t n = 0; n < std::ssize(classes); ++n) {
    if (text < ends.size() && n == ends[text]) {
      close(n, {});
      last = {};
      while (text < ends.size() && n == ends[text]) ++text;
    }
    const SpanLabel& next = parts[static_cast<size_t>(classes[static_cast<size_t>(n)])];
    close(n, next);
    if (begins_at(last, next)) first = n;
    last = next;
  }
  close(std::ssize(classes), {});
  return spans;
}

double span_f1(const Predictions& given, std::span<const std::string> labels) {
  std::vector<SpanLabel> parts;
  for (const std::string& label : labels) parts.push_back(span_label(label));
  for (const auto* classes : {&given.expected, &given.predicted})
    for (const int64_t each : *classes)
      if (each < 0 || each >= std::ssize(parts))
        throw Error("metric",
                    {"class " + std::to_string(each) + " has no label; there are " + std::to_string(parts.size())});
  const std::set<Span> expected = spans_of(given.expected, given.ends, parts),
                       predicted = spans_of(given.predicted, given.ends, parts);
  const auto right =
      std::count_if(predicted.begin(), predicted.end(), [&](const Span& span) { return expected.contains(span); });
  return harmonic(right, std::ssize(expected), std::ssize(predicted));
}

}  // namespace

std::optional<double> f1_of_class(const Predictions& predictions, int64_t label) {
  int64_t right = 0, expected = 0, predicted = 0;
  for (size_t n = 0; n < std::min(predictions.expected.size(), predictions.predicted.size()); ++n) {
    expected += predictions.expected[n] == label;
    predicted += predictions.predicted[n] == label;
    right += predictions.expected[n] == label && predictions.predicted[n] == label;
  }
  if (expected + predicted == 0) return {};
  return harmonic(right, expected, predicted);
}

double metric_value(Metric metric, const Predictions& predictions, std::span<const std::string> labels) {
  check(metric, predictions);
  switch (metric) {
    case Metric::loss: return predictions.loss;
    case Metric::accuracy: return accuracy(predictions);
    case Metric::f1: return f1_of_class(predictions, 1).value_or(0);
    case Metric::macro_f1: return macro_f1(predictions);
    case Metric::matthews: return matthews(predictions);
    case Metric::pearson: return correlation(predictions.expected_values, predictions.predicted_values);
    case Metric::spearman: return correlation(ranks(predictions.expected_values), ranks(predictions.predicted_values));
    case Metric::span_f1: return span_f1(predictions, labels);
  }
  throw Error("metric", {"there is no metric " + std::to_string(static_cast<int>(metric))});
}

}  // namespace attn::train
