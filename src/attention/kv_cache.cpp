// The paged cache: sequences are lists of KV pages; pages are shared by forks until one of them writes.
//
// A page is one allocation: keys [Hk][page_size], then values [Hk][page_size], each a row of D or Dv numbers as they
// were given or, in 8 bits, of whole numbers and their scale. Sharing is by reference count: a full page is never
// written again, and a partly filled page of a fork is copied, so readers never see a change.
//
// A streaming cache frees pages whose tokens have all been evicted. Its queries attend to two key sets, the last tokens
// and the sink tokens, whose states are merged.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "attention/forward.h"
#include "attention/int8_rows.h"
#include "attention/statistics.h"
#include "attention/streaming.h"
#include "attn/core_names.h"
#include "core/numbers.h"

namespace attn {

struct KVCache::State {
  struct Call;
  struct Stored {
    std::vector<std::shared_ptr<Buffer>> pages;  // that have not been evicted
    int64_t length = 0;
    int64_t evicted_pages = 0;  // between the pages of the sink tokens and the others
    int64_t appended_from = 0;  // the length before the last append
  };
  KVCacheConfig config;
  int64_t next_id = 0;
  int64_t pages_in_use = 0;
  std::map<int64_t, Stored> sequences;  // last: its pages count themselves out

  int64_t row_bytes(int64_t n) const { return detail::row_bytes(config.storage, config.dtype, n); }
  int64_t key_bytes() const { return config.kv_heads * config.page_size * row_bytes(config.head_dim); }
  int64_t pages_for(int64_t length) const { return div_up(length, config.page_size); }
  int64_t sink_pages() const { return pages_for(config.streaming.sink_tokens); }

  /// True if some query of a sequence of this length attends to a part of its tokens.
  bool evicts(int64_t length) const { return config.streaming.window > 0 && length > config.streaming.kept(); }

  /// The page of a token that has not been evicted, as an index of `pages`.
  size_t page_of(const Stored& stored, int64_t token) const {
    const int64_t page = token / config.page_size;
    return static_cast<size_t>(page < sink_pages() ? page : page - stored.evicted_pages);
  }

  /// How many pages after those of the sink tokens no query from position `length` on attends to.
  int64_t evictable_pages(const Stored& stored) const {
    if (config.streaming.window == 0) return 0;
    const int64_t first_needed = stored.length + 1 - config.streaming.window;
    return std::max<int64_t>(0, first_needed / config.page_size - sink_pages() - stored.evicted_pages);
  }

  /// Keeps the first `length` tokens, of which none has been evicted.
  void cut(Stored& stored, int64_t length) const {
    if (length == stored.length) return;
    stored.pages.resize(static_cast<size_t>(pages_for(length)));
    stored.length = length;
    stored.evicted_pages = 0;
  }

  void check_cut(Checker& checker, const Stored& stored, int64_t length) const {
    const std::string most = std::to_string(stored.length);
    if (evicts(stored.length))
      checker.require(length == 0 || length == stored.length, [&] {
        return "length is " + std::to_string(length) + ", must be 0 or " + most + ": tokens have been evicted";
      });
    else
      checker.require(length >= 0 && length <= stored.length,
                      [&] { return "length is " + std::to_string(length) + ", must be in [0, " + most + "]"; });
  }

  Stored& find(std::string_view operation, int64_t sequence) {
    const auto found = sequences.find(sequence);
    if (found == sequences.end()) throw Error(operation, {"the cache has no sequence " + std::to_string(sequence)});
    return found->second;
  }

  /// Writes n numbers, `stride` elements apart, to a row of a page.
  void store_row(const char* numbers, int64_t stride, int64_t n, char* row) const {
    const int64_t element = size_of(config.dtype);
    if (config.storage == KVStorage::int8) detail::store_int8_row(config.dtype, numbers, stride, n, row);
    else if (stride == 1) std::memcpy(row, numbers, static_cast<size_t>(n * element));
    else
      for (int64_t d = 0; d < n; ++d)
        std::memcpy(row + d * element, numbers + d * stride * element, static_cast<size_t>(element));
  }

