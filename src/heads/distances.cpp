// How differently heads attend: divergences of their rows, points whose distances these are, and clusters.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "heads/layers.h"

namespace attn::heads {
namespace {

constexpr const char* kDistances = "head_distances";
constexpr int64_t kBandElements = 1 << 21;  // weights of all heads in memory at once, unless a row has more

double x_ln_x(double x) { return x > 0 ? x * std::log(x) : 0; }

/// Some rows of every head of all layers on one text, each as a distribution over the keys and, last, the sink.
class HeadRows {
 public:
  HeadRows(int64_t heads, int64_t count, int64_t n)
      : width_(n + 1), size_(count * width_), weights_(static_cast<size_t>(heads * size_)), sums_(heads) {}

  void set(int64_t head, const RecordedAttention& layer, const Array& weights, int64_t begin, int64_t count) {
    double* to = weights_.data() + head * size_;
    std::fill_n(to, size_, 0.0);
    for (int64_t row = 0; row < count; ++row, to += width_) {
      double sum = 0;
      for (int64_t j = 0; j + 1 < width_; ++j) sum += to[j] = weights.number(begin + row * (width_ - 1) + j);
      if (!layer.options.sink.empty()) to[width_ - 1] = std::max(1 - sum, 0.0);
    }
    const double* values = weights_.data() + head * size_;
    sums_[static_cast<size_t>(head)] =
        std::accumulate(values, values + size_, 0.0, [](double total, double p) { return total + x_ln_x(p); });
  }

  /// The divergence of the rows of two heads, summed up.
  double divergence(int64_t a, int64_t b) const {
    const double *p = weights_.data() + a * size_, *q = weights_.data() + b * size_;
    double middle = 0;
    for (int64_t n = 0; n < size_; ++n) middle += x_ln_x((p[n] + q[n]) / 2);
    return std::max((sums_[static_cast<size_t>(a)] + sums_[static_cast<size_t>(b)]) / 2 - middle, 0.0);
  }

 private:
  int64_t width_, size_;
  std::vector<double> weights_, sums_;
};

/// N of a matrix [N, N]. Throws Error unless it is square, symmetric, finite, not negative, and 0 between equals.
int64_t check_matrix(const char* operation, std::span<const double> matrix) {
  const auto N = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(matrix.size()))));
  Checker checker(operation);
  checker.require(N > 0 && N * N == static_cast<int64_t>(matrix.size()), [&] {
    return "divergences has " + std::to_string(matrix.size()) +
           " elements, must be a matrix [N, N] of at least one head";
  });
  checker.done();
  for (int64_t a = 0; a < N; ++a)
    for (int64_t b = 0; b <= a; ++b) {
      const double value = matrix[static_cast<size_t>(a * N + b)];
      const bool fits = std::isfinite(value) && value >= 0 && (a != b || value == 0) &&
                        value == matrix[static_cast<size_t>(b * N + a)];
      if (!checker.require(fits, [&] {
            return "divergences[" + std::to_string(a) + ", " + std::to_string(b) + "] is " + std::to_string(value) +
                   ", must be that of [" + std::to_string(b) + ", " + std::to_string(a) +
                   "], a number, 0 on the diagonal";
          }))
        checker.done();
    }
  return N;
}

