// attn_cluster_bench: attention over ranks beside the same attention on one rank that has all their threads.
//
//   mpirun --bind-to none -n 2 build/release/bench/attn_cluster_bench --tokens=16384 --causal
//
// --schedules=ring,gather,heads measures these schedules, and heads:2 one in groups of two ranks. Beside each is
// the time that explain() expects, from what a chunk and a message take.
//
// All are measured in turn, in one job. While rank 0 computes alone, the others sleep. Results are compared first.
// Each rank binds itself to cores of its own, and rank 0 to all of them for the other measurement.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "attn/cluster_mpi.h"
#include "commit.h"
#include "timer.h"

namespace bench {
namespace {

using attn::Array;
using attn::DType;
using attn::cluster::Communicator;
using attn::cluster::Placement;
using attn::cluster::Schedule;

struct Settings {
  int64_t tokens = 16384, heads = 4, kv_heads = 4, head_dim = 64, chunk = 0, window = -1;
  int threads = 1, repeats = 5;
  bool causal = false;
  DType dtype = DType::float32;
  std::string placement = "zigzag";
  std::vector<std::string> schedules = {"ring"};
};

/// The arrays of a rank, or of the whole.
struct Arrays {
  Array q, k, v, out, lse, dout, dq, dk, dv;

  Arrays(const Settings& s, int64_t n)
      : q(s.dtype, {1, s.heads, n, s.head_dim}),
        k(s.dtype, {1, s.kv_heads, n, s.head_dim}),
        v(s.dtype, k.shape()),
        out(s.dtype, q.shape()),
        lse(DType::float32, {1, s.heads, n}),
        dout(s.dtype, q.shape()),
        dq(s.dtype, q.shape()),
        dk(s.dtype, k.shape()),
        dv(s.dtype, k.shape()) {}