  std::shared_ptr<Buffer> new_page() {
    auto* raw = new Buffer(config.page_bytes());
    ++pages_in_use;
    return std::shared_ptr<Buffer>(raw, [this](Buffer* page) {
      delete page;
      --pages_in_use;
    });
  }
};

bool check_streaming(Checker& checker, const Streaming& streaming) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t sinks = streaming.sink_tokens, least = sinks > 0 ? 1 : 0;
  const bool sinks_fit = checker.require(sinks >= 0 && sinks <= kMost, [&] {
    return "sink_tokens is " + std::to_string(sinks) + ", must be in [0, 2^40]";
  });
  return checker.require(streaming.window >= least && streaming.window <= kMost, [&] {
    return "window is " + std::to_string(streaming.window) + ", must be in [" + std::to_string(least) + ", 2^40]" +
           (least ? " with sink_tokens = " + std::to_string(sinks) : "");
  }) && sinks_fit;
}

int64_t KVCacheConfig::page_bytes() const {
  const int64_t key = detail::row_bytes(storage, dtype, head_dim);
  const int64_t value = detail::row_bytes(storage, dtype, value_dim > 0 ? value_dim : head_dim);
  return kv_heads * page_size * (key + value);
}

KVCache::KVCache(const KVCacheConfig& config) : state_(std::make_unique<State>()) {
  Checker checker("KVCache");
  state_->config = config;
  KVCacheConfig& c = state_->config;
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  checker.require(c.kv_heads > 0, [&] { return "kv_heads is " + std::to_string(c.kv_heads) + ", must be positive"; });
  checker.require(c.head_dim > 0 && c.head_dim <= 1024 && c.value_dim > 0 && c.value_dim <= 1024, [&] {
    return "head_dim is " + std::to_string(c.head_dim) + " and value_dim " + std::to_string(c.value_dim) +
           ", must be in [1, 1024]";
  });
  checker.require(is_floating(c.dtype),
                  [&] { return "dtype is " + std::string(name_of(c.dtype)) + ", must be a floating type"; });
  checker.require(c.page_size > 0 && c.page_size <= (int64_t{1} << 24),
                  [&] { return "page_size is " + std::to_string(c.page_size) + ", must be in [1, 2^24]"; });
  checker.require(c.kv_heads <= (int64_t{1} << 20),
                  [&] { return "kv_heads is " + std::to_string(c.kv_heads) + ", must be at most 2^20"; });
  checker.require(c.max_pages >= 0,
                  [&] { return "max_pages is " + std::to_string(c.max_pages) + ", must not be negative"; });
  check_streaming(checker, c.streaming);
  checker.require(!name_of(c.storage).empty(), "storage has no such value");
  checker.done();
}

KVCache::~KVCache() = default;
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;

KVCache::State& KVCache::state() const {
  if (!state_) throw Error("KVCache", {"the cache has been moved from"});
  return *state_;
}

int64_t KVCache::add() {
  State& state = this->state();
  state.sequences.emplace(state.next_id, State::Stored{});
  return state.next_id++;
}

bool KVCache::contains(int64_t sequence) const { return state().sequences.count(sequence) == 1; }
int64_t KVCache::length(int64_t sequence) const { return state().find("KVCache::length", sequence).length; }
int64_t KVCache::pages_in_use() const { return state().pages_in_use; }
const KVCacheConfig& KVCache::config() const { return state().config; }
void KVCache::remove(int64_t sequence) {
  state().find("KVCache::remove", sequence);
  state().sequences.erase(sequence);
}

void KVCache::truncate(int64_t sequence, int64_t length) {
  State::Stored& stored = state().find("KVCache::truncate", sequence);
  Checker checker("KVCache::truncate");
  state().check_cut(checker, stored, length);
  checker.done();
  state().cut(stored, length);
}

