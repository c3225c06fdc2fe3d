// Measures the time of a chunk of attention and of a message on these ranks.
#include <algorithm>
#include <chrono>

#include "attn/cluster.h"

namespace attn::cluster {
namespace {

constexpr int64_t kTokens = 1024, kShort = int64_t{1} << 22, kLong = int64_t{1} << 24;
constexpr int kSamples = 5, kTag = 9;

/// The median of a few measurements, of the slowest rank.
template <class Work>
double seconds_of(Communicator& ranks, const Work& work) {
  std::vector<double> samples;
  for (int sample = 0; sample <= kSamples; ++sample) {  // the first is to warm up
    synchronize(ranks, "measure_costs");
    const auto start = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (sample > 0) samples.push_back(seconds);
  }
  std::sort(samples.begin(), samples.end());
  double slowest = 0;
  for (const std::vector<double>& one : gather(ranks, std::vector<double>{samples[kSamples / 2]}))
    slowest = std::max(slowest, one[0]);
  return slowest;
}

/// Sends so many bytes to the next rank and receives as many from the one before.
double seconds_of_message(Communicator& ranks, int64_t bytes) {
  const Buffer sent(bytes, true), received(bytes, true);
  const int R = ranks.size();
  const Message to = {(ranks.rank() + 1) % R, sent.data(), bytes};
  const Message from = {(ranks.rank() + R - 1) % R, received.data(), bytes};
  return seconds_of(ranks, [&] { ranks.start({&to, 1}, {&from, 1}, kTag)->wait(); });
}

}  // namespace

ClusterCosts measure_costs(Communicator& ranks, const ClusterShape& shape) {
  const Array q(shape.dtype, {1, shape.H, kTokens, shape.D}), k(shape.dtype, {1, shape.Hk, kTokens, shape.D});
  const Array v(shape.dtype, {1, shape.Hk, kTokens, shape.Dv}), out(shape.dtype, {1, shape.H, kTokens, shape.Dv});
  const Array dq(shape.dtype, q.shape()), dk(shape.dtype, k.shape()), dv(shape.dtype, v.shape());
  const Array lse(shape.dtype == DType::float64 ? DType::float64 : DType::float32, {1, shape.H, kTokens});
  const ConstView<4> queries = q.view<4>(), keys = k.view<4>(), values = v.view<4>();
  ClusterCosts costs;
  const double forward =
      seconds_of(ranks, [&] { attn::attention(queries, keys, values, out.view<4>(), lse.view<3>()); });
  const double backward = seconds_of(ranks, [&] {
    attn::attention_backward(queries, keys, values, out.view<4>(), lse.view<3>(), out.view<4>(),
                             {.dq = dq.view<4>(), .dk = dk.view<4>(), .dv = dv.view<4>()});
  });
  costs.forward_flops = attn::explain(queries, keys, values).flops / forward;
  costs.backward_flops = attn::explain_backward(queries, keys, values).flops / backward;
  if (ranks.size() == 1) return costs;
  costs.latency = seconds_of_message(ranks, 1);
  // Of two lengths, since TCP sends the first megabytes of a message slower than the others.
  const double seconds = seconds_of_message(ranks, kLong) - seconds_of_message(ranks, kShort);
  costs.bytes_per_second = static_cast<double>(kLong - kShort) / std::max(1e-9, seconds);
  return costs;
}

}  // namespace attn::cluster
