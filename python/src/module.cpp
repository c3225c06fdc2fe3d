// The extension module attention_cpp._core: the operator on arrays that the caller has allocated. What users see is
// the Python around it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <tuple>

#include "arguments.h"
#include "attn/attention_statistics.h"
#include "attn/core_names.h"
#include "attn/peaks.h"
#include "cluster.h"
#include "convolution.h"
#include "exchange.h"
#include "executor.h"
#include "heads.h"
#include "layouts.h"
#include "linear.h"
#include "page.h"
#include "profile.h"
#include "shorten.h"

namespace bindings {
namespace {

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle options,
             bool is_out_given) {
  Arguments in("attention");
  attn::ConstView<4> q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
  const auto out_view = in.output<4>("out", out);
  const auto lse_view = in.output<3>("lse", lse);
  const attn::AttentionOptions parsed = in.options(options, q_view, k_view);
  in.done();
  share_head(q_view, k_view, v_view);
  const nb::gil_scoped_release unlocked;
  blaming_given({"lse", is_out_given ? "lse" : "out"},
                [&] { attn::attention(q_view, k_view, v_view, out_view, lse_view, parsed); });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout,
              nb::handle dlse, const nb::dict& gradients, nb::handle options) {
  Arguments in("attention_backward");
  attn::ConstView<4> q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
  const auto out_view = in.input<4>("out", out), dout_view = in.input<4>("dout", dout);
  const auto lse_view = in.input<3>("lse", lse), dlse_view = in.input<3>("dlse", dlse);
  const auto to = [&](const char* name) { return item_of(gradients, name); };
  attn::AttentionGradients wanted;
  wanted.dq = in.output<4>("dq", to("dq"));
  wanted.dk = in.output<4>("dk", to("dk"));
  wanted.dv = in.output<4>("dv", to("dv"));
  wanted.dbias = in.output<4>("dbias", to("dbias"));
  wanted.dsink = in.output<1>("dsink", to("dsink"));
  const attn::AttentionOptions parsed = in.options(options, q_view, k_view);
  in.done();
  // The gradient of one head is the sum over its copies; a caller that wants those of the copies gets them.
  if ((!wanted.dk || wanted.dk.size[1] == 1) && (!wanted.dv || wanted.dv.size[1] == 1))
    share_head(q_view, k_view, v_view);
  const nb::gil_scoped_release unlocked;
  blaming_given({"dq", "dk", "dv", "dbias", "dsink"}, [&] {
    attn::attention_backward(q_view, k_view, v_view, out_view, lse_view, dout_view, wanted, parsed, dlse_view);
  });
}

/// Raises where the weights of a row, or a part of it, add up to more than all: lse is that of other arrays or options
/// then. Two computations of the scores differ by far less, but where float32 enters products with fewer bits.
template <class T>
void check_sums(const attn::View<4>& weights, const attn::ConstView<3>& lse, int64_t first_query,
                const attn::AttentionOptions& options) {
  const bool is_full = options.float32_precision == attn::Float32Precision::full;
  std::vector<std::string> wrong(static_cast<size_t>(weights.size[0] * weights.size[1]));
  attn::parallel_for(weights.size[0] * weights.size[1], [&](int64_t task) {
    const int64_t b = task / weights.size[1], h = task % weights.size[1];
    for (int64_t i = 0; i < weights.size[2]; ++i) {
      const T* row =
          static_cast<const T*>(weights.data) + b * weights.stride[0] + h * weights.stride[1] + i * weights.stride[2];
      double sum = 0;
      for (int64_t j = 0; j < weights.size[3]; ++j) sum += row[j * weights.stride[3]];
      const int64_t at = b * lse.stride[0] + h * lse.stride[1] + (first_query + i) * lse.stride[2];
      if (!(sum > (is_full ? 1.02 + 0x1p-16 * std::abs(static_cast<const T*>(lse.data)[at]) : 2.0))) continue;
      wrong[static_cast<size_t>(task)] =
          "lse does not belong to q, k and the options (causal, mask, scale ... as in the forward): the weights of row "
          "[" +
          std::to_string(b) + ", " + std::to_string(h) + ", " + std::to_string(first_query + i) + "] add up to " +
          std::to_string(sum) + ", must be at most 1";
      return;
    }
  });
  const auto first = std::find_if(wrong.begin(), wrong.end(), [](const std::string& text) { return !text.empty(); });
  if (first != wrong.end()) throw attn::Error("attention_weights", {*first});
}

void weights(nb::handle q, nb::handle k, nb::handle lse, nb::handle out, int64_t first_query, int64_t first_key,
             nb::handle options) {
  Arguments in("attention_weights");
  attn::ConstView<4> q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), no_values;
  const auto lse_view = in.input<3>("lse", lse);
  const auto out_view = in.output<4>("out", out);
  const attn::AttentionOptions parsed = in.options(options, q_view, k_view);
  in.done();
  share_head(q_view, k_view, no_values);
  const nb::gil_scoped_release unlocked;
  attn::attention_weights(q_view, k_view, lse_view, out_view, first_query, first_key, parsed);
  if (out_view.dtype == attn::DType::float64) check_sums<double>(out_view, lse_view, first_query, parsed);
  else check_sums<float>(out_view, lse_view, first_query, parsed);
}