int64_t KVCache::fork(int64_t sequence, int64_t length) {
  const State::Stored& source = state().find("KVCache::fork", sequence);
  Checker checker("KVCache::fork");
  state().check_cut(checker, source, length);
  checker.done();
  State::Stored copy = source;
  state().cut(copy, length);
  state().sequences.emplace(state().next_id, std::move(copy));
  return state().next_id++;
}

void KVCache::append(int64_t sequence, ConstView<4> k, ConstView<4> v) {
  State& state = this->state();
  const KVCacheConfig& c = state.config;
  State::Stored& stored = state.find("KVCache::append", sequence);
  Checker checker("KVCache::append");
  const int64_t n = k.size[2];
  detail::check_tensor(checker, "k", k, {1, c.kv_heads, n, c.head_dim});
  detail::check_tensor(checker, "v", v, {1, c.kv_heads, n, c.value_dim});
  checker.require(k.dtype == c.dtype && v.dtype == c.dtype,
                  [&] { return "k and v must have the cache's type " + std::string(name_of(c.dtype)); });
  checker.require((k.data && v.data) || n == 0, "k and v must have data");
  const int64_t used = stored.length % c.page_size;
  const bool copy_last = used != 0 && n > 0 && stored.pages.back().use_count() > 1;
  const int64_t fresh = checker.ok() ? state.pages_for(stored.length + n) - state.pages_for(stored.length) : 0;
  const int64_t evicted = n > 0 ? state.evictable_pages(stored) : 0;
  const auto first_evicted = stored.pages.begin() + (evicted > 0 ? state.sink_pages() : 0);
  const int64_t freed = std::count_if(first_evicted, first_evicted + evicted,
                                      [](const std::shared_ptr<Buffer>& page) { return page.use_count() == 1; });
  checker.require(c.max_pages == 0 || state.pages_in_use - freed + fresh + copy_last <= c.max_pages, [&] {
    return "the tokens need " + std::to_string(fresh + copy_last) + " pages beyond the " +
           std::to_string(state.pages_in_use - freed) + " in use, more than max_pages = " + std::to_string(c.max_pages);
  });
  checker.done();
  const ProfileSpan span("append", [&] {
    return OperationWork{
        {c.kv_heads, n, c.head_dim},
        0,
        bytes_of(k) + bytes_of(v) +
            static_cast<double>(n * c.kv_heads * (state.row_bytes(c.head_dim) + state.row_bytes(c.value_dim)))};
  });
  if (n == 0) return;

  // What is in `stored` changes only when all is there.
  std::vector<std::shared_ptr<Buffer>> pages(stored.pages.begin(), first_evicted);
  pages.insert(pages.end(), first_evicted + evicted, stored.pages.end());
  if (copy_last) {
    std::shared_ptr<Buffer> page = state.new_page();
    std::memcpy(page->data(), pages.back()->data(), page->bytes());
    pages.back() = std::move(page);
  }
  for (int64_t i = 0; i < fresh; ++i) pages.push_back(state.new_page());
  State::Stored longer = {std::move(pages), stored.length + n, stored.evicted_pages + evicted, stored.length};
  const auto copy = [&](const ConstView<4>& view, int64_t depth, int64_t offset) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      for (int64_t t = 0; t < n; ++t) {
        const int64_t token = stored.length + t;
        char* page = static_cast<char*>(longer.pages[state.page_of(longer, token)]->data());
        char* row = page + offset + (h * c.page_size + token % c.page_size) * state.row_bytes(depth);
        state.store_row(detail::at(view, 0, h, t), depth == 1 ? 1 : view.stride[3], depth, row);
      }
    }
  };
  copy(k, c.head_dim, 0);
  copy(v, c.value_dim, state.key_bytes());
  stored = std::move(longer);
}

