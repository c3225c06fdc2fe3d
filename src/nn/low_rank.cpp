// Linformer: keys and values are projected along the sequence in front of the operator.
#include "attn/nn_low_rank.h"

#include "attn/core_names.h"
#include "attn/nn.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

using autograd::Heads;

/// body(b, W_h, h) for each sequence and head, W_h [k, tokens of the sequence] of the matrices `all` [heads k, n].
template <class Body>
void for_each_projection(const Array& all, int64_t heads, const std::vector<int64_t>& lengths, const Body& body) {
  const int64_t k = all.shape()[0] / heads;
  for (size_t b = 0; b < lengths.size(); ++b)
    for (int64_t h = 0; h < heads; ++h)
      body(static_cast<int64_t>(b), all.view<2>().slice(0, h * k, (h + 1) * k).slice(1, 0, lengths[b]), h);
}

/// y [B, k, heads D] = W_h x_h over the first lengths[b] tokens of x; nothing reads the padding after them.
Value project_tokens(Tape& tape, const Heads& x, const Value& weight, std::vector<int64_t> lengths) {
  const int64_t k = weight.shape()[0] / x.heads;
  const Array data = tape.array(x.array.dtype(), {x.array.shape()[0], k, x.heads * x.width});
  const auto tokens = [=](const View<4>& of, int64_t b, int64_t h, int64_t count) {
    return of.select(0, b).select(0, h).slice(0, 0, count);
  };
  for_each_projection(weight.data(), x.heads, lengths, [&](int64_t b, const View<2>& w, int64_t h) {
    ops::matmul(w, tokens(x.view(), b, h, lengths[b]), data.view<3>().heads(x.heads).select(0, b).select(0, h));
  });
  const Value y = tape.result("project_tokens", data, {x.array, weight});
  tape.record(y, [=, &tape, lengths = std::move(lengths)] {
    const View<4> dy = y.gradient().view<3>().heads(x.heads);
    if (x.array.wants_gradient()) {
      const View<4> dx = x.view_of(tape.gradient_memory(x.array));
      for_each_projection(weight.data(), x.heads, lengths, [&](int64_t b, const View<2>& w, int64_t h) {
        ops::matmul(w.permute({1, 0}), dy.select(0, b).select(0, h), tokens(dx, b, h, lengths[b]),
                    {.accumulate = true});
      });
    }
    if (weight.wants_gradient()) {
      const Array dweight = tape.gradient_memory(weight);
      for_each_projection(dweight, x.heads, lengths, [&](int64_t b, const View<2>& dw, int64_t h) {
        const View<2> rows = tokens(x.view(), b, h, lengths[b]);
        ops::matmul(dy.select(0, b).select(0, h), rows.permute({1, 0}), dw, {.accumulate = true});
      });
    }
  });
  return y;
}

void check_linformer(Checker& checker, int64_t width, const LinformerOptions& options) {
  check_options(
      checker, "", width,
      MultiHeadAttentionOptions{.heads = options.heads, .head_dim = options.head_dim, .dropout = options.dropout});
  check_extent(checker, "", "max_length", options.max_length);
  check_extent(checker, "", "rows", options.rows);
}

}  // namespace

LinformerAttention::LinformerAttention(const Scope& scope, int64_t width, const LinformerOptions& given)
    : Layer("LinformerAttention", scope), options(given) {
  Checker checker(name());
  check_linformer(checker, width, options);
  checker.done();
  LinformerOptions& o = options;
  if (o.head_dim == 0) o.head_dim = width / o.heads;
  const int64_t columns = o.heads * o.head_dim;
  qkv = Linear(scope / "qkv", width, 3 * columns, {.bias = o.bias});
  const auto projection = [&](std::string_view part) {
    const int64_t rows = o.sharing == LinformerSharing::none ? o.heads * o.rows : o.rows;
    return (scope / part).variable("weight", {rows, o.max_length}, ParameterRole::factor);
  };
  if (o.sharing != LinformerSharing::layers) key_projection = projection("key_projection");
  if (o.sharing == LinformerSharing::none || o.sharing == LinformerSharing::heads)
    value_projection = projection("value_projection");
  output = Linear(scope / "output", columns, width, {.bias = o.bias, .residual = true});
}

void LinformerAttention::share_projection(const LinformerAttention& other) {
  Checker checker(name());
  checker.require(options.sharing == LinformerSharing::layers, [&] {
    return "sharing is " + std::string(name_of(options.sharing)) + ", must be layers: the layer has its own projection";
  });
  checker.require(other.key_projection && !other.value_projection, [&] {
    return "the other layer's sharing is " + std::string(name_of(other.options.sharing)) +
           ", must be key_value, or layers with a projection";
  });
  const std::vector<int64_t> wanted = {options.rows, options.max_length};
  if (checker.ok())
    checker.require(other.key_projection.shape() == wanted, [&] {
      return "the other layer's projection is " + shape_of(other.key_projection) + ", must be " + shape_of(wanted);
    });
  checker.done();
  key_projection = other.key_projection;
}

void LinformerAttention::check_call(const Value& x, std::span<const int64_t> key_length) const {
  Checker checker(name());
  if (check_made(checker, qkv.weight)) {
    check_inputs(checker,
                 {.width = output.weight.shape()[0],
                  .heads = options.heads,
                  .kv_heads = options.heads,
                  .key_width = options.head_dim,
                  .value_width = options.head_dim,
                  .dtype = dtype()},
                 x, {.key_length = key_length});
    if (checker.ok())
      checker.require(x.shape()[1] <= options.max_length, [&] {
        return "x has L = " + std::to_string(x.shape()[1]) +
               " tokens, must be at most max_length = " + std::to_string(options.max_length);
      });
    checker.require(bool(key_projection), "the layer has no projection yet: share_projection() gives it another's");
  }
  checker.done();
}

Value LinformerAttention::operator()(Tape& tape, const Value& x, std::span<const int64_t> key_length) const {
  check_call(x, key_length);
  const Tape::NameScope scope(tape, short_name());
  const int64_t H = options.heads, D = options.head_dim;
  std::vector<int64_t> lengths(key_length.begin(), key_length.end());
  if (lengths.empty()) lengths.assign(static_cast<size_t>(x.shape()[0]), x.shape()[1]);
  const Value rows = qkv(tape, x);
  const bool apart = options.sharing == LinformerSharing::none;
  const auto projected = [&](int64_t first, const Value& weight) {
    return Heads{project_tokens(tape, {rows, first, apart ? H : 1, apart ? D : H * D}, weight, lengths), 0, H, D};
  };
  const Heads k = projected(H * D, key_projection);
  const Heads v = projected(2 * H * D, value_projection ? value_projection : key_projection);
  AttentionOptions attend;
  attend.float32_precision = ops::matmul_precision();
  attend.batch_invariant = tape.options().batch_invariant;
  attend.dropout = options.dropout;
  return output(tape, attention(tape, {rows, 0, H, D}, k, v, attend));
}

}  // namespace attn::nn
