// The layers without attention, and the block that joins both.
#include <algorithm>
#include <cmath>

#include "attn/autograd_operations.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

/// What a slice of rows has of the rows first .. first + count - 1, which are numbered from 0 then.
Slice part_of_rows(const Slice& slice, int64_t first, int64_t count) {
  Slice part = {.axis = 0, .is_first = slice.is_first};
  for (const IndexRange& range : slice.ranges) {
    const IndexRange own = {std::max(range.begin - first, int64_t{0}), std::min(range.end - first, count)};
    if (own.count() > 0) part.ranges.push_back(own);
  }
  if (slice.repeated_from && *slice.repeated_from < first + count)
    part.repeated_from = std::max(*slice.repeated_from - first, int64_t{0});
  return part;
}

}  // namespace

Linear::Linear(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options) : Layer("Linear", scope) {
  Checker checker(name());
  check_extent(checker, "", "in", in);
  check_extent(checker, "", "out", out);
  checker.done();
  const bool sums = options.slice.axis == 1;
  if (sums && !options.slice.ranges.empty()) summed_over_ = scope.tensor_ranks();
  weight = scope.variable("weight", {out, in}, options.residual ? ParameterRole::residual : ParameterRole::linear,
                          options.slice);
  if (options.bias) bias = scope.variable("bias", {out}, ParameterRole::bias, sums ? Slice() : options.slice);
  if (scope.lora().rank > 0) make_adapters(scope, in, out, options);
}

/// Where ranks share the layer, B has this rank's outputs and A all inputs, or A this rank's inputs and B all outputs.
/// The matrix that all ranks have gets a part of its gradient on each.
void Linear::make_adapters(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options) {
  lora_ = scope.lora();
  const bool sums = options.slice.axis == 1;
  const Slice of_all = {.repeated_from = options.slice.ranges.empty() ? std::nullopt : std::optional<int64_t>(0)};
  const auto is_target = [&](std::string_view part) {
    return std::find(lora_.targets.begin(), lora_.targets.end(), part) != lora_.targets.end();
  };
  int64_t first = 0, first_here = 0;  // of a part's outputs: of all, and of those of this rank
  const auto add = [&](const Scope& at, int64_t width, const Slice& outputs) {
    adapters.push_back({first_here,
                        at.variable("a", {lora_.rank, in}, ParameterRole::adapter_in, sums ? options.slice : of_all),
                        at.variable("b", {width, lora_.rank}, ParameterRole::adapter_out, sums ? of_all : outputs)});
  };
  for (const LinearPart& part : options.parts) {
    const Slice outputs = part_of_rows(options.slice, first, part.width);
    if (is_target(part.name)) add(scope / "lora" / part.name, part.width, outputs);
    first += part.width;
    first_here += outputs.shape_of({part.width})[0];
  }
  std::string whole = scope.name().substr(scope.name().rfind('.') + 1), joined;
  for (const LinearPart& part : options.parts) joined += (joined.empty() ? "" : "_") + std::string(part.name);
  for (const LinearPart& part : options.parts)
    if (part.name == whole) whole = joined;
  first_here = 0;
  if (adapters.empty() && is_target(whole)) add(scope / "lora", out, options.slice);
}

/// x A^T, times the scale.
Value Linear::low_rank(Tape& tape, const Value& x, const Adapter& adapter) const {
  return scale(tape, linear(tape, x, adapter.a, {}), lora_.scale());
}