/// Eigenvalues on the diagonal of `matrix`, eigenvectors in the columns of the result: cyclic Jacobi rotations, until
/// nothing is left beside the diagonal.
std::vector<double> diagonalise(std::vector<double>& matrix, int64_t N) {
  std::vector<double> vectors(matrix.size());
  for (int64_t n = 0; n < N; ++n) vectors[static_cast<size_t>(n * N + n)] = 1;
  const auto at = [&](int64_t row, int64_t column) -> double& { return matrix[static_cast<size_t>(row * N + column)]; };
  const double scale = std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0);
  for (int sweep = 0; sweep < 64; ++sweep) {  // it takes about ten
    double rest = 0;
    for (int64_t p = 0; p < N; ++p)
      for (int64_t q = p + 1; q < N; ++q) {
        const double off = at(p, q);
        rest += off * off;
        if (off == 0) continue;
        const double ratio = (at(q, q) - at(p, p)) / (2 * off);
        const double tangent = (ratio < 0 ? -1 : 1) / (std::abs(ratio) + std::hypot(ratio, 1.0));
        const double cosine = 1 / std::hypot(tangent, 1.0), sine = tangent * cosine;
        const auto turn = [&](double& x, double& y) {
          const double old = x;
          x = cosine * old - sine * y;
          y = sine * old + cosine * y;
        };
        for (int64_t n = 0; n < N; ++n) turn(at(n, p), at(n, q));
        for (int64_t n = 0; n < N; ++n) turn(at(p, n), at(q, n));
        for (int64_t n = 0; n < N; ++n)
          turn(vectors[static_cast<size_t>(n * N + p)], vectors[static_cast<size_t>(n * N + q)]);
      }
    if (rest <= scale * 1e-30) break;
  }
  return vectors;
}

}  // namespace

struct Distances::State {
  std::vector<int64_t> heads_of_layer = {};
  int64_t heads = 0, tokens = 0;
  std::vector<double> sums = {};  // [N, N], above the diagonal
};

Distances::Distances() : state_(std::make_unique<State>()) {}
Distances::~Distances() = default;
Distances::Distances(Distances&&) noexcept = default;
Distances& Distances::operator=(Distances&&) noexcept = default;

void Distances::add(std::span<const RecordedAttention> layers, const Texts& texts) {
  if (!state_) throw Error(kDistances, {"these distances have been moved from"});
  Checker checker(kDistances);
  check_recorded(checker, layers, {.one_text = false, .own_text = true});
  checker.done();
  const int64_t B = layers[0].q.size[0], n = layers[0].q.size[2];
  const std::vector<int64_t> lengths = check_texts(checker, texts, B, n);
  State next = *state_;
  std::vector<int64_t> counts;
  for (const RecordedAttention& layer : layers) counts.push_back(layer.q.size[1]);
  checker.require(next.heads_of_layer.empty() || next.heads_of_layer == counts,
                  "the layers must have as many heads as in the texts before");
  checker.done();
  next.heads_of_layer = counts;
  const int64_t N = next.heads = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  next.sums.resize(static_cast<size_t>(N * N));

  const int64_t band = std::clamp<int64_t>(kBandElements / (N * (n + 1)), 1, n);
  for (int64_t first = 0; first < n; first += band) {
    const int64_t count = std::min(band, n - first);
    std::vector<Array> weights;
    for (const RecordedAttention& layer : layers) {
      weights.emplace_back(layer.lse.dtype, Shape<4>{B, layer.q.size[1], count, n});
      attention_weights(layer.q, layer.k, layer.lse, weights.back(), first, 0, layer.options);
    }
    for (int64_t b = 0; b < B; ++b) {
      const int64_t there = std::clamp<int64_t>(lengths[static_cast<size_t>(b)] - first, 0, count);
      HeadRows rows(N, count, n);
      for (int64_t l = 0, head = 0; l < static_cast<int64_t>(layers.size()); ++l)
        for (int64_t h = 0; h < counts[static_cast<size_t>(l)]; ++h, ++head)
          rows.set(head, layers[static_cast<size_t>(l)], weights[static_cast<size_t>(l)],
                   (b * counts[static_cast<size_t>(l)] + h) * count * n, there);
      parallel_for(N, [&](int64_t one) {
        for (int64_t other = one + 1; other < N; ++other)
          next.sums[static_cast<size_t>(one * N + other)] += rows.divergence(one, other);
      });
      next.tokens += there;
    }
  }
  *state_ = std::move(next);
}

std::vector<double> Distances::divergences() const {
  if (!state_ || state_->tokens == 0) throw Error(kDistances, {"no text was added"});
  const int64_t N = state_->heads;
  std::vector<double> result(state_->sums.size());
  for (int64_t a = 0; a < N; ++a)
    for (int64_t b = a + 1; b < N; ++b)
      result[static_cast<size_t>(a * N + b)] = result[static_cast<size_t>(b * N + a)] =
          state_->sums[static_cast<size_t>(a * N + b)] / static_cast<double>(state_->tokens);
  return result;
}

