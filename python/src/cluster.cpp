#include "cluster.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "attn/cluster.h"

namespace bindings {
namespace {

using attn::cluster::Message;
using attn::cluster::Placement;
using attn::cluster::Schedule;

/// (rank, address, bytes) of each message.
nb::list listed_messages(std::span<const Message> messages) {
  nb::list list;
  for (const Message& message : messages)
    list.append(nb::make_tuple(message.rank, reinterpret_cast<uintptr_t>(message.data), message.bytes));
  return list;
}

/// What start() of Python returned; the calls come without the GIL.
class PythonTransfer final : public attn::cluster::Transfer {
 public:
  explicit PythonTransfer(nb::object transfer) : transfer_(std::move(transfer)) {}
  ~PythonTransfer() override {
    const nb::gil_scoped_acquire locked;
    transfer_.reset();
  }
  bool progress() override {
    const nb::gil_scoped_acquire locked;
    return nb::cast<bool>(transfer_.attr("progress")());
  }
  void wait() override {
    const nb::gil_scoped_acquire locked;
    transfer_.attr("wait")();
  }

 private:
  nb::object transfer_;
};

class PythonRanks final : public attn::cluster::Communicator {
 public:
  explicit PythonRanks(nb::handle ranks)
      : ranks_(ranks), rank_(nb::cast<int>(ranks.attr("rank"))), size_(nb::cast<int>(ranks.attr("size"))) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<attn::cluster::Transfer> start(std::span<const Message> sent, std::span<const Message> received,
                                                 int tag) override {
    const nb::gil_scoped_acquire locked;
    return std::make_unique<PythonTransfer>(
        ranks_.attr("start")(listed_messages(sent), listed_messages(received), tag));
  }
  void all_gather(const void* from, int64_t bytes, void* to) override {
    const nb::gil_scoped_acquire locked;
    ranks_.attr("all_gather")(reinterpret_cast<uintptr_t>(from), bytes, reinterpret_cast<uintptr_t>(to));
  }

