// attention_statistics(): what rows, columns and cells of P add up to, with one tile of P in memory at a time.
//
//   for each slab of rows of a head                              a task
//     for each block of keys, for each panel                     walk_keys
//       S = K Q^T;  S <- options, mask;  P = 2^(S - lse), with its sums in the lanes
//       what rows gather, in double;  what the slab gathers for columns and cells
//   for each head: its slabs, in order                           a task
//   for each row: does P sum up to 1?
#include <algorithm>
#include <cmath>

#include "attention/forward.h"
#include "attention/statistics_worker.h"
#include "attention/task.h"

namespace attn::detail {
namespace {

// Heads are cut into slabs where there are fewer than this, which bounds what slabs hold for columns: so many numbers a
// key at the most.
constexpr int64_t kSlabs = 16;

std::vector<int32_t> labels_of(const ConstView<2>& ids) {
  std::vector<int32_t> labels;
  labels.reserve(ids.size[0] * ids.size[1]);
  for (int64_t b = 0; b < ids.size[0]; ++b)
    for (int64_t j = 0; j < ids.size[1]; ++j)
      labels.push_back(static_cast<int32_t>(std::max<int64_t>(id_at(ids, b, j), -1)));
  return labels;
}

/// The distinct ids, rising.
std::vector<int64_t> distinct_ids(const ConstView<2>& ids) {
  std::vector<int64_t> all;
  all.reserve(ids.size[0] * ids.size[1]);
  for (int64_t b = 0; b < ids.size[0]; ++b)
    for (int64_t j = 0; j < ids.size[1]; ++j) all.push_back(id_at(ids, b, j));
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// The place of each id among `known`; -1 where it is not there.
std::vector<int32_t> numbered(const ConstView<2>& ids, const std::vector<int64_t>& known) {
  std::vector<int32_t> numbers;
  numbers.reserve(ids.size[0] * ids.size[1]);
  for (int64_t b = 0; b < ids.size[0]; ++b)
    for (int64_t j = 0; j < ids.size[1]; ++j) {
      const int64_t id = id_at(ids, b, j);
      const auto found = std::lower_bound(known.begin(), known.end(), id);
      numbers.push_back(found != known.end() && *found == id ? static_cast<int32_t>(found - known.begin()) : -1);
    }
  return numbers;
}

/// The band of each index of an axis, of which [begin, end) is shown in so many bands.
std::vector<int32_t> bands_of(int64_t length, int64_t begin, int64_t end, int64_t bands) {
  std::vector<int32_t> band(length, -1);
  for (int64_t n = begin; n < end && bands > 0; ++n)
    band[n] = static_cast<int32_t>((n - begin) * bands / (end - begin));
  return band;
}

/// The slabs of a call, sequence by sequence, head by head. Their cut depends on shapes and on the picture alone.
std::vector<Slab> slabs_of(const StatisticsCall& call, bool picture_alone) {
  const Problem& p = call.p;
  std::vector<Slab> slabs;
  const int64_t parts = div_up(kSlabs, std::max<int64_t>(1, p.H * static_cast<int64_t>(p.sequences.size())));
  for (const Sequence& s : p.sequences) {
    const TileKernels& tk = row_kernels(p, s);
    int64_t begin = 0, end = s.query_count;
    if (picture_alone) {
      begin = std::max<int64_t>(call.area.query_begin - s.query_begin, 0);
      end = std::min(call.area.query_end - s.query_begin, s.query_count);
    }
    const int64_t group = int64_t{tk.group_panels} * tk.panel;
    const int64_t step = std::max<int64_t>(1, div_up(div_up(end - begin, group), parts)) * group;
    for (int64_t h = 0; h < p.H; ++h)
      for (int64_t first = begin; first < end; first += step) {
        Slab slab;
        slab.sequence = &s;
        slab.head = h;
        slab.first = first;
        slab.rows = std::min(step, end - first);
        slabs.push_back(std::move(slab));
      }
  }
  return slabs;
}

/// Memory for what the slab adds to its head.
void prepare(const StatisticsCall& call, Slab& slab) {
  const Sequence& s = *slab.sequence;
  slab.means.assign(call.numbers(), 0);
  if (call.columns) slab.mass.assign(s.key_count, 0);
  if (call.moments) slab.moment.assign(s.key_count, 0);
  const int64_t begin = std::max(s.query_begin + slab.first, call.area.query_begin);
  const int64_t end = std::min(s.query_begin + slab.first + slab.rows, call.area.query_end);
  if (!call.picture || begin >= end || call.cell_columns == 0) return;
  slab.first_cell = call.row_band[begin];
  slab.cells.assign((call.row_band[end - 1] - slab.first_cell + 1) * call.cell_columns, 0);
}

/// What the slabs of a head add up to.
class HeadResults {
 public:
  HeadResults(const StatisticsCall& call, int64_t b, int64_t h)
      : call_(call),
        b_(b),
        h_(h),
        means_(call.numbers()),
        mass_(call.columns ? call.p.Lk : 0),
        moment_(call.moments ? call.p.Lk : 0),
        cells_(call.wanted.picture.cells.size[2] * call.cell_columns) {}

  void add(const Slab& slab) {
    const int64_t key = slab.sequence->key_begin;
    seeing_ += slab.seeing;
    for (size_t n = 0; n < means_.size(); ++n) means_[n] += slab.means[n];
    for (size_t j = 0; j < slab.mass.size(); ++j) mass_[key + j] += slab.mass[j];
    for (size_t j = 0; j < slab.moment.size(); ++j)  // positions count inside the sequence, results on the whole axis
      moment_[key + j] += slab.moment[j] + static_cast<double>(key) * slab.mass[j];
    double* cells = cells_.data() + slab.first_cell * call_.cell_columns;
    for (size_t n = 0; n < slab.cells.size(); ++n)
      cells[n] = call_.wanted.picture.maximum ? std::max(slab.cells[n], cells[n]) : cells[n] + slab.cells[n];
  }

  void write() {
    const AttentionStatistics& wanted = call_.wanted;
    for (double& mean : means_) mean = seeing_ > 0 ? mean / seeing_ : 0;
    store_numbers<2>(call_, wanted.means, {b_, h_}, means_.data());
    for (int64_t j = 0; j < static_cast<int64_t>(mass_.size()); ++j) {
      if (wanted.column_mass) store_value<3>(wanted.column_mass, {b_, h_, j}, mass_[j] * factor(j));
      if (wanted.column_position) store_value<3>(wanted.column_position, {b_, h_, j}, moment_[j] / mass_[j]);
    }
    write_cells();
  }

 private:
  double factor(int64_t j) const {
    const ConstView<3>& f = call_.wanted.key_factor;
    return f ? key_factor_at(f, f.size[0] == 1 ? 0 : b_, h_ * f.size[1] / call_.p.H, j) : 1;
  }

  void write_cells() const {
    const AttentionPicture& picture = call_.wanted.picture;
    const Rectangle& area = call_.area;
    const auto in_band = [](int64_t band, int64_t bands, int64_t length) {  // indices that are in it
      const auto first = [&](int64_t of) { return div_up(of * length, bands); };
      return static_cast<double>(first(band + 1) - first(band));
    };
    const int64_t R = picture.cells.size[2], C = call_.cell_columns;
    for (int64_t r = 0; picture.cells && r < R; ++r)
      for (int64_t c = 0; c < C; ++c) {
        const double pairs =
            in_band(r, R, area.query_end - area.query_begin) * in_band(c, C, area.key_end - area.key_begin);
        store_value<4>(picture.cells, {b_, h_, r, c}, cells_[r * C + c] / (picture.maximum ? 1 : pairs));
      }
  }

  const StatisticsCall& call_;
  const int64_t b_, h_;
  double seeing_ = 0;
  std::vector<double> means_, mass_, moment_, cells_;
};

/// Holds the sums of the rows against 1.
class SumCheck {
 public:
  explicit SumCheck(StatisticsCall& call) : call_(call), p_(call.p) {
    const bool is_double = p_.q.dtype == DType::float64;
    unit_ = product_unit_ = is_double ? 0x1p-53 : 0x1p-24;
    if (p_.q.dtype != DType::float32) return;
    if (p_.options->float32_precision == Float32Precision::high) product_unit_ = 0x1p-16;
    if (p_.options->float32_precision == Float32Precision::fast) product_unit_ = 0x1p-8;
  }

  /// The first row of the slab that the rounding of two computations cannot explain.
  void check(Checker& checker, const Slab& slab) {
    const Sequence& s = *slab.sequence;
    norm_ = -1;
    for (int64_t i = s.query_begin + slab.first; i < s.query_begin + slab.first + slab.rows; ++i) {
      const double lse = load_row_value(call_.lse, s.batch, slab.head, i), sum = call_.sum(s.batch, slab.head, i);
      if (std::isnan(lse) || lse == kInfinity) continue;
      const double sink = p_.options->sink.empty() ? -kInfinity : double{p_.options->sink[slab.head]};
      const double expected = lse == -kInfinity ? 0 : 1 - std::exp(sink - lse);
      const double error = std::abs(sum - expected);
      if (error <= bound(s, lse, 0) || error <= bound(s, lse, largest_score(slab, i))) continue;
      checker.require(false, [&] {
        return "lse does not belong to q, k and the options: the weights of row [" + std::to_string(s.batch) + ", " +
               std::to_string(slab.head) + ", " + std::to_string(i) + "] add up to " + std::to_string(sum) +
               ", must be " + std::to_string(expected);
      });
      return;
    }
  }

 private:
  /// Two computations of a score differ by the rounding of their products, at most `score` in sum, and of their
  /// exponents; n weights then add up in tiles.
  double bound(const Sequence& s, double lse, double score) const {
    if (lse == -kInfinity) return 0;
    const double steps = static_cast<double>(p_.D) + 8;
    const double exponent = std::abs(lse) + std::log(static_cast<double>(s.key_count) + 1) + score;
    const double error = steps * product_unit_ * score + 8 * unit_ * exponent;
    return std::expm1(2 * error) + 2 * kernels::kMaxBlockKeys * unit_;
  }

  /// scale |q_i| max |k_j|: at least the magnitudes of what adds up to a score, by Cauchy and Schwarz.
  double largest_score(const Slab& slab, int64_t i) {
    const Sequence& s = *slab.sequence;
    if (norm_ < 0) {
      const KeyRows keys = KeyRows::keys(p_, s, slab.head / p_.G);
      norm_ = 0;
      for (int64_t j = 0; j < s.key_count; ++j) {
        void* row = nullptr;
        const kernels::RowsArgs args = keys.list(j, j + 1, &row);
        norm_ = std::max(norm_, norm(row, args.stride));
      }
    }
    return std::abs(p_.scale) * norm_ * norm(at(p_.q, s.batch, slab.head, i), p_.D == 1 ? 1 : p_.q.stride[3]);
  }
  double norm(const void* row, int64_t stride) const {
    double squares = 0;
    for (int64_t d = 0; d < p_.D; ++d) {
      const double x = load_element(p_.q.dtype, static_cast<const char*>(row) + d * stride * size_of(p_.q.dtype));
      squares += x * x;
    }
    return std::sqrt(squares);
  }

  StatisticsCall& call_;
  const Problem& p_;
  double unit_ = 0, product_unit_ = 0;
  double norm_ = -1;  // of the largest key of the slab; -1 = not known
};

void run_statistics(StatisticsCall& call, std::vector<Slab>& slabs) {
  const Problem& p = call.p;
  int64_t bytes = 0;
  for (const Sequence& s : p.sequences)
    bytes = std::max(bytes, StatisticsWorker(call, row_kernels(p, s)).layout(nullptr));
  const auto count = static_cast<int64_t>(slabs.size());
  parallel_for(count, [&](int64_t t) {
    Slab& slab = slabs[count - 1 - t];  // longest first: with causal masks the last rows have the most keys
    const TileKernels& tk = row_kernels(p, *slab.sequence);
    const InKernels kernels(tk);
    StatisticsWorker worker(call, tk);
    worker.layout(thread_scratch(bytes));
    prepare(call, slab);
    worker.run(slab);
  });
  parallel_for(p.B * p.H, [&](int64_t t) {
    HeadResults head(call, t / p.H, t % p.H);
    for (const Slab& slab : slabs)
      if (slab.sequence->batch == t / p.H && slab.head == t % p.H) head.add(slab);
    head.write();
  });
}

/// True if rows outside of the picture have nothing to give.
bool picture_alone(const AttentionStatistics& wanted) {
  const auto any = [](const auto& s) {
    return s.sum || s.entropy || s.participation || s.maximum || s.distance || s.same_token || s.bands || s.labels;
  };
  return wanted.picture.cells && !any(wanted.rows) && !any(wanted.means) && !wanted.argmax_key && !wanted.top_weight &&
         !wanted.top_key && !wanted.column_mass && !wanted.column_position;
}

}  // namespace

StatisticsCall::StatisticsCall(const Problem& p_, const ConstView<3>& lse_, const AttentionStatistics& wanted_)
    : p(p_), lse(lse_), wanted(wanted_) {
  const KeySets& sets = wanted.sets;
  largest = std::max(wanted.top_weight ? wanted.top_weight.size[3] : 0, wanted.top_key ? wanted.top_key.size[3] : 0);
  distance = wanted.rows.distance || wanted.means.distance;
  maximum = wanted.rows.maximum || wanted.means.maximum || wanted.argmax_key || largest > 0;
  same_token = wanted.rows.same_token || wanted.means.same_token;
  columns = wanted.column_mass || wanted.column_position;
  moments = bool(wanted.column_position);
  picture = bool(wanted.picture.cells);
  if (wanted.rows.bands || wanted.means.bands) bands = static_cast<int64_t>(sets.bands.size());
  labels = label_count(wanted);
  if (labels > 0) label = labels_of(sets.labels);
  if (same_token) {
    const std::vector<int64_t> known = distinct_ids(sets.key_token_ids);
    tokens = static_cast<int64_t>(known.size());
    query_token_ids = numbered(sets.query_token_ids, known);
    key_token_ids = numbered(sets.key_token_ids, known);
  }
  if (picture) {
    area = shown(wanted.picture, p);
    cell_columns = wanted.picture.cells.size[3];
    row_band = bands_of(p.Lq, area.query_begin, area.query_end, wanted.picture.cells.size[2]);
    column_band = bands_of(p.Lk, area.key_begin, area.key_end, cell_columns);
  }
  sums.resize(p.B * p.H * p.Lq);
}

void make_statistics(Checker& checker, const Problem& p, const ConstView<3>& lse, const AttentionStatistics& wanted) {
  check_statistics(checker, p, lse, wanted, ValueTypes::of_lse);
  checker.done();
  const ProfileSpan span("attention_statistics", [&] { return scores_work(p); });
  StatisticsCall call(p, lse, wanted);
  std::vector<Slab> slabs = slabs_of(call, picture_alone(wanted));
  run_statistics(call, slabs);
  SumCheck sums(call);
  for (const Slab& slab : slabs)
    if (checker.ok()) sums.check(checker, slab);
  checker.done();
}

}  // namespace attn::detail

namespace attn {

void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options) {
  Checker checker("attention_statistics");
  const detail::Problem p = detail::make_problem(checker, q, k, k, options);
  detail::make_statistics(checker, p, lse, wanted);
}

}  // namespace attn
