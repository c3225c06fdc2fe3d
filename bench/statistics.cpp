// Calls of attention_statistics() next to the forward call whose lse they read, in the same run.
#include "statistics.h"

#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "clock.h"
#include "measure.h"
#include "race.h"

namespace bench {
namespace {

constexpr int64_t kTokens = 4096, kCheckedTokens = 300, kManyTokens = 100000;
constexpr int64_t kCells = 64, kLargest = 8, kLabels = 16;
constexpr double kSeconds = 4;

const std::vector<attn::KeyBand> kBands = {
    attn::key_bands::first, attn::key_bands::self, attn::key_bands::previous, attn::key_bands::next, {-64, 0}};

/// One head: a forward call and all that can be asked about it.
class Call {
 public:
  Call(attn::DType dtype, int64_t n, int64_t depth, bool causal)
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
  void ask(const attn::AttentionStatistics& wanted) {
    attn::attention_statistics(view(q_), view(k_), lse_, wanted, options_);
  }
  void ask_reference(const attn::AttentionStatistics& wanted) {
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
  explicit Results(const Call& call)
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
    one("picture, 64 x 64", &Results::add_picture);
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

  const Call& call_;
  attn::Tensor<float, 3> rows_[5], mass_, place_;
  attn::Tensor<float, 4> bands_, masses_, weights_;
  attn::Tensor<int64_t, 4> keys_;
  attn::Tensor<float, 4> cells_;
};

bool check(attn::DType dtype, int64_t depth, bool causal) {
  Call call(dtype, kCheckedTokens, depth, causal);
  Results actual(call), expected(call);
  call.forward();
  call.ask(actual.all());
  call.ask_reference(expected.all());
  return actual.difference(expected) <= error_bound(attn::DType::float32);
}

/// Of losses that are half the squares of statistics, whose gradients are the statistics.
void print_gradients(Call& call, Results& results) {
  const attn::AttentionStatistics all = results.all();
  call.ask(all);
  attn::RowStatisticsGradients entropy, masses, every;
  entropy.entropy = every.entropy = all.rows.entropy;
  masses.bands = every.bands = all.rows.bands;
  masses.labels = every.labels = all.rows.labels;
  every.participation = all.rows.participation;
  every.distance = all.rows.distance;
  every.same_token = all.rows.same_token;
  std::printf("  gradients, in units of the backward beside them\n");
  const std::pair<const char*, const attn::RowStatisticsGradients*> losses[] = {
      {"entropy", &entropy}, {"bands and labels", &masses}, {"all of them", &every}};
  for (const auto& [name, drows] : losses) {
    const double time =
        relative_time([&, from = drows] { call.differentiate(all, *from); }, [&] { call.backward(); }, kSeconds);
    std::printf("  %-18s %5.2f\n", name, time);
  }
}

void print_table(attn::DType dtype, int64_t depth, bool causal) {
  Call call(dtype, kTokens, depth, causal);
  Results results(call);
  call.forward();
  std::printf("\n%s, D = %ld%s\n", std::string(attn::name_of(dtype)).c_str(), static_cast<long>(depth),
              causal ? ", causal" : "");
  for (const auto& [name, wanted] : results.each()) {
    const double time = relative_time([&, &asked = wanted] { call.ask(asked); }, [&] { call.forward(); }, kSeconds);
    std::printf("  %-18s %5.2f\n", name.c_str(), time);
  }
  print_gradients(call, results);
}

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void print_many_tokens() {
  attn::set_thread_count(0);
  Call call(attn::DType::float32, kManyTokens, 64, true);
  Results results(call);
  const double forward = seconds_of([&] { call.forward(); }), before = peak_megabytes();
  const double statistics = seconds_of([&] { call.ask(results.all()); });
  std::printf(
      "\n%ld tokens, one head, float32, D = 64, causal, %d threads: forward %.1f s, all statistics %.1f s;\n"
      "peak of memory %.0f MB after the forward, %.0f MB after the statistics\n",
      static_cast<long>(kManyTokens), attn::thread_count(), forward, statistics, before, peak_megabytes());
}

}  // namespace

bool run_statistics() {
  attn::set_thread_count(1);
  std::printf("Times of statistics of %ld tokens, one head, in units of the forward beside them; %s, one thread.\n",
              static_cast<long>(kTokens), attn::active_isa().c_str());
  const std::tuple<attn::DType, int64_t, bool> kinds[] = {{attn::DType::float32, 64, false},
                                                          {attn::DType::float32, 64, true},
                                                          {attn::DType::float32, 128, false},
                                                          {attn::DType::bfloat16, 64, false},
                                                          {attn::DType::float16, 64, false}};
  for (const auto& [dtype, depth, causal] : kinds) {
    if (!check(dtype, depth, causal)) {
      std::printf("%s, D = %ld: WRONG\n", std::string(attn::name_of(dtype)).c_str(), static_cast<long>(depth));
      return false;
    }
    print_table(dtype, depth, causal);
  }
  print_many_tokens();
  return true;
}

}  // namespace bench