/// What the adapters add to the layer's result, and the residual.
Value Linear::update(Tape& tape, const Value& x, const Value& residual) const {
  const Tape::NameScope scope(tape, "lora");
  const Value seen = dropout(tape, x, lora_.dropout);
  const int64_t out = weight.shape()[0];
  if (const Adapter& only = adapters.front(); only.b.shape()[0] == out)
    return residual ? add_linear(tape, residual, low_rank(tape, seen, only), only.b, {})
                    : linear(tape, low_rank(tape, seen, only), only.b, {});
  std::vector<Value> parts;
  int64_t end = 0;
  const auto skip_to = [&](int64_t next) {
    std::vector<int64_t> shape = x.shape();
    shape.back() = next - end;
    if (next > end) parts.emplace_back(Array(x.dtype(), std::move(shape)));
  };
  for (const Adapter& adapter : adapters) {
    skip_to(adapter.first);
    parts.push_back(linear(tape, low_rank(tape, seen, adapter), adapter.b, {}));
    end = adapter.first + adapter.b.shape()[0];
  }
  skip_to(out);
  const Value all = concat(tape, parts, static_cast<int64_t>(x.shape().size()) - 1);
  return residual ? add(tape, residual, all) : all;
}

/// What this rank adds to the sum over ranks.
Value Linear::part_of_sum(Tape& tape, const Value& x) const {
  const DType wide = dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Value products = linear(tape, x, weight, {}, wide);
  if (adapters.empty()) return products;
  const Tape::NameScope scope(tape, "lora");
  const Adapter& only = adapters.front();  // a layer whose inputs ranks share has no parts
  const Value reduced = low_rank(tape, dropout(tape, x, lora_.dropout), only);
  return add(tape, products, linear(tape, reduced, only.b, {}, wide));
}

Value Linear::operator()(Tape& tape, const Value& x, const Value& residual) const {
  Checker checker(name());
  if (check_made(checker, weight)) check_rows(checker, "x", x, weight.shape()[1], dtype(), true);
  checker.done();
  const Tape::NameScope scope(tape, short_name());
  if (summed_over_) return sum_over_ranks(tape, part_of_sum(tape, x), *summed_over_, dtype(), bias, residual);
  const Value onto = adapters.empty() ? residual : update(tape, x, residual);
  return onto ? add_linear(tape, onto, x, weight, bias) : linear(tape, x, weight, bias);
}

Embedding::Embedding(const Scope& scope, int64_t tokens, int64_t width, const EmbeddingOptions& options_)
    : Layer("Embedding", scope), options(options_) {
  Checker checker(name());
  check_extent(checker, "", "tokens", tokens);
  check_extent(checker, "", "width", width);
  checker.require(std::isfinite(options.scale),
                  [&] { return "scale is " + std::to_string(options.scale) + ", must be finite"; });
  checker.done();
  Slice slice;
  tokens_ = tokens;
  if (options.shared && scope.tensor_ranks()) {
    ranks_ = scope.tensor_ranks();
    slice.ranges = {share_of(tokens, *ranks_)};
  }
  weight = scope.variable("weight", {tokens, width}, ParameterRole::embedding, slice);
}

Value Embedding::operator()(Tape& tape, std::vector<int64_t> ids, std::vector<int64_t> shape) const {
  Checker checker(name());
  if (check_made(checker, weight)) {
    int64_t count = 1;
    bool fits = true;
    for (const int64_t extent : shape) fits = fits && extent >= 0 && !__builtin_mul_overflow(count, extent, &count);
    checker.require(fits && count == static_cast<int64_t>(ids.size()), [&] {
      return "there are " + std::to_string(ids.size()) + " ids, must be as many as the elements of " + shape_of(shape);
    });
    const auto outside = std::find_if(ids.begin(), ids.end(), [&](int64_t id) { return id < 0 || id >= tokens_; });
    checker.require(outside == ids.end(), [&] {
      return "ids[" + std::to_string(outside - ids.begin()) + "] is " + std::to_string(*outside) + ", must be in [0, " +
             std::to_string(tokens_) + ")";
    });
  }
  checker.done();
  const Value rows =
      !ranks_ ? embedding(tape, std::move(ids), weight, std::move(shape))
              : embedding_over_ranks(tape, ids, weight, share_of(tokens_, *ranks_).begin, std::move(shape), *ranks_);
  return scale(tape, rows, options.scale);
}