/// Queries that attend to sequences of a cache, as a packed call: the keys of one sequence after those of the other.
struct KVCache::State::Call {
  Call(Checker& checker, const State& state, std::span<const int64_t> ids, std::span<const int64_t> cu_seqlens_q,
       const ConstView<4>& q, const AttentionOptions& given);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// True if a query attends to a part of its sequence; then `p` is over its last tokens, and
  bool evicts() const { return evicts_; }
  /// this list over its sink tokens, of which other queries have none here.
  const detail::ShortList<detail::Sequence, 8>& sink_sequences() const { return sinks_; }

  detail::Problem p;

 private:
  void check(Checker& checker, const State& state, std::span<const int64_t> ids,
             std::span<const int64_t> cu_seqlens_q) const;
  void check_last_append(Checker& checker, const State& state, std::span<const int64_t> ids) const;
  void find_pages(const State& state, std::span<const int64_t> ids);
  void split(const State& state, std::span<const int64_t> ids);
  void split(const State& state, const Stored& stored, const detail::Sequence& whole);

  bool evicts_ = false;
  detail::ShortList<detail::Sequence, 8> recent_, sinks_;
  AttentionOptions options_;
  std::vector<int64_t> cu_key_ = {0};
  std::vector<std::vector<const void*>> keys_, values_;  // pages of each sequence
};

KVCache::State::Call::Call(Checker& checker, const State& state, std::span<const int64_t> ids,
                           std::span<const int64_t> cu_seqlens_q, const ConstView<4>& q, const AttentionOptions& given)
    : options_(given) {
  const KVCacheConfig& c = state.config;
  p.q = q;
  p.k = ConstView<4>(nullptr, c.dtype, {1, c.kv_heads, 0, c.head_dim});
  p.v = ConstView<4>(nullptr, c.dtype, {1, c.kv_heads, 0, c.value_dim});
  p.B = 1;
  p.H = q.size[1];
  p.Hk = c.kv_heads;
  p.G = p.H / c.kv_heads;
  p.Lq = q.size[2];
  p.D = c.head_dim;
  p.Dv = c.value_dim;
  p.options = &options_;
  p.storage = c.storage;
  check(checker, state, ids, cu_seqlens_q);
  if (!checker.ok()) return;
  int64_t longest = 0;
  for (const int64_t id : ids) {
    const int64_t length = state.sequences.at(id).length;
    cu_key_.push_back(cu_key_.back() + length);
    longest = std::max(longest, c.streaming.position(length - 1) + 1);
    evicts_ = evicts_ || (p.Lq > 0 && state.evicts(length));
  }
  p.Lk = cu_key_.back();
  options_.cu_seqlens_q = cu_seqlens_q;
  options_.cu_seqlens_k = cu_key_;
  options_.bias = {};  // its keys are not packed
  if (ids.empty()) p.sequences.push_back({.query_count = p.Lq});
  else detail::resolve_options(checker, p, options_);
  options_.bias = given.bias;
  if (options_.bias) detail::check_bias(checker, options_.bias, {1, p.H, p.Lq, longest});
  if (evicts_ && checker.ok()) check_last_append(checker, state, ids);
  if (!checker.ok()) return;
  find_pages(state, ids);
  if (evicts_) split(state, ids);
}

