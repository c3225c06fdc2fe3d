#include "record/recorded.h"

namespace attn {
namespace {

std::string text(int64_t number) { return std::to_string(number); }

/// The reasons of attention_weights() for an empty rectangle: it checks everything and computes nothing.
void check_call(Checker& checker, const std::string& name, const RecordedAttention& layer) {
  const DType dtype = layer.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  try {
    attention_weights(layer.q, layer.k, layer.lse, View<4>(nullptr, dtype, {layer.q.size[0], layer.q.size[1], 0, 0}), 0,
                      0, layer.options);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) checker.require(false, name + reason);
  }
}

void check_tokens(Checker& checker, const std::string& name, const RecordedAttention& layer,
                  const RecordedAttention& first, const RecordedNeeds& needs) {
  const int64_t Lq = layer.q.size[2], Lk = layer.k.size[2];
  if (needs.queries < 0) {
    checker.require(Lq == first.q.size[2] && Lk == first.k.size[2],
                    name + "must have as many queries and keys as layers[0]");
    return;
  }
  checker.require(Lq == needs.queries && Lk == needs.keys, [&] {
    return name + text(Lq) + " queries and " + text(Lk) + " keys, must be as many as " + text(needs.queries) +
           (needs.keys != needs.queries ? " and " + text(needs.keys) : "") + " tokens";
  });
}

}  // namespace

void check_recorded(Checker& checker, std::span<const RecordedAttention> layers, const RecordedNeeds& needs) {
  checker.require(!layers.empty(), "there must be at least one layer");
  for (size_t n = 0; n < layers.size(); ++n) {
    const RecordedAttention& layer = layers[n];
    const std::string name = "layers[" + std::to_string(n) + "]: ";
    const int64_t B = layer.q.size[0], Lq = layer.q.size[2], Lk = layer.k.size[2];
    checker.require(layer.q.data && layer.k.data && layer.lse.data, name + "q, k and lse must have data");
    checker.require(B > 0 && layer.q.size[1] > 0 && Lq > 0 && Lk > 0,
                    name + "there must be at least one text, head, query and key");
    if (needs.one_text) {
      checker.require(B == 1, [&] {
        return name + "q has size " + to_string<4>(layer.q.size) + ", must be one text: [1, H, Lq, D]";
      });
    } else {
      checker.require(B == layers[0].q.size[0], name + "must have as many texts as layers[0]");
    }
    if (needs.own_text) {
      checker.require(Lq == Lk,
                      [&] { return name + text(Lq) + " queries and " + text(Lk) + " keys, must be the same tokens"; });
      checker.require(layer.options.cu_seqlens_q.empty(), name + "packed texts must be given one by one");
    }
    checker.require(layer.options.shard == Shard(), name + "a shard of a larger call cannot be shown alone");
    check_tokens(checker, name, layer, layers[0], needs);
    check_call(checker, name, layer);
  }
}

}  // namespace attn
