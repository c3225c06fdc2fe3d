// The spans of a Profiler. Open spans are a list of each thread; one mutex guards those that have ended. Memory is
// counted where it is allocated.
#include "core/profile.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "attn/core.h"
#include "core/numbers.h"

namespace attn {

// ------------------------------------------------------------------------------------------------------------- memory

namespace detail {
std::atomic<bool> profiling{false};
}

namespace {

std::atomic<int64_t> in_use{0}, peak{0}, scratch{0};

void raise(std::atomic<int64_t>& largest, int64_t value) {
  int64_t old = largest.load(std::memory_order_relaxed);
  while (value > old && !largest.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

int64_t occupied_bytes(int64_t bytes) {
  constexpr int64_t kCacheLine = 64;
  return round_up(bytes, bytes < kHugeFrom ? kCacheLine : kHugePage);
}

void count_memory(int64_t bytes) noexcept {
  const int64_t now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (is_profiling()) raise(peak, now);
}

void count_scratch(int64_t bytes) noexcept { scratch.fetch_add(bytes, std::memory_order_relaxed); }

int64_t memory_in_use() { return in_use.load(std::memory_order_relaxed); }
int64_t memory_peak() { return std::max(peak.load(std::memory_order_relaxed), memory_in_use()); }
void reset_memory_peak() { peak.store(memory_in_use(), std::memory_order_relaxed); }
int64_t scratch_in_use() { return scratch.load(std::memory_order_relaxed); }

// -------------------------------------------------------------------------------------------------------------- spans

namespace {

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// What all threads share.
struct Collection {
  std::mutex mutex;
  int64_t run = 0;  // counts Profilers: a span that is open when its Profiler stops belongs to none
  int64_t start = 0;
  std::function<void(Span&&)> on_span;
  std::deque<Span> ended;            // of which none moves while it grows
  std::vector<std::string> threads;  // all that have reported, over all Profilers
};

// Never destroyed: threads may end after the static objects.
Collection& collection() {
  static auto* const all = new Collection;
  return *all;
}

std::atomic<int64_t> current_run{0}, last_id{0};
std::atomic<bool> with_tasks{false};

struct OpenSpan {
  Span span;
  int64_t run = 0;
  int64_t peak_before = 0;  // of the spans around it, until it began
};

struct Thread {
  std::string name;
  int32_t index = -1;  // in Collection::threads, from its first span on
  std::vector<OpenSpan> open;
};
thread_local Thread thread;

/// Needs the mutex.
int32_t index_of_thread(Collection& all) {
  if (thread.index < 0) {
    const size_t count = all.threads.size();
    thread.index = static_cast<int32_t>(count);
    all.threads.push_back(!thread.name.empty() ? thread.name : count == 0 ? "main" : "thread " + std::to_string(count));
  }
  return thread.index;
}

void finish(Span&& span, int64_t run) {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  if (run != all.run || !is_profiling()) return;
  span.thread = index_of_thread(all);
  span.begin -= all.start;
  span.end -= all.start;
  if (all.on_span) all.on_span(std::move(span));
  else all.ended.push_back(std::move(span));
}

}  // namespace

Profiler::Profiler(ProfilerOptions options) {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  if (is_profiling()) throw Error("Profiler", {"another Profiler collects already: there is one at a time"});
  current_run = ++all.run;
  all.start = nanoseconds();
  all.on_span = std::move(options.on_span);
  with_tasks = options.tasks;
  all.ended.clear();
  index_of_thread(all);
  reset_memory_peak();
  detail::profiling = true;
}

Profiler::~Profiler() { stop(); }

void Profiler::stop() {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  detail::profiling = false;
  all.on_span = {};
}

std::vector<Span> Profiler::take_spans() {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  std::vector<Span> spans(std::make_move_iterator(all.ended.begin()), std::make_move_iterator(all.ended.end()));
  all.ended.clear();
  return spans;
}

std::vector<std::string> Profiler::threads() const {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  return all.threads;
}

void ProfileSpan::open(std::string_view name, SpanKind kind, const OperationWork& work) {
  const int64_t parent = thread.open.empty() ? 0 : thread.open.back().span.id, peak_before = memory_peak();
  reset_memory_peak();
  OpenSpan& opened = thread.open.emplace_back();
  opened.run = current_run.load();
  opened.peak_before = peak_before;
  Span& span = opened.span;
  span.name = name;
  span.kind = kind;
  span.id = id_ = ++last_id;
  span.parent = parent;
  span.work = work;
  span.begin = nanoseconds();
}

void ProfileSpan::close() {
  const int64_t end = nanoseconds();
  OpenSpan closed = std::move(thread.open.back());
  thread.open.pop_back();
  closed.span.end = end;
  closed.span.peak = memory_peak();
  raise(peak, closed.peak_before);
  finish(std::move(closed.span), closed.run);
}

void name_thread(std::string name) { thread.name = std::move(name); }

JobSpan current_span() {
  if (!is_profiling() || !with_tasks || thread.open.empty()) return {};
  return {thread.open.back().span.id, &thread.open.back().span.name};
}

void TaskSpan::open() {
  run_ = current_run.load();
  begin_ = nanoseconds();
}

void TaskSpan::close() const {
  Span span;
  span.name = *job_.name;
  span.kind = SpanKind::task;
  span.id = ++last_id;
  span.parent = job_.id;
  span.begin = begin_;
  span.end = nanoseconds();
  finish(std::move(span), run_);
}

std::string OperationShape::text() const {
  std::string text;
  for (int axis = 0; axis < rank_; ++axis) text += (axis ? " x " : "") + std::to_string(extents_[axis]);
  return text;
}

// ------------------------------------------------------------------------------------------------------------ summary

namespace {

/// The spans of a summary, by id, with the time that is inside the spans of each.
class Tree {
 public:
  Tree(std::span<const Span> spans, const std::function<std::string(const std::string&)>& merge) : merge_(merge) {
    for (const Span& span : spans) {
      if (span.kind == SpanKind::task) continue;
      by_id_[span.id] = &span;
      inside_[span.parent] += span.end - span.begin;
    }
  }

  /// The names of the scopes around a span; of a scope with its own.
  const std::string& scope_of(const Span& span) {
    const auto [found, is_new] = scopes_.try_emplace(span.id);
    if (is_new) {
      const auto parent = by_id_.find(span.parent);
      std::string text = parent == by_id_.end() ? std::string() : scope_of(*parent->second);
      if (span.kind == SpanKind::scope) text += (text.empty() ? "" : "/") + (merge_ ? merge_(span.name) : span.name);
      scopes_[span.id] = std::move(text);
    }
    return scopes_[span.id];
  }

  double own_seconds(const Span& span) const {
    const auto inside = inside_.find(span.id);
    return 1e-9 * static_cast<double>(span.end - span.begin - (inside == inside_.end() ? 0 : inside->second));
  }

 private:
  const std::function<std::string(const std::string&)>& merge_;
  std::map<int64_t, const Span*> by_id_;
  std::map<int64_t, int64_t> inside_;
  std::map<int64_t, std::string> scopes_;
};

}  // namespace

std::vector<ProfileRow> summarize(std::span<const Span> spans,
                                  const std::function<std::string(const std::string&)>& merge) {
  Tree tree(spans, merge);
  std::vector<const Span*> order;
  for (const Span& span : spans)
    if (span.kind != SpanKind::task) order.push_back(&span);
  std::sort(order.begin(), order.end(), [](const Span* a, const Span* b) { return a->id < b->id; });
  std::vector<ProfileRow> rows;
  std::map<std::array<std::string, 3>, size_t> places;
  for (const Span* span : order) {
    const std::string operation = span->kind == SpanKind::operation ? span->name : "";
    const auto [place, is_new] =
        places.try_emplace({tree.scope_of(*span), operation, span->work.shape.text()}, rows.size());
    if (is_new) rows.push_back({.scope = place->first[0], .operation = operation, .shape = place->first[2]});
    ProfileRow& row = rows[place->second];
    ++row.calls;
    row.seconds += tree.own_seconds(*span);
    row.flops += span->work.flops;
    row.bytes += span->work.bytes;
    row.peak = std::max(row.peak, span->peak);
  }
  return rows;
}

}  // namespace attn