void KVCache::State::Call::check(Checker& checker, const State& state, std::span<const int64_t> ids,
                                 std::span<const int64_t> cu_seqlens_q) const {
  const KVCacheConfig& c = state.config;
  detail::check_tensor(checker, "q", p.q, {1, p.H, p.Lq, c.head_dim});
  checker.require(p.q.dtype == c.dtype,
                  [&] { return "q must have the cache's type " + std::string(name_of(c.dtype)); });
  checker.require(p.q.data || p.q.empty(), "q must have data");
  checker.require(p.H % c.kv_heads == 0, [&] {
    return "the cache has Hk = " + std::to_string(c.kv_heads) + " heads, which must divide H = " + std::to_string(p.H);
  });
  checker.require(cu_seqlens_q.size() == ids.size() + 1, [&] {
    return "cu_seqlens_q has " + std::to_string(cu_seqlens_q.size()) + " entries, must have one more than the " +
           std::to_string(ids.size()) + " sequences";
  });
  const AttentionOptions& o = options_;
  checker.require(!o.mask && !o.query_segment_ids && !o.key_segment_ids && !o.blocks.given() &&
                      o.cu_seqlens_q.empty() && o.cu_seqlens_k.empty() && o.key_length.empty() &&
                      o.query_length.empty() && o.dropout == 0 && o.shard == Shard(),
                  "mask, segment ids, blocks, cu_seqlens_q, cu_seqlens_k, lengths, dropout and shard do not apply to a "
                  "cache");
  checker.require(c.streaming.window == 0 || (o.causal && o.alignment == Alignment::bottom_right),
                  "the options of a streaming cache must be causal with bottom_right alignment");
  for (const int64_t id : ids)
    checker.require(state.sequences.contains(id), [&] { return "the cache has no sequence " + std::to_string(id); });
}

/// Of earlier queries, keys may have been evicted.
void KVCache::State::Call::check_last_append(Checker& checker, const State& state, std::span<const int64_t> ids) const {
  const size_t gaps = p.sequences.size() - ids.size();
  for (size_t t = 0; t < ids.size(); ++t) {
    const Stored& stored = state.sequences.at(ids[t]);
    const int64_t queries = p.sequences[gaps + t].query_count, most = stored.length - stored.appended_from;
    checker.require(!state.evicts(stored.length) || queries <= most, [&] {
      return "sequence " + std::to_string(ids[t]) + " has " + std::to_string(queries) + " queries, must have at most " +
             std::to_string(most) + ", the tokens of its last append: earlier tokens have been evicted";
    });
  }
}

void KVCache::State::Call::find_pages(const State& state, std::span<const int64_t> ids) {
  keys_.resize(ids.size());
  values_.resize(ids.size());
  const size_t gaps = p.sequences.size() - ids.size();  // entries for queries outside every sequence come first
  for (size_t t = 0; t < ids.size(); ++t) {
    keys_[t].reserve(1);  // without pages it is a table too
    for (const auto& page : state.sequences.at(ids[t]).pages) {
      keys_[t].push_back(page->data());
      values_[t].push_back(static_cast<const char*>(page->data()) + state.key_bytes());
    }
    p.sequences[gaps + t].pages = {keys_[t].data(), values_[t].data(), state.config.page_size};
  }
}

/// Replaces the sequences of `p` by those of their last tokens, and lists those of the sink tokens.
void KVCache::State::Call::split(const State& state, std::span<const int64_t> ids) {
  const size_t gaps = p.sequences.size() - ids.size();
  for (size_t t = 0; t < gaps; ++t) recent_.push_back(p.sequences[t]), sinks_.push_back(p.sequences[t]);
  for (size_t t = 0; t < ids.size(); ++t) split(state, state.sequences.at(ids[t]), p.sequences[gaps + t]);
  p.sequences = recent_;
  int64_t keys = 0;
  for (const detail::Sequence& s : recent_) keys += s.key_count;
  p.key_bytes = keys * p.Hk * (state.row_bytes(p.D) + state.row_bytes(p.Dv));
}

