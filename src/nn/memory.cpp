// Attention with memory: relative positions as columns of queries and keys, and the state from call to call.
#include "attn/nn_memory.h"

#include <algorithm>
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/nn.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

constexpr int64_t kMostColumns = 1024;  // of a head, in the operator

void check_memory(Checker& checker, int64_t width, const TransformerXLOptions& o) {
  check_options(checker, "", width,
                MultiHeadAttentionOptions{.heads = o.heads, .head_dim = o.head_dim, .dropout = o.dropout});
  check_extent(checker, "", "memory", o.memory);
  check_option(checker, "", "compressed_memory", o.compressed_memory);
  check_extent(checker, "", "compression_rate", o.compression_rate);
  if (!checker.ok()) return;
  const int64_t head_dim = o.head_dim ? o.head_dim : width / o.heads, R = o.position_dim ? o.position_dim : width;
  checker.require(R >= 2 && R % 2 == 0 && R <= kMostColumns - head_dim, [&] {
    return "position_dim is " + std::to_string(R) + (o.position_dim ? "" : " (the width)") +
           ", must be even and in [2, " + std::to_string(kMostColumns - head_dim) + "]: it and the " +
           std::to_string(head_dim) + " columns of a head are at most " + std::to_string(kMostColumns) + " together";
  });
}

/// y [B, L, H N], y_h = x_h W_h^T for the heads x_h of x [B, L, H D]; weight [H N, D].
Value linear_heads(Tape& tape, const Value& x, const Value& weight, int64_t H) {
  const int64_t N = weight.shape()[0] / H, D = weight.shape()[1];
  const Array data = tape.array(x.dtype(), {x.shape()[0], x.shape()[1], H * N});
  const auto columns = [](const Array& of, int64_t h, int64_t width) {
    return of.rows().slice(1, h * width, (h + 1) * width);
  };
  const auto matrix = [=](const Array& of, int64_t h) { return of.rows().slice(0, h * N, (h + 1) * N); };
  for (int64_t h = 0; h < H; ++h)
    ops::matmul(columns(x.data(), h, D), matrix(weight.data(), h).permute({1, 0}), columns(data, h, N),
                {.batch_invariant = tape.options().batch_invariant});
  const Value y = tape.result("linear_heads", data, {x, weight});
  tape.record(y, [=, &tape] {
    bool overwrite = false;
    if (x.wants_gradient()) {
      const Array dx = tape.gradient_memory(x, &overwrite);
      for (int64_t h = 0; h < H; ++h)
        ops::matmul(columns(y.gradient(), h, N), matrix(weight.data(), h), columns(dx, h, D),
                    {.accumulate = !overwrite});
    }
    if (weight.wants_gradient()) {
      const Array dweight = tape.gradient_memory(weight, &overwrite);
      for (int64_t h = 0; h < H; ++h)
        ops::matmul(columns(y.gradient(), h, N).permute({1, 0}), columns(x.data(), h, D), matrix(dweight, h),
                    {.accumulate = !overwrite});
    }
  });
  return y;
}

/// The heads of x [B, n, H D] and of y [B, n, H R] side by side: [B, n, H (D + R)].
Value joined(Tape& tape, const Value& x, const Value& y, int64_t H) {
  const int64_t B = x.shape()[0], n = x.shape()[1], D = x.shape()[2] / H, R = y.shape()[2] / H;
  const Value both = concat(tape, {reshape(tape, x, {B, n, H, D}), reshape(tape, y, {B, n, H, R})}, 3);
  return reshape(tape, both, {B, n, H * (D + R)});
}

}  // namespace

int64_t TransformerXLState::bytes() const {
  const auto of = [](const Array& array) { return array.count() * size_of(array.dtype()); };
  return of(memory) + of(leaving) + of(compressed);
}

TransformerXLAttention::TransformerXLAttention(const Scope& scope, int64_t width, const TransformerXLOptions& given)
    : Layer("TransformerXLAttention", scope), options(given) {
  Checker checker(name());
  check_memory(checker, width, options);
  checker.done();
  TransformerXLOptions& o = options;
  if (o.head_dim == 0) o.head_dim = width / o.heads;
  if (o.position_dim == 0) o.position_dim = width;
  const int64_t columns = o.heads * o.head_dim;
  query = Linear(scope / "query", width, columns, {.bias = o.bias});
  key = Linear(scope / "key", width, columns, {.bias = o.bias});
  value = Linear(scope / "value", width, columns, {.bias = o.bias});
  position = (scope / "position").variable("weight", {o.heads * o.position_dim, o.head_dim}, ParameterRole::factor);
  content_bias = scope.variable("content_bias", {columns}, ParameterRole::embedding);
  position_bias = scope.variable("position_bias", {columns}, ParameterRole::embedding);
  if (o.compressed_memory > 0 && o.compression == MemoryCompression::projection)
    compression = Linear(scope / "compression", o.compression_rate * width, width, {.bias = o.bias});
  output = Linear(scope / "output", columns, width, {.bias = o.bias, .residual = true});
}

TransformerXLState TransformerXLAttention::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, query.weight);
  check_extent(checker, "", "B", B);
  checker.done();
  const Array none(dtype(), {B, 0, query.weight.shape()[1]});
  return {none, none, none};
}

