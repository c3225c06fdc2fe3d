// Calls of attention_statistics() and its backward, in units of the calls of attention beside them. One thread.
#include <sys/resource.h>

#include <cmath>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

constexpr int64_t kTokens = 4096, kCheckedTokens = 300;
constexpr int64_t kCells = 64, kLargest = 8, kLabels = 16;
constexpr double kSeconds = 4;  // for each figure, unless --seconds says otherwise

const std::vector<attn::KeyBand> kBands = {
    attn::key_bands::first, attn::key_bands::self, attn::key_bands::previous, attn::key_bands::next, {-64, 0}};

/// One head: a call of attention and every call about its weights.
class HeadCalls {
 public:
  HeadCalls(attn::DType dtype, int64_t n, int64_t depth, bool causal)
      : dtype_(dtype), n_(n), lse_({1, 1, n}), ids_({1, n}), labels_({1, n}) {
    options_.causal = causal;
    for (attn::Buffer* buffer : {&q_, &k_, &v_, &out_, &dq_, &dk_, &dv_})
      *buffer = attn::Buffer(n * depth * attn::size_of(dtype), true);
    attn::Random random(1);
    for (attn::Buffer* buffer : {&q_, &k_, &v_})
      for (int64_t i = 0; i < n * depth; ++i) set(*buffer, i, static_cast<float>(random.normal()));
    size_ = {1, 1, n, depth};
    for (int64_t i = 0; i < n; ++i) {
      ids_[i] = random.below(1000);
      labels_[i] = random.below(kLabels);
    }
  }

  void forward() { attn::attention(view(q_), view(k_), view(v_), view(out_), lse_, options_); }
  void statistics(const attn::AttentionStatistics& wanted) {
    attn::attention_statistics(view(q_), view(k_), lse_, wanted, options_);
  }
  void reference_statistics(const attn::AttentionStatistics& wanted) {
    attn::reference::attention_statistics(view(q_), view(k_), lse_, wanted, options_);
  }
  void backward() {  // of v's own size
    attn::attention_backward(view(q_), view(k_), view(v_), view(out_), lse_, view(v_),
                             {.dq = view(dq_), .dk = view(dk_), .dv = view(dv_)}, options_);
  }
  void differentiate(const attn::AttentionStatistics& statistics, const attn::RowStatisticsGradients& drows) {
    attn::attention_statistics_backward(view(q_), view(k_), lse_, statistics, drows, {.dq = view(dq_), .dk = view(dk_)},
                                        options_);
  }
  const attn::Tensor<int64_t, 2>& ids() const { return ids_; }
  const attn::Tensor<int64_t, 2>& labels() const { return labels_; }
  int64_t tokens() const { return n_; }

 private:
  void set(attn::Buffer& buffer, int64_t i, float value) const {
    if (dtype_ == attn::DType::float32) static_cast<float*>(buffer.data())[i] = value;
    else if (dtype_ == attn::DType::bfloat16) static_cast<attn::bfloat16*>(buffer.data())[i] = value;
    else static_cast<attn::float16*>(buffer.data())[i] = value;
  }
  attn::View<4> view(const attn::Buffer& buffer) const { return {buffer.data(), dtype_, size_}; }

  attn::DType dtype_;
  int64_t n_;
  attn::Shape<4> size_{};
  attn::AttentionOptions options_;
  attn::Buffer q_, k_, v_, out_, dq_, dk_, dv_;
  attn::Tensor<float, 3> lse_;
  attn::Tensor<int64_t, 2> ids_, labels_;
};