Norm::Norm(const Scope& scope, int64_t width, const NormOptions& options_) : Layer("Norm", scope), options(options_) {
  Checker checker(name());
  check_options(checker, "", width, options);
  checker.done();
  weight = scope.variable("weight", {width}, ParameterRole::scale);
  if (options.bias && !options.rms) bias = scope.variable("bias", {width}, ParameterRole::bias);
}

Value Norm::operator()(Tape& tape, const Value& x) const {
  Checker checker(name());
  if (check_made(checker, weight)) check_rows(checker, "x", x, weight.shape()[0], dtype(), true);
  checker.done();
  const Tape::NameScope scope(tape, short_name());
  return options.rms ? rms_norm(tape, x, weight, options.epsilon) : layer_norm(tape, x, weight, bias, options.epsilon);
}

FeedForward::FeedForward(const Scope& scope, int64_t width, const FeedForwardOptions& options_)
    : Layer("FeedForward", scope), options(options_) {
  Checker checker(name());
  check_options(checker, "", width, options);
  checker.done();
  const int64_t hidden = options.hidden_dim ? options.hidden_dim : 4 * width;
  std::vector<LinearPart> parts;
  if (options.gated) parts = {{"gate", hidden}, {"up", hidden}};
  Slice outputs = {.axis = 0}, inputs = {.axis = 1};
  if ((ranks_ = scope.tensor_ranks())) {
    const IndexRange own = share_of(hidden, *ranks_);
    inputs.ranges = outputs.ranges = {own};
    if (options.gated) outputs.ranges.push_back({hidden + own.begin, hidden + own.end});
  }
  up = Linear(scope / "up", width, options.gated ? 2 * hidden : hidden,
              {.bias = options.bias, .parts = parts, .slice = outputs});
  down = Linear(scope / "down", hidden, width, {.bias = options.bias, .residual = true, .slice = inputs});
}

Value FeedForward::operator()(Tape& tape, const Value& x, const Value& residual) const {
  Checker checker(name());
  if (check_made(checker, up.weight)) check_rows(checker, "x", x, up.weight.shape()[1], dtype(), true);
  checker.done();
  const Tape::NameScope scope(tape, "feed_forward");
  const Value in = ranks_ ? shared_input(tape, x, *ranks_) : x;
  const auto activated = [&] {
    if (options.gated) return activate_gated(tape, options.activation, up(tape, in));
    if (!up.adapters.empty()) return activate(tape, options.activation, up(tape, in));
    const Tape::NameScope inner(tape, up.short_name());
    return linear_activated(tape, options.activation, in, up.weight, up.bias);
  };
  return down(tape, activated(), residual);
}

Array sinusoids(int64_t positions, int64_t width, DType dtype, int64_t first) {
  Checker checker("sinusoids");
  check_extent(checker, "", "positions", positions);
  check_extent(checker, "", "width", width);
  checker.require(is_floating(dtype),
                  [&] { return "dtype is " + std::string(name_of(dtype)) + ", must be a floating type"; });
  checker.require(first >= 0, [&] { return "first is " + std::to_string(first) + ", must not be negative"; });
  checker.done();
  Array wide(DType::float64, {positions, width}), table(dtype, {positions, width});
  std::vector<double> frequency(static_cast<size_t>(width));
  for (int64_t c = 0; c < width; ++c)
    frequency[c] = std::pow(10000, -static_cast<double>(c / 2 * 2) / static_cast<double>(width));
  parallel_for(positions, [&](int64_t p) {
    double* row = static_cast<double*>(wide.data()) + p * width;
    for (int64_t c = 0; c < width; ++c) {
      const double angle = static_cast<double>(first + p) * frequency[c];
      row[c] = c % 2 ? std::cos(angle) : std::sin(angle);
    }
  });
  ops::convert(wide.flat(), table.flat());
  return table;
}

}  // namespace attn::nn
