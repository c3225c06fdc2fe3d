// Layers that ranks share, on the tape: sums and concatenations over the ranks, and what is computed between them.
#include "attn/autograd_ranks.h"

#include <cmath>
#include <cstring>

#include "autograd/wide.h"

namespace attn::autograd {
namespace {

Array copy_of(const Tape& tape, const Array& x, DType dtype) {
  const Array copy = tape.array(dtype, x.shape());
  ops::convert(x.flat(), copy.flat());
  return copy;
}

void check_rows_of(const char* operation, const Value& x) {
  Checker checker(operation);
  if (require_rows(checker, "x", x)) require_floating(checker, "x", x);
  checker.done();
}

/// sum += bias in each row, and residual.
void add_terms(const Tape& tape, const Array& sum, const Value& bias, const Value& residual) {
  if (bias) {
    with_wide(sum.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t C = sum.width();
      const T* const terms = elements<T>(bias.data());
      for_ranges(sum.count() / C, C, [&](int64_t begin, int64_t end) {
        for (T* row = elements<T>(sum) + begin * C; begin < end; ++begin, row += C)
          for (int64_t c = 0; c < C; ++c) row[c] += terms[c];
      });
    });
  }
  if (residual) ops::add(sum.flat(), widened(tape, residual.data()).flat(), sum.flat());
}

}  // namespace

Value shared_input(Tape& tape, const Value& x, cluster::Communicator& ranks) {
  check_rows_of("shared_input", x);
  Value y = tape.result("shared_input", x.data(), {x});
  tape.record(y, [=, &tape, &ranks] {
    const Array sum = copy_of(tape, y.gradient(), wide_type(x.dtype()));
    cluster::all_reduce(ranks, sum.flat());
    tape.add_gradient(x, narrowed(tape, sum, x.dtype()));
  });
  return y;
}

Value sum_over_ranks(Tape& tape, const Value& x, cluster::Communicator& ranks, DType output, const Value& bias,
                     const Value& residual) {
  check_rows_of("sum_over_ranks", x);
  Checker checker("sum_over_ranks");
  if (bias && require_vector(checker, "bias", bias, x.data().width()))
    require_same_type(checker, "bias", bias, wide_type(x.dtype()));
  if (residual && (residual.shape() != x.shape() || residual.dtype() != output))
    refuse_form(checker, "residual", residual, "of the shape of x and the type of the result");
  checker.done();
  const Array sum = copy_of(tape, x.data(), wide_type(x.dtype()));
  cluster::all_reduce(ranks, sum.flat());
  add_terms(tape, sum, bias, residual);
  Value y = tape.result("sum_over_ranks", narrowed(tape, sum, output), {x, bias, residual});
  tape.record(y, [=, &tape] {
    const Array& dy = y.gradient();
    if (residual.wants_gradient()) tape.add_gradient(residual, dy);
    if (bias.wants_gradient()) ops::add_rows(dy.rows(), tape.gradient_memory(bias).vector());
    if (x.wants_gradient()) tape.add_gradient(x, copy_of(tape, dy, x.dtype()));
  });
  return y;
}

Value embedding_over_ranks(Tape& tape, std::span<const int64_t> ids, const Value& table, int64_t first,
                           std::vector<int64_t> shape, cluster::Communicator& ranks) {
  Checker checker("embedding_over_ranks");
  require_rank(checker, "table", table, 2, "[V, C]");
  checker.done();
  std::vector<int64_t> rows, own;  // where this rank has the row, and which of its table
  for (int64_t r = 0; r < std::ssize(ids); ++r) {
    const int64_t row = ids[static_cast<size_t>(r)] - first;
    if (row < 0 || row >= table.shape()[0]) continue;
    rows.push_back(r);
    own.push_back(row);
  }
  const int64_t C = table.data().width();
  shape.push_back(C);
  const Array found(table.dtype(), {std::ssize(own), C}, false);
  if (table.is_freed()) ops::embedding(own, table.packed(), found.rows());
  else ops::embedding(own, table.data().rows(), found.rows());
  const Array all(table.dtype(), shape);
  const int64_t bytes = C * size_of(table.dtype());
  const auto move_rows = [rows, bytes](const Array& compact, const Array& whole, bool out) {
    for (size_t n = 0; n < rows.size(); ++n) {
      char *a = static_cast<char*>(compact.data()) + static_cast<int64_t>(n) * bytes,
           *b = static_cast<char*>(whole.data()) + rows[n] * bytes;
      std::memcpy(out ? b : a, out ? a : b, static_cast<size_t>(bytes));
    }
  };
  move_rows(found, all, true);
  const Array sum = copy_of(tape, all, wide_type(table.dtype()));
  cluster::all_reduce(ranks, sum.flat());
  Value y = tape.result("embedding_over_ranks", narrowed(tape, sum, table.dtype()), {table});
  tape.record(y, [=, &tape, own = std::move(own)] {
    const Array compact(y.dtype(), {std::ssize(own), C}, false);
    move_rows(compact, y.gradient(), false);
    ops::embedding_backward(own, compact.rows(), tape.gradient_memory(table).rows());
  });
  return y;
}

