// What of a text reaches a token through all layers: rollout and flow on the graph of Abnar and Zuidema.
#include <algorithm>
#include <cmath>
#include <limits>

#include "heads/layers.h"

namespace attn::heads {
namespace {

constexpr int64_t kMostTokens = 512;    // of a flow
constexpr double kSaturated = 0x1p-52;  // capacity that is left by rounding alone

void check_graph(const char* operation, std::span<const RecordedAttention> layers, int64_t query, int64_t most,
                 double threshold) {
  Checker checker(operation);
  check_recorded(checker, layers, {.own_text = true});
  checker.done();
  const int64_t n = layers[0].q.size[2];
  checker.require(query >= 0 && query < n, [&] {
    return "the token is " + std::to_string(query) + ", must be from 0 to " + std::to_string(n - 1);
  });
  checker.require(n <= most, [&] {
    return "the text has " + std::to_string(n) + " tokens, must have at most " + std::to_string(most);
  });
  checker.require(threshold >= 0 && threshold < 1,
                  [&] { return "threshold is " + std::to_string(threshold) + ", must be in [0, 1)"; });
  checker.done();
}

/// Hands over the rows of a layer's edges, one after another.
template <class RowSink>
void for_each_edge_row(const RecordedAttention& layer, const RowSink& sink) {
  const int64_t H = layer.q.size[1], n = layer.q.size[2];
  std::vector<double> edges(static_cast<size_t>(n));
  for_each_band(layer, [&](int64_t first, int64_t count, const Array& weights) {
    for (int64_t row = 0; row < count; ++row) {
      std::fill(edges.begin(), edges.end(), 0.0);
      double sum = 1;
      for (int64_t h = 0; h < H; ++h)
        for (int64_t j = 0; j < n; ++j) {
          const double weight = weights.number((h * count + row) * n + j) / static_cast<double>(H);
          edges[static_cast<size_t>(j)] += weight;
          sum += weight;
        }
      edges[static_cast<size_t>(first + row)] += 1;
      for (double& edge : edges) edge /= sum;
      sink(first + row, edges);
    }
  });
}

/// The graph, with layer l's edges from node (l + 1, i) to node (l, j) at [l, i, j].
class Graph {
 public:
  Graph(std::span<const RecordedAttention> layers, double threshold, double& missing)
      : layers_(static_cast<int64_t>(layers.size())),
        n_(layers[0].q.size[2]),
        capacity_(static_cast<size_t>(layers_ * n_ * n_)) {
    double* to = capacity_.data();
    for (const RecordedAttention& layer : layers)
      for_each_edge_row(layer, [&](int64_t, const std::vector<double>& edges) {
        for (const double edge : edges) {
          *to++ = edge >= threshold ? edge : 0;
          if (edge < threshold) missing += edge;
        }
      });
  }
  int64_t layers() const { return layers_; }
  int64_t tokens() const { return n_; }
  const std::vector<double>& capacities() const { return capacity_; }

 private:
  int64_t layers_, n_;
  std::vector<double> capacity_;
};

/// Dinic's algorithm for one pair of nodes: while the sink can be reached, paths that are shortest are filled up.
class MaximumFlow {
 public:
  MaximumFlow(const Graph& graph, int64_t query, int64_t token)
      : graph_(graph),
        n_(graph.tokens()),
        source_(graph.layers() * n_ + query),
        sink_(token),
        free_(graph.capacities()),
        level_(static_cast<size_t>((graph.layers() + 1) * n_)),
        next_(level_.size()) {}

  double run() {
    double flow = 0;
    while (reach()) {
      std::fill(next_.begin(), next_.end(), 0);
      for (double more = fill_path(); more > 0; more = fill_path()) flow += more;
    }
    return flow;
  }