 private:
  nb::handle ranks_;  // which the caller keeps
  int rank_, size_;
};

using Ranges = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

/// (kind, tokens, chunk), or ("ranges", those of each rank, chunk).
Placement placement_of(const nb::tuple& given, int ranks) {
  const std::string kind = nb::cast<std::string>(given[0]);
  const int64_t chunk = nb::cast<int64_t>(given[2]);
  if (kind == "ranges") {
    std::vector<std::vector<attn::cluster::TokenRange>> all;
    for (const nb::handle of_rank : nb::cast<nb::list>(given[1])) {
      all.emplace_back();
      for (const nb::handle range : nb::cast<nb::list>(of_rank))
        all.back().push_back({nb::cast<int64_t>(range[0]), nb::cast<int64_t>(range[1])});
    }
    return Placement::of_ranges(all, chunk);
  }
  const int64_t tokens = nb::cast<int64_t>(given[1]);
  if (kind == "contiguous") return Placement::contiguous(tokens, ranks, chunk);
  if (kind == "striped") return Placement::striped(tokens, ranks, chunk);
  if (kind == "zigzag") return Placement::zigzag(tokens, ranks, chunk);
  throw attn::Error("Placement", {"the kind is '" + kind + "', must be contiguous, zigzag, striped or ranges"});
}

attn::cluster::Sharding sharding_of(const nb::tuple& queries, const nb::tuple& keys, int ranks) {
  return {placement_of(queries, ranks), placement_of(keys, ranks)};
}

/// Runs `prepare`; a rank on which it fails says so to the others before it raises.
template <class Prepare>
auto prepared(PythonRanks& ranks, const Prepare& prepare) {
  std::string reason;
  try {
    return prepare();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const nb::gil_scoped_release unlocked;
  attn::cluster::refuse(ranks, reason);
}

void forward(nb::handle ranks_object, const nb::tuple& queries, const nb::tuple& keys, nb::handle q, nb::handle k,
             nb::handle v, nb::handle out, nb::handle lse, nb::handle options, const std::string& schedule) {
  PythonRanks ranks(ranks_object);
  Arguments in("attention");
  struct Call {
    attn::cluster::Sharding sharding;
    attn::ConstView<4> q, k, v;
    attn::View<4> out;
    attn::View<3> lse;
    attn::AttentionOptions options;
    Schedule schedule;
  };
  const Call call = prepared(ranks, [&] {
    Call c{sharding_of(queries, keys, ranks.size()),
           in.input<4>("q", q),
           in.input<4>("k", k),
           in.input<4>("v", v),
           in.output<4>("out", out),
           in.output<3>("lse", lse),
           in.options(options),
           Schedule::named(schedule)};
    in.done();
    return c;
  });
  const nb::gil_scoped_release unlocked;
  attn::cluster::attention(ranks, call.sharding, call.q, call.k, call.v, call.out, call.lse, call.options,
                           call.schedule);
}

void backward(nb::handle ranks_object, const nb::tuple& queries, const nb::tuple& keys, const nb::dict& arrays,
              nb::handle options, const std::string& schedule) {
  PythonRanks ranks(ranks_object);
  Arguments in("attention_backward");
  const auto given = [&](const char* name) { return item_of(arrays, name); };
  struct Call {
    attn::cluster::Sharding sharding;
    attn::ConstView<4> q = {}, k = {}, v = {}, out = {}, dout = {};
    attn::ConstView<3> lse = {}, dlse = {};
    attn::AttentionGradients to = {};
    attn::AttentionOptions options = {};
    Schedule schedule = Schedule::ring;
  };
  const Call call = prepared(ranks, [&] {
    Call c{sharding_of(queries, keys, ranks.size())};
    c.q = in.input<4>("q", given("q"));
    c.k = in.input<4>("k", given("k"));
    c.v = in.input<4>("v", given("v"));
    c.out = in.input<4>("out", given("out"));
    c.dout = in.input<4>("dout", given("dout"));
    c.lse = in.input<3>("lse", given("lse"));
    c.dlse = in.input<3>("dlse", given("dlse"));
    c.to = {in.output<4>("dq", given("dq")), in.output<4>("dk", given("dk")), in.output<4>("dv", given("dv")),
            in.output<4>("dbias", given("dbias")), in.output<1>("dsink", given("dsink"))};
    c.options = in.options(options);
    c.schedule = Schedule::named(schedule);
    in.done();
    return c;
  });
  const nb::gil_scoped_release unlocked;
  attn::cluster::attention_backward(ranks, call.sharding, call.q, call.k, call.v, call.out, call.lse, call.dout,
                                    call.to, call.options, call.dlse, call.schedule);
}

void merge(nb::handle ranks_object, nb::handle out, nb::handle lse) {
  PythonRanks ranks(ranks_object);
  Arguments in("merge");
  const auto [out_view, lse_view] = prepared(ranks, [&] {
    const std::pair<attn::View<4>, attn::View<3>> views = {in.output<4>("out", out), in.output<3>("lse", lse)};
    in.done();
    return views;
  });
  const nb::gil_scoped_release unlocked;
  attn::cluster::merge(ranks, out_view, lse_view);
}

void synchronize(nb::handle ranks_object, const std::string& step) {
  PythonRanks ranks(ranks_object);
  const nb::gil_scoped_release unlocked;
  attn::cluster::synchronize(ranks, step);
}

void refuse(nb::handle ranks_object, const std::string& reason) {
  PythonRanks ranks(ranks_object);
  const nb::gil_scoped_release unlocked;
  attn::cluster::refuse(ranks, reason);
}

std::vector<std::tuple<int64_t, int64_t>> ranges(const nb::tuple& placement, int ranks, int rank) {
  std::vector<std::tuple<int64_t, int64_t>> list;
  const Placement of = placement_of(placement, ranks);
  if (rank < 0 || rank >= of.ranks())
    throw attn::Error("Placement",
                      {"rank is " + std::to_string(rank) + ", must be one of the " + std::to_string(of.ranks())});
  for (const attn::cluster::TokenRange& range : of.ranges(rank)) list.emplace_back(range.begin, range.end);
  return list;
}

}  // namespace

void add_cluster(nb::module_& m) {
  m.def("cluster_forward", &forward);
  m.def("cluster_backward", &backward);
  m.def("cluster_merge", &merge);
  m.def("cluster_ranges", &ranges);
  m.def("cluster_refuse", &refuse);
  m.def("cluster_synchronize", &synchronize);
}

}  // namespace bindings