Value gather_columns(Tape& tape, const Value& x, cluster::Communicator& ranks) {
  check_rows_of("gather_columns", x);
  const int64_t C = x.data().width(), element = size_of(x.dtype()), R = C == 0 ? 0 : x.data().count() / C;
  const std::vector<std::string> parts =
      cluster::gather(ranks, {static_cast<const char*>(x.data().data()), static_cast<size_t>(R * C * element)});
  std::vector<int64_t> widths;
  int64_t whole = 0, first = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    widths.push_back(R == 0 ? C : std::ssize(parts[static_cast<size_t>(rank)]) / (R * element));
    if (rank < ranks.rank()) first += widths.back();
    whole += widths.back();
  }
  std::vector<int64_t> shape = x.shape();
  shape.back() = whole;
  const Array data = tape.array(x.dtype(), shape);
  char* to = static_cast<char*>(data.data());
  for (int64_t r = 0; r < R; ++r)
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const int64_t bytes = widths[rank] * element;
      std::memcpy(to, parts[rank].data() + r * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
  Value y = tape.result("gather_columns", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::convert(y.gradient().rows().slice(1, first, first + C), dx.rows());
    tape.add_gradient(x, dx);
  });
  return y;
}

namespace {

/// body(x, y, weight, n, count) for the `count` columns of each part p of each row r, n = r P + p.
template <class T, class Body>
void for_parts(const Array& x, const Array& y, const std::vector<SharedColumns>& parts, const Body& body) {
  const int64_t C = x.width(), P = std::ssize(parts);
  for_ranges(x.count() / C, C, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t p = 0; p < P; ++p) {
        const int64_t at = r * C + parts[p].first;
        body(elements<T>(x) + at, elements<T>(y) + at, elements<T>(parts[p].weight.data()), r * P + p,
             parts[p].weight.data().count());
      }
  });
}

/// term(part, x, other, weight) of each column, added up over the columns of all ranks: [R, parts].
template <class T, class Term>
Array sums_of_rows(const Array& x, const Array& other, const std::vector<SharedColumns>& parts,
                   cluster::Communicator& ranks, const Term& term) {
  const Array sums(DType::float64, {x.count() / x.width(), std::ssize(parts)});
  for_parts<T>(x, other, parts, [&](const T* a, const T* b, const T* w, int64_t n, int64_t count) {
    double sum = 0;
    for (int64_t c = 0; c < count; ++c) sum += term(parts[n % std::ssize(parts)], a[c], b[c], w[c]);
    elements<double>(sums)[n] = sum;
  });
  cluster::all_reduce(ranks, sums.flat());
  return sums;
}

/// From the sums of squares.
Array reciprocal_roots(const Array& sums, const std::vector<SharedColumns>& parts, double epsilon) {
  const Array roots(DType::float64, sums.shape(), false);
  for (int64_t n = 0; n < sums.count(); ++n) {
    const auto whole = static_cast<double>(parts[n % std::ssize(parts)].whole);
    elements<double>(roots)[n] = 1 / std::sqrt(elements<double>(sums)[n] / whole + epsilon);
  }
  return roots;
}

/// What rms_norm_over_ranks() computes, in float32 or float64.
template <class T>
struct RowNorm {
  const std::vector<SharedColumns>& parts;
  cluster::Communicator& ranks;

  /// Returns the reciprocal roots [R, parts]. y begins as x.
  Array forward(const Array& x, double epsilon, const Array& y) const {
    const auto square = [](const SharedColumns& part, double a, double, double) { return part.counts ? a * a : 0; };
    const Array roots = reciprocal_roots(sums_of_rows<T>(x, x, parts, ranks, square), parts, epsilon);
    for_parts<T>(x, y, parts, [&](const T* from, T* to, const T* w, int64_t n, int64_t count) {
      const double root = elements<double>(roots)[n];
      for (int64_t c = 0; c < count; ++c) to[c] = static_cast<T>(from[c] * root * w[c]);
    });
    return roots;
  }