  attn::AttentionGradients gradients() const { return {.dq = dq.view<4>(), .dk = dk.view<4>(), .dv = dv.view<4>()}; }
};

Placement placement_of(const Settings& s, int ranks) {
  if (s.placement == "contiguous") return Placement::contiguous(s.tokens, ranks, s.chunk);
  if (s.placement == "striped") return Placement::striped(s.tokens, ranks, s.chunk);
  return Placement::zigzag(s.tokens, ranks, s.chunk);
}

/// What CLI11 says of a name; nothing if it is right.
std::string wrong_schedule(const std::string& name) {
  try {
    Schedule::named(name);
    return "";
  } catch (const attn::Error& error) {
    return error.what();
  }
}

/// The cores that this process may use.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

/// Binds this thread, and those that it starts, to some of the cores.
void run_on(std::span<const int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

/// Sleeps until rank 0 has something to say: a rank that waits inside MPI would use its core.
void wait_for_rank_0(Communicator& ranks) {
  char byte = 0;
  std::vector<attn::cluster::Message> sent, received;
  if (ranks.rank() != 0) received.push_back({0, &byte, 1});
  for (int rank = 1; ranks.rank() == 0 && rank < ranks.size(); ++rank) sent.push_back({rank, &byte, 1});
  const auto transfer = ranks.start(sent, received, 9);
  while (!transfer->progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class Measurement {
 public:
  Measurement(Communicator& ranks, const Settings& settings)
      : ranks_(ranks),
        s_(settings),
        placement_(placement_of(settings, ranks.size())),
        whole_(settings, settings.tokens),
        mine_(settings, placement_.tokens(ranks.rank())) {
    options_.causal = s_.causal;
    options_.window.left = s_.window;
    attn::Random random(1);
    for (const Array* x : {&whole_.q, &whole_.k, &whole_.v, &whole_.dout}) attn::fill_normal(x->flat(), random);
    const auto take = [&](const Array& from, const Array& to) {
      attn::cluster::take_shard(placement_, ranks_.rank(), from.view<4>(), to.view<4>());
    };
    take(whole_.q, mine_.q);
    take(whole_.k, mine_.k);
    take(whole_.v, mine_.v);
    take(whole_.dout, mine_.dout);
  }

  /// Forward and backward of all ranks, from the moment when all are there to that when the last one is done.
  double on_ranks(Schedule schedule) {
    run_on_own_cores();
    barrier();
    const double start = seconds_now();
    attn::cluster::attention(ranks_, placement_, mine_.q.view<4>(), mine_.k.view<4>(), mine_.v.view<4>(),
                             mine_.out.view<4>(), mine_.lse.view<3>(), options_, schedule);
    attn::cluster::attention_backward(ranks_, placement_, mine_.q.view<4>(), mine_.k.view<4>(), mine_.v.view<4>(),
                                      mine_.out.view<4>(), mine_.lse.view<3>(), mine_.dout.view<4>(), mine_.gradients(),
                                      options_, {}, schedule);
    barrier();
    return seconds_now() - start;
  }

  /// The same on rank 0.
  double on_one() {
    double seconds = 0;
    run_on(cores_);
    if (ranks_.rank() == 0) {
      attn::set_thread_count(s_.threads * ranks_.size());
      seconds = seconds_of([&] {
        attn::attention(whole_.q.view<4>(), whole_.k.view<4>(), whole_.v.view<4>(), whole_.out.view<4>(),
                        whole_.lse.view<3>(), options_);
        attn::attention_backward(whole_.q.view<4>(), whole_.k.view<4>(), whole_.v.view<4>(), whole_.out.view<4>(),
                                 whole_.lse.view<3>(), whole_.dout.view<4>(), whole_.gradients(), options_);
      });
    }
    wait_for_rank_0(ranks_);
    return seconds;
  }

  /// The largest difference of this rank's results from those of rank 0, by the largest number in them.
  double difference(Schedule schedule) {
    attn::set_thread_count(s_.threads);
    attn::attention(whole_.q.view<4>(), whole_.k.view<4>(), whole_.v.view<4>(), whole_.out.view<4>(),
                    whole_.lse.view<3>(), options_);
    attn::attention_backward(whole_.q.view<4>(), whole_.k.view<4>(), whole_.v.view<4>(), whole_.out.view<4>(),
                             whole_.lse.view<3>(), whole_.dout.view<4>(), whole_.gradients(), options_);
    on_ranks(schedule);
    double worst = 0;
    const Array* const pairs[][2] = {
        {&whole_.out, &mine_.out}, {&whole_.dq, &mine_.dq}, {&whole_.dk, &mine_.dk}, {&whole_.dv, &mine_.dv}};
    for (const auto& [whole, mine] : pairs) {
      const Array part(mine->dtype(), mine->shape());
      attn::cluster::take_shard(placement_, ranks_.rank(), whole->view<4>(), part.view<4>());
      double largest = 0, difference = 0;
      for (int64_t n = 0; n < part.count(); ++n) {
        largest = std::max(largest, std::abs(part.number(n)));
        difference = std::max(difference, std::abs(part.number(n) - mine->number(n)));
      }
      if (largest > 0) worst = std::max(worst, difference / largest);
    }
    std::vector<double> all(ranks_.size());
    ranks_.all_gather(&worst, sizeof worst, all.data());
    return *std::max_element(all.begin(), all.end());
  }

  /// What the operator and a message take on these ranks.
  attn::cluster::ClusterCosts costs() {
    run_on_own_cores();
    return attn::cluster::measure_costs(ranks_, shape());
  }
  attn::cluster::ClusterPlan plan(Schedule schedule, bool backward, const attn::cluster::ClusterCosts& costs) const {
    return attn::cluster::explain(placement_, shape(), options_, backward, schedule, costs);
  }
  Schedule chosen(bool backward, const attn::cluster::ClusterCosts& costs) const {
    return attn::cluster::choose(placement_, shape(), costs, options_, backward);
  }

 private:
  attn::cluster::ClusterShape shape() const { return {1, s_.heads, s_.kv_heads, s_.head_dim, s_.head_dim, s_.dtype}; }
  void run_on_own_cores() {
    attn::set_thread_count(s_.threads);
    run_on(std::span(cores_).subspan(static_cast<size_t>(ranks_.rank() * s_.threads), static_cast<size_t>(s_.threads)));
  }
  void barrier() {
    const char byte = 0;
    std::vector<char> all(ranks_.size());
    ranks_.all_gather(&byte, 1, all.data());
  }

  Communicator& ranks_;
  const std::vector<int> cores_ = allowed_cores();
  const Settings s_;
  const Placement placement_;
  const Arrays whole_, mine_;
  attn::AttentionOptions options_;
};

struct Measured {
  Schedule schedule;
  double difference = 0;
  std::vector<double> seconds = {}, ratios = {};
};

bool is_wrong(const Measured& m, const Settings& s) {
  return !(m.difference < (s.dtype == DType::float32 ? 1e-5 : 2e-2));
}

double spread(const std::vector<double>& x) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  return 100 * (*high - *low) / median(x);
}

void print(const Settings& s, int ranks, const Measurement& measurement, const attn::cluster::ClusterCosts& costs,
           const std::vector<double>& alone, const std::vector<Measured>& measured) {
  std::printf("commit %s, %s\n", kCommit, attn::active_isa().c_str());
  std::printf("forward and backward, %lld tokens, %lld heads of %lld, %s%s, %s\n", static_cast<long long>(s.tokens),
              static_cast<long long>(s.heads), static_cast<long long>(s.head_dim),
              std::string(attn::name_of(s.dtype)).c_str(), s.causal ? ", causal" : "", s.placement.c_str());
  std::printf("1 rank  of %2d threads          %9.1f ms  spread %.1f %%\n", s.threads * ranks, 1e3 * median(alone),
              spread(alone));
  for (const Measured& m : measured) {
    const attn::cluster::ClusterPlan forward = measurement.plan(m.schedule, false, costs);
    const attn::cluster::ClusterPlan backward = measurement.plan(m.schedule, true, costs);
    int64_t bytes = 0;
    for (int rank = 0; rank < ranks; ++rank)
      bytes = std::max(bytes, forward.bytes_sent[rank] + backward.bytes_sent[rank]);
    std::printf(
        "%d ranks of %2d threads, %-8s %9.1f ms  spread %.1f %%, overhead %.1f %% (median of neighbouring pairs), "
        "expected %.1f ms, %.1f MB sent by a rank, difference %.1e%s\n",
        ranks, s.threads, m.schedule.name().c_str(), 1e3 * median(m.seconds), spread(m.seconds),
        100 * (median(m.ratios) - 1), 1e3 * (forward.seconds + backward.seconds), static_cast<double>(bytes) / 1e6,
        m.difference, is_wrong(m, s) ? "  WRONG" : "");
  }
  std::printf(
      "expected from %.1f and %.1f GFLOP/s forward and backward, %.2f GB/s and %.1f us a message; choose(): %s "
      "and %s\n",
      costs.forward_flops / 1e9, costs.backward_flops / 1e9, costs.bytes_per_second / 1e9, 1e6 * costs.latency,
      measurement.chosen(false, costs).name().c_str(), measurement.chosen(true, costs).name().c_str());
}

int run(Communicator& ranks, const Settings& s) {
  const size_t cores = allowed_cores().size(), needed = static_cast<size_t>(ranks.size() * s.threads);
  if (cores < needed) {
    std::fprintf(stderr, "rank %d may use %zu cores, needs %zu, those of all ranks: mpirun --bind-to none\n",
                 ranks.rank(), cores, needed);
    return 1;
  }
  Measurement measurement(ranks, s);
  const attn::cluster::ClusterCosts costs = measurement.costs();
  std::vector<Measured> measured;
  for (const std::string& name : s.schedules) measured.push_back({Schedule::named(name)});
  std::vector<double> alone;
  bool wrong = false;
  for (Measured& m : measured) {
    m.difference = measurement.difference(m.schedule);
    wrong = wrong || is_wrong(m, s);
  }
  for (int repeat = 0; repeat <= s.repeats; ++repeat) {
    const double one = measurement.on_one();
    if (repeat > 0) alone.push_back(one);  // the first is warm-up
    for (Measured& m : measured) {
      const double many = measurement.on_ranks(m.schedule);
      if (repeat == 0) continue;
      m.seconds.push_back(many);
      m.ratios.push_back(many / one);
    }
  }
  if (ranks.rank() == 0) print(s, ranks.size(), measurement, costs, alone, measured);
  return wrong;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const attn::cluster::MpiSession session(argc, argv);
  bench::Settings s;
  CLI::App app("Attention over ranks beside one rank with all threads, forward and backward");
  app.add_option("--tokens", s.tokens, "length of the whole")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", s.heads, "query heads")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kv-heads", s.kv_heads, "key/value heads")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--head-dim", s.head_dim, "D")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--chunk", s.chunk, "tokens of a chunk, 0: chosen")->check(CLI::NonNegativeNumber);
  app.add_option("--window", s.window, "keys before a query, -1: all")->capture_default_str();
  app.add_flag("--causal", s.causal, "a causal mask");
  app.add_option("--threads", s.threads, "of a rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--repeats", s.repeats, "samples of each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--placement", s.placement)->check(CLI::IsMember({"contiguous", "zigzag", "striped"}));
  const std::map<std::string, attn::DType> dtypes = {{"float32", attn::DType::float32},
                                                     {"bfloat16", attn::DType::bfloat16}};
  app.add_option("--dtype", s.dtype)->transform(CLI::CheckedTransformer(dtypes));
  app.add_option("--schedules", s.schedules, "ring, gather, heads or heads:n")
      ->delimiter(',')
      ->check(CLI::Validator(bench::wrong_schedule, "schedule"))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return bench::run(session.world(), s);
  } catch (const attn::Error& error) {
    if (session.world().rank() == 0) std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
