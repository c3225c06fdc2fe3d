// attention_statistics() on the tape, and the mean that makes a loss of it.
#include "attn/autograd_statistics.h"

#include <algorithm>
#include <numeric>

#include "autograd/attention.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

/// The columns of `array` [B, H, Lq, C] by name.
template <class Pointer>
RowStatistics<3, Pointer> columns_of(const StatisticsSelection& wanted, const Array& array) {
  const std::vector<int64_t>& n = array.shape();
  const Shape<4> stride = contiguous_strides(Shape<4>{n[0], n[1], n[2], n[3]});
  char* next = static_cast<char*>(array.data());
  const auto take = [&](int64_t columns) {
    char* first = next;
    next += columns * size_of(array.dtype());
    return first;
  };
  RowStatistics<3, Pointer> rows;
  const auto one = [&](bool is_wanted, BasicView<Pointer, 3>& view) {
    if (is_wanted) view = {take(1), array.dtype(), {n[0], n[1], n[2]}, {stride[0], stride[1], stride[2]}};
  };
  const auto several = [&](int64_t columns, BasicView<Pointer, 4>& view) {
    if (columns > 0) view = {take(columns), array.dtype(), {n[0], n[1], n[2], columns}, stride};
  };
  one(wanted.entropy, rows.entropy);
  one(wanted.participation, rows.participation);
  one(wanted.maximum, rows.maximum);
  one(wanted.distance, rows.distance);
  one(wanted.same_token, rows.same_token);
  several(static_cast<int64_t>(wanted.sets.bands.size()), rows.bands);
  several(wanted.label_sets, rows.labels);
  return rows;
}

void check_statistics(const Heads& q, const Heads& k, const Array& lse, const StatisticsSelection& wanted,
                      const Value& bias) {
  Checker checker("attention_statistics");
  if (require_value(checker, "q", q.array)) require_inside(checker, "q: ", q, q.array.data());
  if (require_value(checker, "k", k.array)) require_inside(checker, "k: ", k, k.array.data());
  checker.require(lse && lse.shape().size() == 3, "lse must be an array [B, H, Lq]");
  checker.require(wanted.label_sets >= 0,
                  [&] { return "label_sets is " + std::to_string(wanted.label_sets) + ", must not be negative"; });
  checker.require(wanted.count() > 0, "no statistic is requested");
  if (bias) require_rank(checker, "bias", bias, 4, "[B|1, H|1, Lq|1, Lk|1]");
  checker.done();
}

/// x [B, .., L, C] as blocks of L rows, of which the first ones count.
struct CountedRows {
  CountedRows(const Value& x, const std::vector<int64_t>& lengths);

  /// body(first, end) for the elements of each block that count.
  template <class Body>
  void each(const Body& body) const {
    for (size_t n = 0; n < rows.size(); ++n) {
      const int64_t first = static_cast<int64_t>(n) * length * width;
      body(first, first + rows[n] * width);
    }
  }

  std::vector<int64_t> rows;  // of each block
  int64_t length = 1, width = 1;
  int64_t count = 0;  // elements
};

CountedRows::CountedRows(const Value& x, const std::vector<int64_t>& lengths) {
  Checker checker("mean");
  require_rows(checker, "x", x);
  checker.done();
  require_floating(checker, "x", x);
  const size_t rank = x.shape().size();
  width = x.data().width();
  if (rank > 1) length = x.shape()[rank - 2];
  checker.require(lengths.empty() || (rank >= 3 && static_cast<int64_t>(lengths.size()) == x.shape()[0]), [&] {
    return "there are " + std::to_string(lengths.size()) + " lengths for x " + x.data().describe() +
           ", must be one for each sequence of [B, .., L, C]";
  });
  for (const int64_t n : lengths)
    checker.require(n >= 0 && n <= length, [&] {
      return "a length is " + std::to_string(n) + ", must be from 0 to " + std::to_string(length);
    });
  checker.done();
  if (x.data().count() > 0) rows.assign(x.data().count() / (length * width), length);
  for (size_t n = 0; n < rows.size() && !lengths.empty(); ++n) rows[n] = lengths[n * lengths.size() / rows.size()];
  count = std::accumulate(rows.begin(), rows.end(), int64_t{0}) * width;
  checker.require(count > 0, "x has no element within lengths, must have at least one");
  checker.done();
}

template <class T>
void run_mean(const CountedRows& rows, const Array& x, const Array& y) {
  double sum = 0;
  const T* from = static_cast<const T*>(x.data());
  rows.each([&](int64_t first, int64_t end) { sum = std::accumulate(from + first, from + end, sum); });
  *static_cast<T*>(y.data()) = static_cast<T>(sum / static_cast<double>(rows.count));
}

template <class T>
void run_mean_backward(const CountedRows& rows, const Array& dy, const Array& dx) {
  const double share = *static_cast<const T*>(dy.data()) / static_cast<double>(rows.count);
  T* to = static_cast<T*>(dx.data());
  rows.each([&](int64_t first, int64_t end) { std::fill(to + first, to + end, static_cast<T>(share)); });
}

}  // namespace

Value attention_statistics(Tape& tape, const Heads& q, const Heads& k, const Array& lse,
                           const StatisticsSelection& wanted, AttentionOptions options, const Value& bias,
                           const Value& sink) {
  check_statistics(q, k, lse, wanted, bias);
  const std::vector<int64_t>& rows = lse.shape();
  const LearnedScores learned(tape, bias, sink, options);
  options.dropout = 0;
  const Array data = tape.array(lse.dtype(), {rows[0], rows[1], rows[2], wanted.count()});
  const Array position = wanted.maximum ? tape.array(DType::int64, rows) : Array();
  AttentionStatistics statistics;
  statistics.rows = columns_of<void*>(wanted, data);
  statistics.sets = wanted.sets;
  if (position) statistics.argmax_key = {position.data(), DType::int64, {rows[0], rows[1], rows[2]}};
  const auto lse_view = [lse] {  // owns it
    return ConstView<3>(lse.data(), lse.dtype(), {lse.shape()[0], lse.shape()[1], lse.shape()[2]});
  };
  attn::attention_statistics(q.view(), k.view(), lse_view(), statistics, options);

  Value y = tape.result("attention_statistics", data, {q.array, k.array, bias, sink});
  tape.record(y, [=, &tape] {
    HeadGradients gradients(tape);
    AttentionGradients to;
    to.dq = gradients.of(q, covered(q, {&q, &k}));
    to.dk = gradients.of(k, covered(k, {&q, &k}));
    const LearnedScores::Gradients others = learned.gradients(tape, to);
    attention_statistics_backward(q.view(), k.view(), lse_view(), statistics,
                                  columns_of<const void*>(wanted, y.gradient()), to, options);
    gradients.hand_over();
    learned.hand_over(tape, others);
    static_cast<void>(position);  // `statistics` borrows it
  });
  return y;
}

Value mean(Tape& tape, const Value& x, const std::vector<int64_t>& lengths) {
  const CountedRows rows(x, lengths);
  const DType type = wide_type(x.dtype());
  const Array data = tape.array(type, {1});
  with_wide(type, [&](auto zero) { run_mean<decltype(zero)>(rows, widened(tape, x.data()), data); });
  Value y = tape.result("mean", data, {x});
  tape.record(y, [=, &tape] {
    Array dx = tape.array(type, x.shape());
    dx.fill_zero();
    with_wide(type, [&](auto zero) { run_mean_backward<decltype(zero)>(rows, y.gradient(), dx); });
    tape.add_gradient(x, dx);
  });
  return y;
}

}  // namespace attn::autograd