  /// dx begins as dy. The term of the roots counts once where several ranks have the same columns.
  void backward(const Array& x, const Array& roots, const Array& dy, const Array& dx) const {
    const auto product = [](const SharedColumns&, double a, double b, double w) { return a * b * w; };
    const Array sums = sums_of_rows<T>(x, dy, parts, ranks, product);
    for_parts<T>(x, dx, parts, [&](const T* from, T* to, const T* w, int64_t n, int64_t count) {
      const SharedColumns& part = parts[n % std::ssize(parts)];
      const double root = elements<double>(roots)[n];
      const double shift = part.counts ? root * root * root * elements<double>(sums)[n] / double(part.whole) : 0;
      for (int64_t c = 0; c < count; ++c) to[c] = static_cast<T>(to[c] * root * w[c] - from[c] * shift);
    });
  }

  void weight_gradient(size_t p, const Array& x, const Array& roots, const Array& dy, const Array& to) const {
    const int64_t C = x.width(), P = std::ssize(parts), R = x.count() / C;
    for_ranges(to.count(), R, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < R; ++r) {
          const int64_t at = r * C + parts[p].first + c;
          sum += double(elements<T>(dy)[at]) * elements<T>(x)[at] * elements<double>(roots)[r * P + int64_t(p)];
        }
        elements<T>(to)[c] = static_cast<T>(sum);
      }
    });
  }
};

}  // namespace

Value rms_norm_over_ranks(Tape& tape, const Value& x, std::vector<SharedColumns> parts, double epsilon,
                          cluster::Communicator& ranks) {
  check_rows_of("rms_norm_over_ranks", x);
  const DType type = wide_type(x.dtype());
  Checker checker("rms_norm_over_ranks");
  for (const SharedColumns& part : parts) {
    if (!require_value(checker, "weight", part.weight)) continue;
    require_same_type(checker, "weight", part.weight, type);
    const int64_t count = part.weight.data().count();
    checker.require(part.first >= 0 && part.first + count <= x.data().width() && count <= part.whole,
                    [&] { return "a part is not inside x, " + x.data().describe(); });
  }
  checker.done();
  const Array wide = widened(tape, x.data()), y_wide = copy_of(tape, x.data(), type);
  Array roots;
  with_wide(type, [&](auto zero) { roots = RowNorm<decltype(zero)>{parts, ranks}.forward(wide, epsilon, y_wide); });
  Value y = tape.result("rms_norm_over_ranks", narrowed(tape, y_wide, x.dtype()), {x});
  tape.record(y, [=, &tape, &ranks, parts = std::move(parts)] {
    const Array from = widened(tape, x.data()), dy = widened(tape, y.gradient()), dx = copy_of(tape, dy, type);
    with_wide(type, [&](auto zero) {
      const RowNorm<decltype(zero)> norm{parts, ranks};
      norm.backward(from, roots, dy, dx);
      for (size_t p = 0; p < parts.size(); ++p) {
        if (!parts[p].weight.wants_gradient()) continue;
        const Array dweight = tape.array(type, parts[p].weight.shape());
        norm.weight_gradient(p, from, roots, dy, dweight);
        tape.add_gradient(parts[p].weight, dweight);
      }
    });
    tape.add_gradient(x, narrowed(tape, dx, x.dtype()));
  });
  return y;
}

namespace {

/// Rows of logits whose columns ranks share.
struct SharedRows {
  std::vector<int64_t> targets;  // among the columns of this rank; kIgnoreIndex also where another rank has the target
  std::vector<bool> counts;      // false where the target is ignored by all
  std::vector<double> weights;
  double total = 0;  // of the weights that count