/// `results` by name: those of the rows, of the means with "mean_" before it, and the rest.
attn::AttentionStatistics statistics_of(Arguments& in, const nb::dict& results) {
  const auto to = [&](const std::string& name) { return item_of(results, name.c_str()); };
  attn::AttentionStatistics wanted;
  const auto rows = [&]<int Rank>(attn::RowStatistics<Rank>& s, const std::string& prefix) {
    const auto one = [&](const char* name) { return in.output<Rank>((prefix + name).c_str(), to(prefix + name)); };
    s.sum = one("sum");
    s.entropy = one("entropy");
    s.participation = one("participation");
    s.maximum = one("maximum");
    s.distance = one("distance");
    s.same_token = one("same_token");
    s.bands = in.output<Rank + 1>((prefix + "bands").c_str(), to(prefix + "bands"));
    s.labels = in.output<Rank + 1>((prefix + "labels").c_str(), to(prefix + "labels"));
  };
  rows(wanted.rows, "");
  rows(wanted.means, "mean_");
  wanted.argmax_key = in.output<3>("argmax_key", to("argmax_key"));
  wanted.top_weight = in.output<4>("top_weight", to("top_weight"));
  wanted.top_key = in.output<4>("top_key", to("top_key"));
  wanted.column_mass = in.output<3>("column_mass", to("column_mass"));
  wanted.column_position = in.output<3>("column_position", to("column_position"));
  wanted.picture.cells = in.output<4>("picture", to("picture"));
  return wanted;
}

using Band = std::tuple<int64_t, int64_t, int64_t>;                     // low, high, relative
using Shown = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;  // of the picture; 1 = the largest of a cell
/// Results by name, bands, labels, query_token_ids, key_token_ids, key_factor, picture.
using Asked = std::tuple<nb::dict, std::vector<Band>, nb::object, nb::object, nb::object, nb::object, Shown>;

/// What statistics are asked for.
class Question {
 public:
  Question(Arguments& in, const Asked& asked) {
    const auto& [results, bands, labels, query_token_ids, key_token_ids, key_factor, shown] = asked;
    wanted = statistics_of(in, results);
    for (const auto& [low, high, relative] : bands) bands_.push_back({low, high, relative != 0});
    wanted.sets.bands = bands_;
    wanted.sets.labels = in.input<2>("labels", labels);
    wanted.sets.query_token_ids = in.input<2>("query_token_ids", query_token_ids);
    wanted.sets.key_token_ids = in.input<2>("key_token_ids", key_token_ids);
    wanted.key_factor = in.input<3>("key_factor", key_factor);
    attn::AttentionPicture& picture = wanted.picture;
    int64_t largest = 0;
    std::tie(picture.first_query, picture.queries, picture.first_key, picture.keys, largest) = shown;
    picture.maximum = largest != 0;
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  attn::AttentionStatistics wanted;

 private:
  std::vector<attn::KeyBand> bands_;
};

void statistics(nb::handle q, nb::handle k, nb::handle lse, const Asked& asked, nb::handle options) {
  Arguments in("attention_statistics");
  attn::ConstView<4> q_view = in.input<4>("q", q), k_view = in.input<4>("k", k);
  const auto lse_view = in.input<3>("lse", lse);
  const Question question(in, asked);
  const attn::AttentionOptions parsed = in.options(options, q_view, k_view);
  in.done();
  const nb::gil_scoped_release unlocked;
  attn::attention_statistics(q_view, k_view, lse_view, question.wanted, parsed);
}

void merge(nb::handle out, nb::handle lse, nb::handle out_b, nb::handle lse_b) {
  Arguments in("merge");
  const auto out_view = in.output<4>("out", out);
  const auto lse_view = in.output<3>("lse", lse);
  const auto out_b_view = in.input<4>("out_b", out_b);
  const auto lse_b_view = in.input<3>("lse_b", lse_b);
  in.done();
  const nb::gil_scoped_release unlocked;
  attn::merge(out_view, lse_view, out_b_view, lse_b_view);
}

nb::tuple explain(nb::handle q, nb::handle k, nb::handle v, nb::handle options, bool backward, bool with_dbias) {
  Arguments in(backward ? "explain_backward" : "explain");
  attn::ConstView<4> q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
  const attn::AttentionOptions parsed = in.options(options, q_view, k_view);
  in.done();
  share_head(q_view, k_view, v_view);
  const attn::AttentionPlan plan = backward ? attn::explain_backward(q_view, k_view, v_view, parsed, with_dbias)
                                            : attn::explain(q_view, k_view, v_view, parsed);
  return nb::make_tuple(plan.path, plan.isa, plan.tasks, plan.scratch_bytes, plan.flops);
}

/// keep[b, h, i, j] for a boolean array [B, H, rows, columns] whose first row and column are given.
void dropout_keeps(uint64_t seed, double probability, nb::handle keep, int64_t first_query, int64_t first_key) {
  Arguments in("dropout_keeps");
  const auto view = in.output<4>("keep", keep);
  in.done();
  if (!view || view.dtype != attn::DType::boolean) throw attn::Error("dropout_keeps", {"keep must be a boolean array"});
  const nb::gil_scoped_release unlocked;
  attn::parallel_for(view.size[0] * view.size[1], [&](int64_t task) {
    const int64_t b = task / view.size[1], h = task % view.size[1];
    bool* head = static_cast<bool*>(view.data) + b * view.stride[0] + h * view.stride[1];
    for (int64_t i = 0; i < view.size[2]; ++i)
      for (int64_t j = 0; j < view.size[3]; ++j)
        head[i * view.stride[2] + j * view.stride[3]] =
            attn::dropout_keeps(seed, probability, b, h, first_query + i, first_key + j);
  });
}

attn::KVStorage storage_named(const std::string& operation, const std::string& name) {
  if (const auto storage = attn::from_name<attn::KVStorage>(name)) return *storage;
  throw attn::Error(operation, {"storage is '" + name + "', must be exact or int8"});
}

/// The cache, which allows many readers or one writer. A writer keeps the mutex, a reader is counted: it works without
/// the GIL, and a writer that finds one throws. Not every Python has a GIL.
class Cache {
 public:
  explicit Cache(const attn::KVCacheConfig& config) : cache_(config) {}

