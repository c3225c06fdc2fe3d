// The operations of the tape, value and gradient side by side. attention() has a file of its own.
#include <algorithm>
#include <cmath>

#include "attn/ops_quantized.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

DType parameter_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

View<2> transposed(const View<2>& x) { return {x.data, x.dtype, {x.size[1], x.size[0]}, {x.stride[1], x.stride[0]}}; }

std::vector<int64_t> with_width(std::vector<int64_t> shape, int64_t width) {
  shape.back() = width;
  return shape;
}

View<1> vector_or_none(const Value& x) { return x ? x.data().vector() : View<1>(); }

}  // namespace

// --------------------------------------------------------------------------------------------------------- products

namespace {

void check_linear(const Tape& tape, const Value& x, const Value& weight, const Value& bias) {
  Checker checker("linear");
  const bool has_rows = require_rows(checker, "x", x);
  if (require_rank(checker, "weight", weight, 2, "[N, K]")) {
    if (has_rows && weight.shape()[1] != x.data().width())
      refuse_form(checker, "weight", weight, "[N, " + std::to_string(x.data().width()) + "]");
    if (bias) require_vector(checker, "bias", bias, weight.shape()[0]);
    checker.require(!weight.is_freed() || !tape.recording() || !x.wants_gradient(),
                    "a gradient of x needs the matrix of the weight, which was freed when it was packed");
  }
  checker.done();
}

/// f(x weight^T + bias + addend), of the options; gradients are the caller's.
Array multiply(Tape& tape, const Value& x, const Value& weight, const Value& bias, DType output,
               ops::MatmulOptions options = {}) {
  Array data = tape.array(output, with_width(x.shape(), weight.shape()[0]));
  options.bias = vector_or_none(bias);
  options.batch_invariant = tape.options().batch_invariant;
  if (weight.packed()) ops::matmul_packed(x.data().rows(), weight.packed(), data.rows(), options);
  else ops::matmul(x.data().rows(), transposed(weight.data().rows()), data.rows(), options);
  return data;
}

/// Passes the gradient of y = x weight^T + bias on.
void multiply_backward(Tape& tape, Array dy, const Value& x, const Value& weight, const Value& bias) {
  if (dy.dtype() != x.dtype()) {
    const Array narrow = tape.array(x.dtype(), dy.shape());
    ops::convert(dy.flat(), narrow.flat());
    dy = narrow;
  }
  bool overwrite = false;
  if (x.wants_gradient()) {
    const Array dx = tape.gradient_memory(x, &overwrite);
    ops::matmul(dy.rows(), weight.data().rows(), dx.rows(), {.accumulate = !overwrite});
  }
  if (weight.wants_gradient()) {
    const Array dweight = tape.gradient_memory(weight, &overwrite);
    ops::matmul(transposed(dy.rows()), x.data().rows(), dweight.rows(), {.accumulate = !overwrite});
  }
  if (bias.wants_gradient()) ops::add_rows(dy.rows(), tape.gradient_memory(bias).vector());
}

}  // namespace

Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias) {
  return linear(tape, x, weight, bias, x ? x.dtype() : DType::float32);
}

Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias, DType output) {
  check_linear(tape, x, weight, bias);
  Value y = tape.result("linear", multiply(tape, x, weight, bias, output), {x, weight, bias});
  tape.record(y, [=, &tape] { multiply_backward(tape, y.gradient(), x, weight, bias); });
  return y;
}

Value linear_activated(Tape& tape, ops::Activation f, const Value& x, const Value& weight, const Value& bias) {
  if (tape.recording()) return activate(tape, f, linear(tape, x, weight, bias));
  check_linear(tape, x, weight, bias);
  return tape.result("linear_activated", multiply(tape, x, weight, bias, x.dtype(), {.activation = f}), {});
}

Value add_linear(Tape& tape, const Value& residual, const Value& x, const Value& weight, const Value& bias) {
  check_linear(tape, x, weight, bias);
  Checker checker("add_linear");
  if (require_value(checker, "residual", residual)) {
    const std::vector<int64_t> shape = with_width(x.shape(), weight.shape()[0]);
    if (residual.shape() != shape || residual.dtype() != x.dtype())
      refuse_form(checker, "residual", residual,
                  std::string(name_of(x.dtype())) + " " + to_string(shape.data(), static_cast<int>(shape.size())));
  }
  checker.done();
  const Array data = multiply(tape, x, weight, bias, x.dtype(), {.addend = residual.data().rows()});
  Value y = tape.result("add_linear", data, {residual, x, weight, bias});
  tape.record(y, [=, &tape] {
    if (residual.wants_gradient()) tape.add_gradient(residual, y.gradient());
    multiply_backward(tape, y.gradient(), x, weight, bias);
  });
  return y;
}