void TransformerXLAttention::check_call(const Value& x, const TransformerXLState* state) const {
  Checker checker(name());
  if (check_made(checker, query.weight) && check_rows(checker, "x", x, query.weight.shape()[1], dtype()) && state) {
    const int64_t c = options.compressed_memory > 0 ? options.compression_rate : 1;
    for (const auto& [part, given, most, unit] :
         {std::tuple{"memory", &state->memory, options.memory + c - 1, int64_t{1}},
          {"leaving", &state->leaving, options.compressed_memory * c, c},
          {"compressed", &state->compressed, options.compressed_memory, int64_t{1}}}) {
      const std::vector<int64_t>& shape = given->shape();
      const bool fits = given->dtype() == dtype() && shape.size() == 3 && shape[0] == x.shape()[0] &&
                        shape[1] <= most && shape[1] % unit == 0 && shape[2] == x.shape()[2];
      if (!checker.require(fits, [&, p = part, g = given, limit = most, group = unit] {
            return std::string("the state's ") + p + " is " + g->describe() + ", must be " +
                   std::string(name_of(dtype())) + " [" + std::to_string(x.shape()[0]) + ", m, " +
                   std::to_string(x.shape()[2]) + "] with m at most " + std::to_string(limit) +
                   (group > 1 ? " and a multiple of " + std::to_string(group) : "") + ": new_state() makes it";
          }))
        break;
    }
  }
  checker.done();
}

/// The compressed memory [B, mc, C] with what the state has to compress, at most Mc of it.
Value TransformerXLAttention::compressed(Tape& tape, const TransformerXLState& state) const {
  const Value old(state.compressed), leaving(state.leaving);
  const int64_t B = leaving.shape()[0], rows = leaving.shape()[1], C = leaving.shape()[2], c = options.compression_rate;
  if (rows == 0) return old;
  const bool learned = options.compression == MemoryCompression::projection;
  const Value groups =
      reshape(tape, leaving, learned ? std::vector{B, rows / c, c * C} : std::vector{B, rows / c, c, C});
  const Value fresh = learned ? compression(tape, groups) : reshape(tape, mean_over(tape, groups, 2), {B, rows / c, C});
  const Value all = concat(tape, {old, fresh}, 1);
  const int64_t count = all.shape()[1];
  return slice(tape, all, 1, std::max<int64_t>(0, count - options.compressed_memory), count);
}

/// What is kept after a call: x joins the memory, whose oldest states leave it, in whole groups if they are compressed.
void TransformerXLAttention::advance(TransformerXLState& state, const Value& compressed_memory, const Value& x) const {
  Tape copies;  // without gradients
  const Value all = concat(copies, {Value(state.memory), Value(x.data())}, 1);
  const int64_t count = all.shape()[1], c = options.compressed_memory > 0 ? options.compression_rate : 1;
  const int64_t leave = std::max<int64_t>(0, count - options.memory) / c * c;
  const int64_t first = std::max<int64_t>(0, leave - options.compressed_memory * c);  // no room for earlier ones
  state.leaving = slice(copies, all, 1, first, leave).data();
  state.memory = slice(copies, all, 1, leave, count).data();
  state.compressed = compressed_memory.data();
}

/// Attention of x to `tokens` [B, n, C], whose last ones x is. With positions counted back from the last token, t(i)
/// and t(j), and R(t) the rotation of each pair of columns by t w_c, r_t is R(-t) r_0, so that
///
///   a_i . r_{i-j} = a_i . r_{t(j)-t(i)} = (R(-t(i)) a_i) . (R(-t(j)) r_0),   a_i = W_R^T (q_i + v)
///
/// The columns of a query are q_i + u and the first of these vectors, those of a key k_j and the second.
Value TransformerXLAttention::attend(Tape& tape, const Value& x, const Value& tokens) const {
  const int64_t B = x.shape()[0], n = tokens.shape()[1];
  const int64_t H = options.heads, D = options.head_dim, R = options.position_dim;
  const auto rotated = [&](const Value& rows) {
    const int64_t count = rows.shape()[1];
    std::vector<int64_t> back(static_cast<size_t>(B * count));
    for (int64_t row = 0; row < B * count; ++row) back[row] = count - 1 - row % count;
    return rope(tape, rows, H, R, std::move(back), {.interleaved = true, .inverse = true});
  };
  const Value q = query(tape, x);
  const Value a = linear_heads(tape, add(tape, q, position_bias), position, H);
  const std::vector<int64_t> each(static_cast<size_t>(B * n * H), 0);
  const Value r = embedding(tape, each, Value(sinusoids(1, R, dtype())), {B, n, H});  // r_0
  AttentionOptions attend;
  attend.scale = 1 / std::sqrt(static_cast<double>(D));
  attend.causal = true;
  attend.alignment = Alignment::bottom_right;
  attend.float32_precision = ops::matmul_precision();
  attend.batch_invariant = tape.options().batch_invariant;
  attend.dropout = options.dropout;
  const Value queries = joined(tape, add(tape, q, content_bias), rotated(a), H);
  const Value keys = joined(tape, key(tape, tokens), rotated(reshape(tape, r, {B, n, H * R})), H);
  return attention(tape, {queries, 0, H, D + R}, {keys, 0, H, D + R}, {value(tape, tokens), 0, H, D}, attend);
}

Value TransformerXLAttention::operator()(Tape& tape, const Value& x, TransformerXLState* state) const {
  check_call(x, state);
  const Tape::NameScope scope(tape, short_name());
  if (!state) return output(tape, attend(tape, x, x));
  const Value old = compressed(tape, *state);
  const Value y = output(tape, attend(tape, x, concat(tape, {old, Value(state->memory), x}, 1)));
  advance(*state, old, x);
  return y;
}

}  // namespace attn::nn