  int64_t add() {
    return write([&] { return cache_.add(); });
  }
  int64_t fork(int64_t sequence, int64_t length) {
    return write([&] { return cache_.fork(sequence, length); });
  }
  void truncate(int64_t sequence, int64_t length) {
    write([&] { return cache_.truncate(sequence, length), 0; });
  }
  void remove(int64_t sequence) {
    write([&] { return cache_.remove(sequence), 0; });
  }
  void append(int64_t sequence, nb::handle k, nb::handle v) {
    Arguments in("kv_cache.append");
    const auto k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
    in.done();
    write([&] { return cache_.append(sequence, k_view, v_view), 0; });
  }
  void attend(nb::handle sequences, nb::handle cu_seqlens_q, nb::handle q, nb::handle out, nb::handle lse,
              nb::handle options, nb::handle sink_queries) {
    Arguments in("kv_cache.attend");
    const auto ids = in.integers("sequences", sequences), starts = in.integers("cu_seqlens_q", cu_seqlens_q);
    const auto q_view = in.input<4>("q", q), sink_view = in.input<4>("sink_queries", sink_queries);
    const auto out_view = in.output<4>("out", out);
    const auto lse_view = in.output<3>("lse", lse);
    const attn::AttentionOptions parsed = parse(in, options);
    in.done();
    const Reading reading(*this);
    const nb::gil_scoped_release unlocked;
    blaming_given({"out", "lse"}, [&] { cache_.attend(ids, starts, q_view, out_view, lse_view, parsed, sink_view); });
  }
  void statistics(nb::handle sequences, nb::handle cu_seqlens_q, nb::handle q, nb::handle lse, const Asked& asked,
                  nb::handle options) {
    Arguments in("kv_cache.statistics");
    const auto ids = in.integers("sequences", sequences), starts = in.integers("cu_seqlens_q", cu_seqlens_q);
    const auto q_view = in.input<4>("q", q);
    const auto lse_view = in.input<3>("lse", lse);
    const Question question(in, asked);
    const attn::AttentionOptions parsed = parse(in, options);
    in.done();
    const Reading reading(*this);
    const nb::gil_scoped_release unlocked;
    cache_.statistics(ids, starts, q_view, lse_view, question.wanted, parsed);
  }
  int64_t length(int64_t sequence) {
    const std::lock_guard locked(mutex_);
    return cache_.length(sequence);
  }
  int64_t pages_in_use() {
    const std::lock_guard locked(mutex_);
    return cache_.pages_in_use();
  }
  int64_t page_bytes() const { return cache_.config().page_bytes(); }