// ------------------------------------------------------------------------------------------------------------ norms

namespace {

void check_norm(std::string_view operation, const Value& x, const Value& weight, const Value& bias) {
  Checker checker(operation);
  const bool has_rows = require_rows(checker, "x", x);
  if (has_rows) require_vector(checker, "weight", weight, x.data().width());
  else require_value(checker, "weight", weight);
  if (has_rows && bias) require_vector(checker, "bias", bias, x.data().width());
  checker.done();
}

void check_rows(std::string_view operation, const char* name, const Value& x) {
  Checker checker(operation);
  require_rows(checker, name, x);
  checker.done();
}

}  // namespace

namespace {

/// The memory to add a weight's gradient to; of a frozen weight, memory that nobody reads.
Array weight_gradient(Tape& tape, const Value& weight) {
  return weight.wants_gradient() ? tape.gradient_memory(weight) : Array(parameter_type(weight.dtype()), weight.shape());
}

}  // namespace

Value layer_norm(Tape& tape, const Value& x, const Value& weight, const Value& bias, double epsilon) {
  check_norm("layer_norm", x, weight, bias);
  Array data = tape.array(x.dtype(), x.shape());
  const int64_t rows = data.rows().size[0];
  const bool wanted = tape.recording();
  const Array mean = wanted ? tape.array(parameter_type(x.dtype()), {rows}) : Array();
  const Array rstd = wanted ? tape.array(parameter_type(x.dtype()), {rows}) : Array();
  ops::layer_norm(x.data().rows(), weight.data().vector(), vector_or_none(bias), epsilon, data.rows(),
                  wanted ? mean.vector() : View<1>(), wanted ? rstd.vector() : View<1>());
  Value y = tape.result("layer_norm", data, {x, weight, bias});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::layer_norm_backward(x.data().rows(), weight.data().vector(), mean.vector(), rstd.vector(), y.gradient().rows(),
                             dx.rows(), weight_gradient(tape, weight).vector(),
                             bias ? weight_gradient(tape, bias).vector() : View<1>());
    if (x.wants_gradient()) tape.add_gradient(x, dx);
  });
  return y;
}

Value rms_norm(Tape& tape, const Value& x, const Value& weight, double epsilon) {
  check_norm("rms_norm", x, weight, {});
  Array data = tape.array(x.dtype(), x.shape());
  const bool wanted = tape.recording();
  const Array rstd = wanted ? tape.array(parameter_type(x.dtype()), {data.rows().size[0]}) : Array();
  ops::rms_norm(x.data().rows(), weight.data().vector(), epsilon, data.rows(), wanted ? rstd.vector() : View<1>());
  Value y = tape.result("rms_norm", data, {x, weight});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::rms_norm_backward(x.data().rows(), weight.data().vector(), rstd.vector(), y.gradient().rows(), dx.rows(),
                           weight_gradient(tape, weight).vector());
    if (x.wants_gradient()) tape.add_gradient(x, dx);
  });
  return y;
}

// ------------------------------------------------------------------------------------------------------ elementwise

Value activate(Tape& tape, ops::Activation f, const Value& x) {
  check_rows("activate", "x", x);
  Array data = tape.array(x.dtype(), x.shape());
  ops::activate(f, x.data().rows(), data.rows());
  Value y = tape.result("activate", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::activate_backward(f, x.data().rows(), y.gradient().rows(), dx.rows());
    tape.add_gradient(x, dx);
  });
  return y;
}

Value activate_gated(Tape& tape, ops::Activation f, const Value& gate_up) {
  check_rows("activate_gated", "gate_up", gate_up);
  Array data = tape.array(gate_up.dtype(), with_width(gate_up.shape(), gate_up.data().width() / 2));
  ops::activate_gated(f, gate_up.data().rows(), data.rows());
  Value y = tape.result("activate_gated", data, {gate_up});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(gate_up.dtype(), gate_up.shape());
    ops::activate_gated_backward(f, gate_up.data().rows(), y.gradient().rows(), dx.rows());
    tape.add_gradient(gate_up, dx);
  });
  return y;
}