 private:
  /// Edge `number` of a node: down to the tokens of the layer below, then back up to those of the layer above.
  struct Edge {
    int64_t to = -1;  // -1: there is none
    size_t at = 0;    // in free_
    bool down = false;
  };
  Edge edge(int64_t node, int64_t number) const {
    const int64_t layer = node / n_, token = node % n_;
    if (number < n_) {
      if (layer == 0) return {};
      return {(layer - 1) * n_ + number, static_cast<size_t>(((layer - 1) * n_ + token) * n_ + number), true};
    }
    if (layer == graph_.layers()) return {};
    return {(layer + 1) * n_ + number - n_, static_cast<size_t>((layer * n_ + number - n_) * n_ + token), false};
  }
  double left(const Edge& edge) const {
    if (edge.to < 0) return 0;
    const double left = edge.down ? free_[edge.at] : graph_.capacities()[edge.at] - free_[edge.at];
    return left > kSaturated ? left : 0;
  }

  /// Levels of all nodes by breadth; whether the sink has one.
  bool reach() {
    std::fill(level_.begin(), level_.end(), -1);
    std::vector<int64_t> queue = {source_};
    level_[static_cast<size_t>(source_)] = 0;
    for (size_t at = 0; at < queue.size(); ++at)
      for (int64_t number = 0; number < 2 * n_; ++number)
        if (const Edge e = edge(queue[at], number); left(e) > 0 && level_[static_cast<size_t>(e.to)] < 0) {
          level_[static_cast<size_t>(e.to)] = level_[static_cast<size_t>(queue[at])] + 1;
          queue.push_back(e.to);
        }
    return level_[static_cast<size_t>(sink_)] >= 0;
  }

  /// Along one path of rising levels as much as it takes; 0 if there is none any more.
  double fill_path() {
    std::vector<Edge> path;
    for (int64_t node = source_; node != sink_;) {
      int64_t& number = next_[static_cast<size_t>(node)];
      Edge e;
      for (; number < 2 * n_; ++number) {
        e = edge(node, number);
        if (left(e) > 0 && level_[static_cast<size_t>(e.to)] == level_[static_cast<size_t>(node)] + 1) break;
      }
      if (number < 2 * n_) {
        path.push_back(e);
        node = e.to;
        continue;
      }
      if (path.empty()) return 0;
      path.pop_back();  // a dead end: the edge into it is not tried again
      node = path.empty() ? source_ : path.back().to;
      ++next_[static_cast<size_t>(node)];
    }
    double most = std::numeric_limits<double>::infinity();
    for (const Edge& e : path) most = std::min(most, left(e));
    for (const Edge& e : path) free_[e.at] += e.down ? -most : most;
    return most;
  }

  const Graph& graph_;
  int64_t n_, source_, sink_;
  std::vector<double> free_;  // what an edge downwards can still take
  std::vector<int64_t> level_, next_;
};

}  // namespace

std::vector<double> rollout(std::span<const RecordedAttention> layers, int64_t query) {
  check_graph("rollout", layers, query, std::numeric_limits<int64_t>::max(), 0);
  const auto n = static_cast<size_t>(layers[0].q.size[2]);
  std::vector<double> share(n);
  share[static_cast<size_t>(query)] = 1;
  for (size_t layer = layers.size(); layer-- > 0;) {
    std::vector<double> below(n);
    for_each_edge_row(layers[layer], [&](int64_t row, const std::vector<double>& edges) {
      for (size_t j = 0; j < n; ++j) below[j] += share[static_cast<size_t>(row)] * edges[j];
    });
    share = std::move(below);
  }
  return share;
}

std::vector<double> flow(std::span<const RecordedAttention> layers, int64_t query, double threshold, double* missing) {
  check_graph("flow", layers, query, kMostTokens, threshold);
  double left_out = 0;
  const Graph graph(layers, threshold, left_out);
  std::vector<double> flows(static_cast<size_t>(graph.tokens()));
  parallel_for(graph.tokens(),
               [&](int64_t token) { flows[static_cast<size_t>(token)] = MaximumFlow(graph, query, token).run(); });
  if (missing) *missing = std::min(left_out, 1.0);
  return flows;
}

}  // namespace attn::heads