/// Room for every result of a call.
class Results {
 public:
  explicit Results(const HeadCalls& call)
      : call_(call),
        rows_{attn::Tensor<float, 3>({1, 1, call.tokens()}), attn::Tensor<float, 3>({1, 1, call.tokens()}),
              attn::Tensor<float, 3>({1, 1, call.tokens()}), attn::Tensor<float, 3>({1, 1, call.tokens()}),
              attn::Tensor<float, 3>({1, 1, call.tokens()})},
        mass_({1, 1, call.tokens()}),
        place_({1, 1, call.tokens()}),
        bands_({1, 1, call.tokens(), static_cast<int64_t>(kBands.size())}),
        masses_({1, 1, call.tokens(), kLabels}),
        weights_({1, 1, call.tokens(), kLargest}),
        keys_({1, 1, call.tokens(), kLargest}),
        cells_({1, 1, kCells, kCells}) {}

  using Wanted = attn::AttentionStatistics;
  std::vector<std::pair<std::string, Wanted>> each() {
    std::vector<std::pair<std::string, Wanted>> list;
    const auto one = [&](const char* name, Wanted (Results::*add)(Wanted)) {
      list.emplace_back(name, (this->*add)({}));
    };
    one("entropy", &Results::add_entropy);
    one("participation", &Results::add_participation);
    one("maximum", &Results::add_maximum);
    one("distance", &Results::add_distance);
    one("5 bands", &Results::add_bands);
    one("16 labels", &Results::add_labels);
    one("same token", &Results::add_same_token);
    one("columns", &Results::add_columns);
    one("picture of 64 x 64", &Results::add_picture);
    one("8 largest", &Results::add_largest);
    list.emplace_back("all of them", all());
    return list;
  }
  Wanted all() {
    return add_largest(add_picture(add_columns(
        add_same_token(add_labels(add_bands(add_distance(add_maximum(add_participation(add_entropy({}))))))))));
  }

  /// The largest difference between these values and others, in parts of the largest of each array.
  double difference(const Results& other) const {
    double worst = 0;
    const auto compare = [&](const auto& a, const auto& b) {
      double most = 0, apart = 0;
      for (int64_t i = 0; i < a.count(); ++i) {
        most = std::fmax(most, std::abs(b[i]));
        apart = std::fmax(apart, std::abs(a[i] - b[i]));
        if (std::isnan(a[i]) != std::isnan(b[i])) apart = INFINITY;
      }
      worst = std::fmax(worst, most == 0 ? apart : apart / most);
    };
    for (size_t n = 0; n < std::size(rows_); ++n) compare(rows_[n], other.rows_[n]);
    compare(mass_, other.mass_);
    compare(place_, other.place_);
    compare(bands_, other.bands_);
    compare(masses_, other.masses_);
    compare(weights_, other.weights_);
    compare(cells_, other.cells_);
    return worst;
  }

 private:
  Wanted add_entropy(Wanted w) { return w.rows.entropy = rows_[0], w; }
  Wanted add_participation(Wanted w) { return w.rows.participation = rows_[1], w; }
  Wanted add_maximum(Wanted w) { return w.rows.maximum = rows_[2], w; }
  Wanted add_distance(Wanted w) { return w.rows.distance = rows_[3], w; }
  Wanted add_bands(Wanted w) { return w.sets.bands = kBands, w.rows.bands = bands_, w; }
  Wanted add_labels(Wanted w) { return w.sets.labels = call_.labels(), w.rows.labels = masses_, w; }
  Wanted add_same_token(Wanted w) {
    return w.sets.query_token_ids = call_.ids(), w.sets.key_token_ids = call_.ids(), w.rows.same_token = rows_[4], w;
  }
  Wanted add_columns(Wanted w) { return w.column_mass = mass_, w.column_position = place_, w; }
  Wanted add_picture(Wanted w) { return w.picture.cells = cells_, w; }
  Wanted add_largest(Wanted w) { return w.top_weight = weights_, w.top_key = keys_, w; }

  const HeadCalls& call_;
  attn::Tensor<float, 3> rows_[5], mass_, place_;
  attn::Tensor<float, 4> bands_, masses_, weights_;
  attn::Tensor<int64_t, 4> keys_;
  attn::Tensor<float, 4> cells_;
};