Value add(Tape& tape, const Value& a, const Value& b) {
  Checker checker("add");
  require_value(checker, "a", a);
  require_value(checker, "b", b);
  checker.done();
  if (a.shape() != b.shape()) return arithmetic(tape, "add", Arithmetic::add, a, b);
  Array data = tape.array(a.dtype(), a.shape());
  ops::add(a.data().flat(), b.data().flat(), data.flat());
  Value y = tape.result("add", data, {a, b});
  tape.record(y, [=, &tape] {
    if (a.wants_gradient()) tape.add_gradient(a, y.gradient());
    if (b.wants_gradient()) tape.add_gradient(b, y.gradient());
  });
  return y;
}

Value scale(Tape& tape, const Value& x, double factor) {
  if (factor == 1) return x;
  check_rows("scale", "x", x);
  const Array data = tape.array(x.dtype(), x.shape());
  ops::scale(x.data().rows(), factor, data.rows());
  Value y = tape.result("scale", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::scale(y.gradient().rows(), factor, dx.rows());
    tape.add_gradient(x, dx);
  });
  return y;
}

Value scale_heads(Tape& tape, const Value& x, const Value& gates) {
  Checker checker("scale_heads");
  require_rank(checker, "x", x, 3, "[B, L, C]");
  require_rank(checker, "gates", gates, 2, "[B|1, n]");
  checker.done();
  const Array data = tape.array(x.dtype(), x.shape());
  ops::scale_heads(x.data().rows(), gates.data().rows(), data.rows());
  Value y = tape.result("scale_heads", data, {x, gates});
  tape.record(y, [=, &tape] {
    if (gates.wants_gradient())
      ops::scale_heads_backward(x.data().rows(), y.gradient().rows(), tape.gradient_memory(gates).rows());
    if (!x.wants_gradient()) return;
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::scale_heads(y.gradient().rows(), gates.data().rows(), dx.rows());
    tape.add_gradient(x, dx);
  });
  return y;
}

Value dropout(Tape& tape, const Value& x, double probability) {
  Checker checker("dropout");
  require_rows(checker, "x", x);
  checker.require(probability >= 0 && probability < 1,
                  [&] { return "the probability is " + std::to_string(probability) + ", must be in [0, 1)"; });
  checker.done();
  if (!tape.training() || probability == 0) return x;
  const uint64_t seed = tape.options().seed, stream = tape.next_stream();
  Array data = tape.array(x.dtype(), x.shape());
  ops::dropout(x.data().rows(), probability, seed, stream, data.rows());
  Value y = tape.result("dropout", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::dropout(y.gradient().rows(), probability, seed, stream, dx.rows());
    tape.add_gradient(x, dx);
  });
  return y;
}

// ------------------------------------------------------------------------------------------- positions and embedding

namespace {

View<2> columns(View<2> all, int64_t first, int64_t count) {
  all.data = static_cast<char*>(all.data) + first * size_of(all.dtype);
  all.size[1] = count;
  return all;
}

/// y = x with its first heads * width columns rotated.
void rotate(const Array& x, int64_t heads, int64_t width, std::span<const int64_t> positions,
            const ops::RopeOptions& options, const Array& y) {
  const int64_t rotated = heads * width;
  ops::rope(columns(x.rows(), 0, rotated), heads, positions, columns(y.rows(), 0, rotated), options);
  const int64_t rest = x.width() - rotated;
  if (rest > 0) ops::convert(columns(x.rows(), rotated, rest), columns(y.rows(), rotated, rest));
}

}  // namespace

Value rope(Tape& tape, const Value& x, int64_t heads, int64_t width, std::vector<int64_t> positions,
           const ops::RopeOptions& options, std::vector<double> frequencies) {
  Checker checker("rope");
  if (require_rows(checker, "x", x)) {
    checker.require(heads >= 1 && width >= 1 && heads <= x.data().width() / width, [&] {
      return std::to_string(heads) + " heads of width " + std::to_string(width) + " are not inside x, " +
             x.data().describe();
    });
  }
  checker.done();
  Array data = tape.array(x.dtype(), x.shape());
  const auto turn = [=, positions = std::move(positions), frequencies = std::move(frequencies)](
                        const Array& from, bool inverse, const Array& to) {
    ops::RopeOptions direction = options;
    if (!frequencies.empty()) direction.frequencies = frequencies;
    direction.inverse = options.inverse != inverse;
    rotate(from, heads, width, positions, direction, to);
  };
  turn(x.data(), false, data);
  Value y = tape.result("rope", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    turn(y.gradient(), true, dx);
    tape.add_gradient(x, dx);
  });
  return y;
}

