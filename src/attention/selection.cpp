// Selected lists: scores of a row in float64, then the largest of them. Rows are tasks in groups, whose lists are
// joined in order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/elements.h"
#include "attention/problem.h"
#include "attn/attention_selection.h"
#include "core/numbers.h"

namespace attn {
namespace {

struct Candidate {
  double score;
  int64_t number;
};

/// Appends the numbers of the `count` largest candidates to the list; of equal scores that with the lower number.
void add_largest(std::vector<Candidate>& candidates, int64_t count, std::vector<int64_t>& list) {
  const auto found = static_cast<int64_t>(candidates.size());
  if (count < found) {
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.score > b.score || (a.score == b.score && a.number < b.number);
    };
    std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(), before);
  }
  for (int64_t n = 0; n < std::min(count, found); ++n) list.push_back(candidates[n].number);
}

bool is_score(double score) { return score > -std::numeric_limits<double>::infinity(); }  // NaN is none

/// The lists of [B, H, rows]: add_row(b, h, n, list) appends those of a row, in any order.
template <class AddRow>
BlockLists select_rows(const Shape<3>& size, int64_t query_block, int64_t key_block, const AddRow& add_row) {
  constexpr int64_t kRows = 64;  // of a task
  const auto [B, H, rows] = size;
  const int64_t parts = div_up(rows, kRows);
  BlockLists result{query_block, key_block, Tensor<int64_t, 3>({B, H, rows + 1}), {}};
  std::vector<std::vector<int64_t>> lists(B * H * parts);
  parallel_for(B * H * parts, [&](int64_t task) {
    const int64_t head = task / parts, first = task % parts * kRows;
    std::vector<int64_t>& list = lists[task];
    for (int64_t n = first; n < std::min(first + kRows, rows); ++n) {
      const auto begin = static_cast<int64_t>(list.size());
      add_row(head / H, head % H, n, list);
      std::sort(list.begin() + begin, list.end());
      result.offsets[head * (rows + 1) + n + 1] = static_cast<int64_t>(list.size()) - begin;
    }
  });
  int64_t total = 0;
  for (int64_t n = 0; n < result.offsets.count(); ++n) result.offsets[n] = total += result.offsets[n];
  result.indices = Tensor<int64_t, 1>({total});
  int64_t* end = result.indices.data();
  for (const std::vector<int64_t>& list : lists) end = std::copy(list.begin(), list.end(), end);
  return result;
}

void add_row_of(const ConstView<4>& x, int64_t b, int64_t h, int64_t i, double* sums, int64_t stride) {
  const char* row = detail::at(x, b, h, i);
  const int64_t step = detail::last_stride(x) * size_of(x.dtype);
  for (int64_t d = 0; d < x.size[3]; ++d) sums[d * stride] += detail::load_element(x.dtype, row + d * step);
}

void check_count(Checker& checker, const char* name, int64_t value) {
  checker.require(value >= 1,
                  [&] { return std::string(name) + " is " + std::to_string(value) + ", must be at least 1"; });
}

void check_array(Checker& checker, const char* name, const ConstView<4>& x) {
  checker.require(is_floating(x.dtype), [&] {
    return std::string(name) + " is " + std::string(name_of(x.dtype)) + ", must be a floating type";
  });
  detail::check_layout(checker, name, x);
  checker.require(x.data || x.empty(), [&] { return std::string(name) + " must have data"; });
}

void check_causal(Checker& checker, bool causal, int64_t Lq, int64_t Lk) {
  checker.require(!causal || Lq <= Lk, [&] {
    return "Lq is " + std::to_string(Lq) + ", must be at most Lk = " + std::to_string(Lk) + " with causal";
  });
}

/// The blocks of one call.
class BlockScores {
 public:
  BlockScores(const ConstView<4>& q, const ConstView<4>& k, const BlockSelection& selection)
      : q_(q),
        selection_(selection),
        Lk_(k.size[2]),
        blocks_(Lk_ / selection.key_block + (Lk_ % selection.key_block != 0)),
        group_(k.size[1] > 0 ? q.size[1] / k.size[1] : 1),
        means_({k.size[0], k.size[1], k.size[3], blocks_}) {
    parallel_for(k.size[0] * k.size[1], [&](int64_t head) {
      const int64_t b = head / k.size[1], kv_head = head % k.size[1];
      for (int64_t m = 0; m < blocks_; ++m) {
        const int64_t first = m * selection_.key_block, count = std::min(selection_.key_block, Lk_ - first);
        double* mean = &means_[head * k.size[3] * blocks_ + m];
        for (int64_t j = first; j < first + count; ++j) add_row_of(k, b, kv_head, j, mean, blocks_);
        for (int64_t d = 0; d < k.size[3]; ++d) mean[d * blocks_] /= static_cast<double>(count);
      }
    });
  }

