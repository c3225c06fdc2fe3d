#include "profile.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "attn/core_names.h"
#include "attn/profile.h"

namespace nb = nanobind;

namespace bindings {
namespace {

using attn::Span;

// name, kind, id, parent, thread, begin, end, shape, flops, bytes, peak
using SpanTuple = std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t, int64_t, std::string, double,
                             double, int64_t>;
// scope, operation, shape, calls, seconds, flops, bytes, peak
using RowTuple = std::tuple<std::string, std::string, std::string, int64_t, double, double, double, int64_t>;

/// A Profiler, and after stop() what it has seen.
class Profile {
 public:
  explicit Profile(bool tasks) { profiler_.emplace(attn::ProfilerOptions{.tasks = tasks}); }
  void stop() {
    if (!profiler_) return;
    profiler_->stop();
    spans_ = profiler_->take_spans();
    threads_ = profiler_->threads();
    profiler_.reset();
  }
  std::vector<SpanTuple> spans() const {
    std::vector<SpanTuple> all;
    for (const Span& s : spans_)
      all.emplace_back(s.name, attn::name_of(s.kind), s.id, s.parent, s.thread, s.begin, s.end, s.work.shape.text(),
                       s.work.flops, s.work.bytes, s.peak);
    return all;
  }
  std::vector<RowTuple> rows() const {
    std::vector<RowTuple> all;
    for (const attn::ProfileRow& r : attn::summarize(spans_))
      all.emplace_back(r.scope, r.operation, r.shape, r.calls, r.seconds, r.flops, r.bytes, r.peak);
    return all;
  }
  const std::vector<std::string>& threads() const { return threads_; }

 private:
  std::optional<attn::Profiler> profiler_;
  std::vector<Span> spans_;
  std::vector<std::string> threads_;
};

/// A span between enter() and leave() of one thread.
class ProfileScope {
 public:
  explicit ProfileScope(std::string name) : name_(std::move(name)) {}
  void enter() { span_ = std::make_unique<attn::ProfileSpan>(name_); }
  void leave() { span_.reset(); }

 private:
  std::string name_;
  std::unique_ptr<attn::ProfileSpan> span_;
};

}  // namespace

void add_profile(nb::module_& m) {
  nb::class_<Profile>(m, "Profile")
      .def(nb::init<bool>(), nb::arg("tasks"))
      .def("stop", &Profile::stop)
      .def("spans", &Profile::spans)
      .def("rows", &Profile::rows)
      .def("threads", &Profile::threads);
  nb::class_<ProfileScope>(m, "ProfileScope")
      .def(nb::init<std::string>(), nb::arg("name"))
      .def("enter", &ProfileScope::enter)
      .def("leave", &ProfileScope::leave);
}

}  // namespace bindings