/// Queries from before the first eviction attend to all tokens up to their own. Every later one is on its own, at the
/// last cache position, so that its bits do not depend on how the text was cut into appends.
void KVCache::State::Call::split(const State& state, const Stored& stored, const detail::Sequence& whole) {
  const auto [sink_tokens, window] = state.config.streaming;
  const int64_t before = stored.length - whole.query_count, kept = sink_tokens + window;
  detail::Sequence early = whole;
  early.query_count = std::clamp<int64_t>(kept - before, 0, whole.query_count);
  early.key_count = before + early.query_count;
  early.shift = before;
  if (early.query_count > 0) {
    recent_.push_back(early);
    early.key_count = 0;
    sinks_.push_back(early);
  }
  detail::Sequence one = whole;
  one.query_count = 1;
  for (int64_t i = early.query_count; i < whole.query_count; ++i) {
    one.query_begin = whole.query_begin + i;
    one.pages = whole.pages;
    one.key_count = sink_tokens;
    one.shift = kept - 1;
    sinks_.push_back(one);
    const int64_t first = before + i + 1 - window;
    const size_t page = state.page_of(stored, first);
    one.pages.keys += page;
    one.pages.values += page;
    one.pages.first = first % state.config.page_size;
    one.pages.bias_key = sink_tokens;
    one.key_count = window;
    one.shift = window - 1;
    recent_.push_back(one);
  }
}

namespace {

/// Adds attention to the sink tokens to the state (out, lse) over the last tokens.
void add_sink_tokens(detail::Problem p, const ConstView<4>& q, const View<4>& out, const View<3>& lse) {
  AttentionOptions options = *p.options;
  options.sink = {};  // is in the other state
  p.options = &options;
  p.q = q;
  const Array sink_out(out.dtype, {out.size.begin(), out.size.end()}), sink_lse(lse.dtype, {1, p.H, p.Lq});
  const View<4> sink_out_view(sink_out.data(), out.dtype, out.size);
  const View<3> sink_lse_view(sink_lse.data(), lse.dtype, lse.size);
  run_forward(p, plan_forward(p), sink_out_view, sink_lse_view);
  merge(out, lse, sink_out_view, sink_lse_view);
}

}  // namespace

void KVCache::attend(std::span<const int64_t> sequences, std::span<const int64_t> cu_seqlens_q, ConstView<4> q,
                     View<4> out, View<3> lse, const AttentionOptions& options, ConstView<4> sink_queries) const {
  using namespace detail;
  Checker checker("KVCache::attend");
  const State::Call call(checker, state(), sequences, cu_seqlens_q, q, options);
  const Problem& p = call.p;
  check_tensor(checker, "out", out, {1, p.H, p.Lq, p.Dv});
  checker.require(out.data || out.empty(), "out must have data");
  if (lse) check_row_values(checker, "lse", lse, p);
  const Streaming& streaming = state().config.streaming;
  checker.require(!sink_queries || streaming.window > 0, "sink_queries are for a streaming cache");
  if (sink_queries) {
    check_tensor(checker, "sink_queries", sink_queries, q.size);
    checker.require(sink_queries.dtype == q.dtype, "sink_queries must have q's type");
  }
  if (checker.ok())
    check_overlap(checker, {region("out", out), region("lse", lse)},
                  {region("q", q), region("bias", options.bias), region("sink_queries", sink_queries)});
  checker.done();
  const ProfileSpan span("attention", [&] { return forward_work(p, out, lse); });
  Array own_lse;
  if (call.evicts() && !lse) {
    own_lse = Array(q.dtype == DType::float64 ? DType::float64 : DType::float32, {1, p.H, p.Lq});
    lse = View<3>(own_lse.data(), own_lse.dtype(), {1, p.H, p.Lq});
  }
  run_forward(p, plan_forward(p), out, lse);
  if (call.evicts() && streaming.sink_tokens > 0) {
    Problem sinks = p;
    sinks.sequences = call.sink_sequences();
    add_sink_tokens(std::move(sinks), sink_queries ? sink_queries : q, out, lse);
  }
}

void KVCache::statistics(std::span<const int64_t> sequences, std::span<const int64_t> cu_seqlens_q, ConstView<4> q,
                         ConstView<3> lse, const AttentionStatistics& wanted, const AttentionOptions& options) const {
  Checker checker("KVCache::statistics");
  checker.require(state().config.streaming.window == 0, "statistics of a streaming cache are not supported");
  const State::Call call(checker, state(), sequences, cu_seqlens_q, q, options);
  detail::make_statistics(checker, call.p, lse, wanted);
}

}  // namespace attn