bool check(attn::DType dtype, int64_t depth, bool causal) {
  HeadCalls call(dtype, kCheckedTokens, depth, causal);
  Results actual(call), expected(call);
  call.forward();
  call.statistics(actual.all());
  call.reference_statistics(expected.all());
  return actual.difference(expected) <= error_bound(attn::DType::float32);
}

/// Adds rows about one kind of call.
class Rows {
 public:
  Rows(std::string kind, double seconds, Report& report) : kind_(std::move(kind)), seconds_(seconds), report_(report) {}
  void add(const std::string& what, const std::function<void()>& work, const char* unit,
           const std::function<void()>& base) const {
    report_.add({{"isa", attn::active_isa()},
                 {"call", kind_},
                 {"what", what},
                 {"time", relative_time(work, base, seconds_)},
                 {"in", unit}});
  }
  void add(const std::string& what, double value, const char* unit) const {
    report_.add({{"isa", attn::active_isa()}, {"call", kind_}, {"what", what}, {"time", value}, {"in", unit}});
  }

 private:
  std::string kind_;
  double seconds_;
  Report& report_;
};

/// The gradients of losses that are half the squares of statistics: their gradients are the statistics themselves.
void add_gradients(HeadCalls& call, Results& results, const Rows& rows) {
  const attn::AttentionStatistics all = results.all();
  call.statistics(all);
  attn::RowStatisticsGradients entropy, masses, every;
  entropy.entropy = every.entropy = all.rows.entropy;
  masses.bands = every.bands = all.rows.bands;
  masses.labels = every.labels = all.rows.labels;
  every.participation = all.rows.participation;
  every.distance = all.rows.distance;
  every.same_token = all.rows.same_token;
  const std::pair<const char*, const attn::RowStatisticsGradients*> losses[] = {
      {"gradient of entropy", &entropy}, {"gradient of bands and labels", &masses}, {"gradient of all", &every}};
  for (const auto& [name, drows] : losses)
    rows.add(
        name, [&, from = drows] { call.differentiate(all, *from); }, "backwards", [&] { call.backward(); });
}

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// All threads: seconds, and the most memory that the process has had.
void add_long_text(int64_t tokens, Report& report) {
  attn::set_thread_count(0);
  HeadCalls call(attn::DType::float32, tokens, 64, true);
  Results results(call);
  const Rows rows("float32 n" + std::to_string(tokens) + " D64 causal", 0, report);
  rows.add("forward", seconds_of([&] { call.forward(); }), "s");
  rows.add("memory after the forward", peak_megabytes(), "MB");
  rows.add("all statistics", seconds_of([&] { call.statistics(results.all()); }), "s");
  rows.add("memory after the statistics", peak_megabytes(), "MB");
}

}  // namespace

bool run_statistics(const Settings& settings, Report& report) {
  attn::set_thread_count(1);
  const std::tuple<attn::DType, int64_t, bool> kinds[] = {{attn::DType::float32, 64, false},
                                                          {attn::DType::float32, 64, true},
                                                          {attn::DType::float32, 128, false},
                                                          {attn::DType::bfloat16, 64, false},
                                                          {attn::DType::float16, 64, false}};
  for (const auto& [dtype, depth, causal] : kinds) {
    const Rows rows(std::string(attn::name_of(dtype)) + " n" + std::to_string(kTokens) + " D" + std::to_string(depth) +
                        (causal ? " causal" : ""),
                    settings.seconds > 0 ? settings.seconds : kSeconds, report);
    if (!check(dtype, depth, causal)) {
      rows.add("WRONG", NAN, "");
      return false;
    }
    HeadCalls call(dtype, kTokens, depth, causal);
    Results results(call);
    call.forward();
    for (const auto& [name, wanted] : results.each())
      rows.add(
          name, [&, &one = wanted] { call.statistics(one); }, "forwards", [&] { call.forward(); });
    add_gradients(call, results, rows);
  }
  if (settings.long_text > 0) add_long_text(settings.long_text, report);
  return true;
}

}  // namespace bench