namespace {

/// The runs of one entry as rows: all of them, where x has one row; otherwise run(rows, n) sees them one by one.
template <class Run>
void for_each_run(const ColumnRuns& runs, const View<2>& x, const Run& run) {
  const int64_t width = runs.weight.data().count();
  if (x.size[0] == 1) {
    const View<2> first = columns(x, runs.first, width);
    return run(View<2>(first.data, first.dtype, {runs.count, width}), runs.first);
  }
  for (int64_t n = 0; n < runs.count; ++n) run(columns(x, runs.first + n * width, width), runs.first + n * width);
}

}  // namespace

Value rms_norm_columns(Tape& tape, const Value& x, std::vector<ColumnRuns> runs, double epsilon) {
  Checker checker("rms_norm_columns");
  if (require_rows(checker, "x", x)) {
    for (const ColumnRuns& run : runs)
      if (require_value(checker, "weight", run.weight))
        checker.require(
            run.first >= 0 && run.count >= 1 && run.count <= (x.data().width() - run.first) / run.weight.data().count(),
            [&] { return "the runs are not inside x, " + x.data().describe(); });
  }
  checker.done();
  Array data = tape.array(x.dtype(), x.shape());
  ops::convert(x.data().rows(), data.rows());
  for (const ColumnRuns& each : runs)
    for_each_run(each, data.rows(), [&](const View<2>& rows, int64_t) {
      ops::rms_norm(rows, each.weight.data().vector(), epsilon, rows);
    });
  Value y = tape.result("rms_norm_columns", data, {x, runs.empty() ? Value() : runs.front().weight});
  tape.record(y, [=, &tape, runs = std::move(runs)] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::convert(y.gradient().rows(), dx.rows());
    const Array rstd = tape.array(parameter_type(x.dtype()), {std::max(x.data().rows().size[0], x.data().width())});
    for (const ColumnRuns& each : runs) {
      const View<1> weight = each.weight.data().vector(), dweight = weight_gradient(tape, each.weight).vector();
      for_each_run(each, dx.rows(), [&](const View<2>& rows, int64_t first) {
        const auto same = [&](const Array& of) {
          return View<2>(static_cast<char*>(of.data()) + first * size_of(of.dtype()), rows.dtype, rows.size,
                         rows.stride);
        };
        const View<1> root(rstd.data(), rstd.dtype(), {rows.size[0]});
        ops::rms_norm(same(x.data()), weight, epsilon, rows, root);
        ops::rms_norm_backward(same(x.data()), weight, root, same(y.gradient()), rows, dweight);
      });
    }
    tape.add_gradient(x, dx);
  });
  return y;
}

Value embedding(Tape& tape, std::vector<int64_t> ids, const Value& table, std::vector<int64_t> shape) {
  Checker checker("embedding");
  if (require_rank(checker, "table", table, 2, "[V, C]"))
    checker.require(!table.is_freed() || table.packed().is_quantized(), "the table was freed when it was packed");
  const int64_t rows = count_of(shape.data(), static_cast<int>(shape.size()));
  checker.require(static_cast<int64_t>(ids.size()) == rows, [&] {
    return "there are " + std::to_string(ids.size()) + " ids for a result of " +
           to_string(shape.data(), static_cast<int>(shape.size())) + " rows";
  });
  checker.done();
  shape.push_back(table.data().width());
  Array data = tape.array(table.dtype(), std::move(shape));
  if (table.is_freed()) ops::embedding(ids, table.packed(), data.rows());
  else ops::embedding(ids, table.data().rows(), data.rows());
  Value y = tape.result("embedding", data, {table});
  tape.record(y, [=, &tape, ids = std::move(ids)] {
    ops::embedding_backward(ids, y.gradient().rows(), tape.gradient_memory(table).rows());
  });
  return y;
}