  SharedRows(const std::vector<int64_t>& of_all, std::vector<double> given, int64_t first, int64_t columns)
      : weights(std::move(given)) {
    if (weights.empty()) weights.assign(of_all.size(), 1);
    for (size_t r = 0; r < of_all.size(); ++r) {
      const int64_t own = of_all[r] - first;
      counts.push_back(of_all[r] != ops::kIgnoreIndex);
      targets.push_back(counts[r] && own >= 0 && own < columns ? own : ops::kIgnoreIndex);
      if (counts[r]) total += weights[r];
    }
  }
};

/// Makes lse that of the columns of all ranks. Returns the mean of the losses.
double join_columns(const SharedRows& rows, const Array& losses, const Array& lse, cluster::Communicator& ranks) {
  const size_t R = rows.targets.size();
  // Of each row: its lse; and on the rank that has the target's logit that logit and 1, on the others 0.
  std::vector<double> mine;
  for (size_t r = 0; r < R; ++r) {
    const auto n = static_cast<int64_t>(r);
    const bool has_target = rows.targets[r] != ops::kIgnoreIndex;
    mine.insert(mine.end(), {lse.number(n), has_target ? lse.number(n) - losses.number(n) : 0, double(has_target)});
  }
  const std::vector<std::vector<double>> all = cluster::gather(ranks, mine);
  double loss = 0;
  std::vector<double> joint;
  for (size_t r = 0; r < R; ++r) {
    double largest = all[0][3 * r], sum = 0, taken = 0, owners = 0;
    for (const std::vector<double>& rank : all) largest = std::max(largest, rank[3 * r]);
    for (const std::vector<double>& rank : all) {
      sum += std::exp(rank[3 * r] - largest);
      taken += rank[3 * r + 1];
      owners += rank[3 * r + 2];
    }
    if (rows.counts[r] && owners != 1)
      throw Error("cross_entropy_over_ranks", {"targets[" + std::to_string(r) + "] is in the columns of " +
                                               std::to_string(static_cast<int>(owners)) + " ranks, must be of one"});
    joint.push_back(largest + std::log(sum));
    if (rows.counts[r]) loss += rows.weights[r] * (joint[r] - taken);
  }
  ops::convert(View<2>(joint.data(), {1, static_cast<int64_t>(R)}), lse.flat());
  return rows.total > 0 ? loss / rows.total : 0;
}

/// factor weights[r] (softmax(logits) - onehot(targets)) in the columns of this rank.
template <class T>
void shared_gradient(const SharedRows& rows, const Array& logits, const Array& lse, double factor, const Array& to) {
  std::vector<int64_t> targets = rows.targets;
  for (size_t r = 0; r < targets.size(); ++r)
    if (rows.counts[r] && targets[r] == ops::kIgnoreIndex) targets[r] = 0;  // of which 1 is not subtracted, see below
  ops::cross_entropy_backward(logits.rows(), targets, lse.vector(), factor, to.rows(), rows.weights);
  const int64_t C = logits.width();
  for (size_t r = 0; r < targets.size(); ++r) {
    if (!rows.counts[r] || rows.targets[r] != ops::kIgnoreIndex) continue;
    const int64_t at = static_cast<int64_t>(r) * C;
    elements<T>(to)[at] =
        static_cast<T>(factor * rows.weights[r] * std::exp(logits.number(at) - lse.number(static_cast<int64_t>(r))));
  }
}

}  // namespace

Value cross_entropy_over_ranks(Tape& tape, const Value& logits, const std::vector<int64_t>& targets,
                               std::vector<double> weights, int64_t first, cluster::Communicator& ranks) {
  Checker checker("cross_entropy_over_ranks");
  if (require_rows(checker, "logits", logits)) {
    require_same_type(checker, "logits", logits, wide_type(logits.dtype()));
    const int64_t rows = logits.data().rows().size[0];
    checker.require(std::ssize(targets) == rows && (weights.empty() || std::ssize(weights) == rows), [&] {
      return "there are " + std::to_string(targets.size()) + " targets and " + std::to_string(weights.size()) +
             " weights for " + std::to_string(rows) + " rows";
    });
  }
  checker.done();
  const DType type = logits.dtype();
  const SharedRows rows(targets, std::move(weights), first, logits.data().width());
  const Array losses = tape.array(type, {std::ssize(targets)}), lse = tape.array(type, {std::ssize(targets)});
  ops::cross_entropy(logits.data().rows(), rows.targets, losses.vector(), lse.vector());
  const std::vector<double> mean = {join_columns(rows, losses, lse, ranks)};
  const Array data = tape.array(type, {1});
  ops::convert(Array(mean, {1}).flat(), data.flat());
  Value y = tape.result("cross_entropy", data, {logits});
  tape.record(y, [=, &tape] {
    if (rows.total == 0) return;
    const Array dlogits = tape.array(type, logits.shape());
    const double factor = y.gradient().number(0) / rows.total;
    with_wide(type, [&](auto zero) { shared_gradient<decltype(zero)>(rows, logits.data(), lse, factor, dlogits); });
    tape.add_gradient(logits, dlogits);
  });
  return y;
}

}  // namespace attn::autograd