std::vector<double> scaled(std::span<const double> divergences) {
  const int64_t N = check_matrix("scaled", divergences);
  std::vector<double> means(static_cast<size_t>(N)), matrix(divergences.begin(), divergences.end());
  double mean = 0;
  for (int64_t a = 0; a < N; ++a) {
    for (int64_t b = 0; b < N; ++b) means[static_cast<size_t>(a)] += matrix[static_cast<size_t>(a * N + b)];
    means[static_cast<size_t>(a)] /= static_cast<double>(N);
    mean += means[static_cast<size_t>(a)] / static_cast<double>(N);
  }
  for (int64_t a = 0; a < N; ++a)  // inner products of the points around their middle
    for (int64_t b = 0; b < N; ++b) {
      double& value = matrix[static_cast<size_t>(a * N + b)];
      value = (means[static_cast<size_t>(a)] + means[static_cast<size_t>(b)] - mean - value) / 2;
    }
  const std::vector<double> vectors = diagonalise(matrix, N);
  std::vector<int64_t> order(static_cast<size_t>(N));
  std::iota(order.begin(), order.end(), 0);
  const auto variance = [&](int64_t n) { return matrix[static_cast<size_t>(n * N + n)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return variance(a) > variance(b); });
  std::vector<double> points(static_cast<size_t>(2 * N));
  for (int64_t axis = 0; axis < std::min<int64_t>(2, N); ++axis) {
    const int64_t column = order[static_cast<size_t>(axis)];
    const double rounding = static_cast<double>(N) * 0x1p-50 * variance(order[0]);
    const double length = variance(column) > rounding ? std::sqrt(variance(column)) : 0;
    double largest = 0;
    for (int64_t n = 0; n < N; ++n)
      if (const double x = vectors[static_cast<size_t>(n * N + column)]; std::abs(x) > std::abs(largest)) largest = x;
    for (int64_t n = 0; n < N; ++n)
      points[static_cast<size_t>(2 * n + axis)] =
          length * vectors[static_cast<size_t>(n * N + column)] * (largest < 0 ? -1 : 1);
  }
  return points;
}

std::vector<int64_t> clusters(std::span<const double> divergences, int64_t count) {
  const int64_t N = check_matrix("clusters", divergences);
  if (count < 1 || count > N)
    throw Error("clusters", {"the number of clusters is " + std::to_string(count) + ", must be from 1 to the " +
                             std::to_string(N) + " heads"});
  std::vector<double> distance(divergences.size());
  std::transform(divergences.begin(), divergences.end(), distance.begin(),
                 [](double value) { return std::sqrt(value); });
  std::vector<int64_t> cluster(static_cast<size_t>(N)), size(static_cast<size_t>(N), 1), alive(cluster.size());
  std::iota(cluster.begin(), cluster.end(), 0);
  std::iota(alive.begin(), alive.end(), 0);
  const auto at = [&](int64_t a, int64_t b) -> double& { return distance[static_cast<size_t>(a * N + b)]; };
  while (static_cast<int64_t>(alive.size()) > count) {
    int64_t a = alive[0], b = alive[1];
    for (const int64_t one : alive)
      for (const int64_t other : alive)
        if (one < other && at(one, other) < at(a, b)) a = one, b = other;
    const auto of_a = static_cast<double>(size[static_cast<size_t>(a)]);
    const auto of_b = static_cast<double>(size[static_cast<size_t>(b)]);
    for (const int64_t other : alive)
      at(a, other) = at(other, a) = (of_a * at(a, other) + of_b * at(b, other)) / (of_a + of_b);
    size[static_cast<size_t>(a)] += size[static_cast<size_t>(b)];
    std::replace(cluster.begin(), cluster.end(), b, a);
    std::erase(alive, b);
  }
  for (int64_t& each : cluster) each = std::lower_bound(alive.begin(), alive.end(), each) - alive.begin();
  return cluster;
}

}  // namespace attn::heads