  void add_row(int64_t b, int64_t h, int64_t n, std::vector<int64_t>& list) const {
    const int64_t first = n * selection_.query_block, rows = std::min(selection_.query_block, q_.size[2] - first);
    int64_t own = blocks_, own_end = blocks_;  // the blocks of the queries' positions
    if (selection_.causal) {
      const int64_t place = first + Lk_ - q_.size[2];
      own = place / selection_.key_block;
      own_end = (place + rows - 1) / selection_.key_block + 1;
    }
    const std::vector<double> scores = scores_of(b, h, first, rows);
    std::vector<Candidate> candidates;
    for (int64_t m = 0; m < own; ++m)
      if (is_score(scores[m])) candidates.push_back({scores[m], m});
    add_largest(candidates, std::max<int64_t>(selection_.count - (own_end - own), 0), list);
    for (int64_t m = own; m < own_end; ++m) list.push_back(m);
  }

 private:
  std::vector<double> scores_of(int64_t b, int64_t h, int64_t first, int64_t rows) const {
    const int64_t D = q_.size[3];
    std::vector<double> mean(D), scores(blocks_);
    for (int64_t i = first; i < first + rows; ++i) add_row_of(q_, b, h, i, mean.data(), 1);
    const double* keys = means_.data() + (b * means_.size()[1] + h / group_) * D * blocks_;
    for (int64_t d = 0; d < D; ++d) {
      const double x = mean[d] / static_cast<double>(rows);
      for (int64_t m = 0; m < blocks_; ++m) scores[m] += x * keys[d * blocks_ + m];
    }
    return scores;
  }

  const ConstView<4>& q_;
  const BlockSelection& selection_;
  const int64_t Lk_, blocks_, group_;
  Tensor<double, 4> means_;  // [B, Hk, D, key blocks]
};

}  // namespace

BlockLists select_blocks(ConstView<4> q, ConstView<4> k, const BlockSelection& selection) {
  Checker checker("select_blocks");
  check_array(checker, "q", q);
  check_array(checker, "k", k);
  const auto shapes = [&] { return ": q is " + to_string(q.size) + ", k is " + to_string(k.size); };
  checker.require(k.size[0] == q.size[0] && k.size[3] == q.size[3],
                  [&] { return "q and k must have the same batch B and head width D" + shapes(); });
  checker.require(k.size[1] > 0 ? q.size[1] % k.size[1] == 0 : q.size[1] == 0,
                  [&] { return "the heads of k must divide those of q" + shapes(); });
  check_count(checker, "query_block", selection.query_block);
  check_count(checker, "key_block", selection.key_block);
  check_count(checker, "count", selection.count);
  check_causal(checker, selection.causal, q.size[2], k.size[2]);
  checker.done();
  const BlockScores scores(q, k, selection);
  const int64_t rows = q.size[2] / selection.query_block + (q.size[2] % selection.query_block != 0);
  return select_rows(
      {q.size[0], q.size[1], rows}, selection.query_block, selection.key_block,
      [&](int64_t b, int64_t h, int64_t n, std::vector<int64_t>& list) { scores.add_row(b, h, n, list); });
}

BlockLists select_keys(ConstView<4> scores, int64_t count, bool causal) {
  Checker checker("select_keys");
  const auto [B, H, Lq, Lk] = scores.size;
  check_array(checker, "scores", scores);
  check_count(checker, "count", count);
  check_causal(checker, causal, Lq, Lk);
  checker.done();
  return select_rows({B, H, Lq}, 1, 1, [&, keys = Lk, queries = Lq](int64_t b, int64_t h, int64_t i, auto& list) {
    const char* row = detail::at(scores, b, h, i);
    const int64_t step = detail::last_stride(scores) * size_of(scores.dtype);
    std::vector<Candidate> candidates;
    for (int64_t j = 0; j < (causal ? i + keys - queries + 1 : keys); ++j) {
      const double score = detail::load_element(scores.dtype, row + j * step);
      if (is_score(score)) candidates.push_back({score, j});
    }
    add_largest(candidates, count, list);
  });
}

}  // namespace attn