namespace {

/// Three axes, named by `form`.
void check_rank(std::string_view operation, const Value& x, const char* form) {
  Checker checker(operation);
  require_rank(checker, "x", x, 3, form);
  checker.done();
}

/// to[c][r] = from[r][c], elements of `bytes` bytes.
void transpose(const void* from, int64_t rows, int64_t columns, int64_t bytes, void* to) {
  parallel_for(columns, [&](int64_t c) {
    const char* source = static_cast<const char*>(from) + c * bytes;
    char* target = static_cast<char*>(to) + c * rows * bytes;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(source + r * columns * bytes, bytes, target + r * bytes);
  });
}

}  // namespace

Value heads_first(Tape& tape, const Value& x) {
  check_rank("heads_first", x, "[Lq, Lk, H]");
  const int64_t queries = x.shape()[0], keys = x.shape()[1], heads = x.shape()[2];
  Array data = tape.array(x.dtype(), {1, heads, queries, keys});
  transpose(x.data().data(), queries * keys, heads, size_of(x.dtype()), data.data());
  Value y = tape.result("heads_first", data, {x});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    transpose(y.gradient().data(), heads, queries * keys, size_of(x.dtype()), dx.data());
    tape.add_gradient(x, dx);
  });
  return y;
}

// ------------------------------------------------------------------------------------------------- pooling and loss

namespace {

/// One for each target, from 0 on.
void check_weights(const std::vector<double>& weights, const std::vector<int64_t>& targets) {
  if (weights.empty()) return;
  Checker checker("cross_entropy");
  checker.require(weights.size() == targets.size(), [&] {
    return "there are " + std::to_string(weights.size()) + " weights for " + std::to_string(targets.size()) +
           " targets";
  });
  const auto bad = std::find_if(weights.begin(), weights.end(), [](double w) { return !(w >= 0 && std::isfinite(w)); });
  checker.require(bad == weights.end(), [&] {
    return "weights[" + std::to_string(bad - weights.begin()) + "] is " + std::to_string(*bad) +
           ", must be finite and at least 0";
  });
  checker.done();
}

}  // namespace

Value mean_pool(Tape& tape, const Value& x, std::vector<int64_t> lengths, std::vector<int64_t> starts) {
  check_rank("mean_pool", x, "[B, L, C]");
  Array data = tape.array(x.dtype(), {starts.empty() ? x.shape().front() : std::ssize(starts), x.data().width()});
  ops::mean_pool(x.data().rows(), lengths, data.rows(), starts);
  Value y = tape.result("mean_pool", data, {x});
  tape.record(y, [=, &tape, lengths = std::move(lengths), starts = std::move(starts)] {
    const Array dx = tape.array(x.dtype(), x.shape());
    ops::mean_pool_backward(y.gradient().rows(), lengths, dx.rows(), starts);
    tape.add_gradient(x, dx);
  });
  return y;
}

Value cross_entropy(Tape& tape, const Value& logits, std::vector<int64_t> targets, std::vector<double> weights) {
  check_rows("cross_entropy", "logits", logits);
  check_weights(weights, targets);
  const DType type = parameter_type(logits.dtype());
  const int64_t rows = logits.data().rows().size[0];
  const Array each = tape.array(type, {rows}), lse = tape.array(type, {rows});
  double mean = ops::cross_entropy(logits.data().rows(), targets, each.vector(), lse.vector());
  double total = static_cast<double>(rows - std::count(targets.begin(), targets.end(), ops::kIgnoreIndex));
  if (!weights.empty()) {
    double sum = 0;
    total = 0;
    for (size_t r = 0; r < targets.size(); ++r) {
      if (targets[r] == ops::kIgnoreIndex) continue;
      sum += weights[r] * each.number(static_cast<int64_t>(r));
      total += weights[r];
    }
    mean = total > 0 ? sum / total : 0;
  }
  Array data = tape.array(type, {1});
  if (type == DType::float64) *static_cast<double*>(data.data()) = mean;
  else *static_cast<float*>(data.data()) = static_cast<float>(mean);
  Value y = tape.result("cross_entropy", data, {logits});
  tape.record(y, [=, &tape, targets = std::move(targets), weights = std::move(weights)] {
    const double dy = type == DType::float64 ? *static_cast<const double*>(y.gradient().data())
                                             : *static_cast<const float*>(y.gradient().data());
    if (total == 0) return;
    const Array dlogits = tape.array(logits.dtype(), logits.shape());
    ops::cross_entropy_backward(logits.data().rows(), targets, lse.vector(), dy / total, dlogits.rows(), weights);
    tape.add_gradient(logits, dlogits);
  });
  return y;
}

}  // namespace attn::autograd