 private:
  /// Counts a reader as long as it lives.
  struct Reading {
    explicit Reading(Cache& cache_read) : cache(cache_read) { count(1); }
    ~Reading() { count(-1); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    void count(int more) {
      const std::lock_guard locked(cache.mutex_);
      cache.readers_ += more;
    }
    Cache& cache;
  };
  /// Causal, the last query being the newest token, unless they say otherwise.
  static attn::AttentionOptions parse(Arguments& in, nb::handle options) {
    attn::AttentionOptions parsed = in.options(options);
    if (parsed.alignment == attn::Alignment::unspecified) parsed.alignment = attn::Alignment::bottom_right;
    if (!given_of(options).contains("causal")) parsed.causal = true;
    return parsed;
  }
  template <class Change>
  int64_t write(const Change& change) {
    const std::lock_guard locked(mutex_);
    if (readers_ > 0) throw attn::Error("kv_cache", {"another thread is reading the cache"});
    return change();
  }

  attn::KVCache cache_;
  std::mutex mutex_;
  int readers_ = 0;
};

}  // namespace
}  // namespace bindings

NB_MODULE(_core, m) {
  using namespace bindings;
  install_executor();
  nb::exception<attn::Error>(m, "Error", PyExc_ValueError);

  m.def("forward", &forward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("out").none(),
        nb::arg("lse").none(), nb::arg("options"), nb::arg("is_out_given") = false);
  m.def("backward", &backward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("out").none(),
        nb::arg("lse").none(), nb::arg("dout").none(), nb::arg("dlse").none(), nb::arg("gradients"),
        nb::arg("options"));
  m.def("weights", &weights, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("out").none(),
        nb::arg("first_query"), nb::arg("first_key"), nb::arg("options"));
  m.def("statistics", &statistics, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("asked"),
        nb::arg("options"));
  m.def("merge", &merge, nb::arg("out").none(), nb::arg("lse").none(), nb::arg("out_b").none(),
        nb::arg("lse_b").none());
  m.def("explain", &explain, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("options"),
        nb::arg("backward"), nb::arg("with_dbias"));
  m.def("dropout_keeps", &dropout_keeps, nb::arg("seed"), nb::arg("probability"), nb::arg("keep"),
        nb::arg("first_query"), nb::arg("first_key"));

  m.def("option_list", &option_list);
  m.def("available_isas", &attn::available_isas);
  m.def("active_isa", &attn::active_isa);
  m.def("set_isa", [](const std::string& name) { attn::set_isa(name); });
  m.def("float32_precision", &float32_precision);
  m.def("set_float32_precision", &set_float32_precision);
  m.def("thread_count", &attn::thread_count);
  m.def("set_thread_count", &attn::set_thread_count);
  m.def("peak_gflops", [](const std::string& dtype) {  // for the benchmarks
    return attn::peaks::measure_products(dtype_named("peak_gflops", dtype));
  });
  m.def("use_exchange", &use_exchange);
  m.def("fit_together", &fit_together, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("mask").none(), nb::arg("is_grouped"));
  m.def("use_openmp_team", &use_openmp_team);
  m.def("uses_openmp_team", &uses_openmp_team);

  add_cluster(m);
  add_convolution(m);
  add_heads(m);
  add_layouts(m);
  add_linear(m);
  add_page(m);
  add_profile(m);
  nb::class_<Cache>(m, "Cache")
      .def("__init__",
           [](Cache* self, int64_t kv_heads, int64_t head_dim, int64_t value_dim, const std::string& dtype,
              int64_t page_size, int64_t max_pages, int64_t sink_tokens, int64_t window, const std::string& storage) {
             new (self) Cache({kv_heads,
                               head_dim,
                               value_dim,
                               dtype_named("KVCache", dtype),
                               page_size,
                               max_pages,
                               {sink_tokens, window},
                               storage_named("KVCache", storage)});
           })
      .def("add", &Cache::add)
      .def("fork", &Cache::fork)
      .def("truncate", &Cache::truncate)
      .def("remove", &Cache::remove)
      .def("append", &Cache::append, nb::arg("sequence"), nb::arg("k").none(), nb::arg("v").none())
      .def("attend", &Cache::attend, nb::arg("sequences"), nb::arg("cu_seqlens_q"), nb::arg("q").none(),
           nb::arg("out").none(), nb::arg("lse").none(), nb::arg("options"), nb::arg("sink_queries").none())
      .def("statistics", &Cache::statistics, nb::arg("sequences"), nb::arg("cu_seqlens_q"), nb::arg("q").none(),
           nb::arg("lse").none(), nb::arg("asked"), nb::arg("options"))
      .def("length", &Cache::length)
      .def("pages_in_use", &Cache::pages_in_use)
      .def("page_bytes", &Cache::page_bytes);
}
