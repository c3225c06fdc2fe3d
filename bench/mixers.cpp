// Layers that mix tokens, of one width, against the length n: forward in inference and forward with backward on the
// tape, the memory that the tape holds, what generation keeps of n tokens, and the exponents of the times in n.
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <regex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attn/autograd_operations.h"
#include "modes.h"
#include "timed_mixers.h"
#include "timer.h"

namespace bench {
namespace {

using attn::Array;
using attn::DType;
using attn::autograd::Tape;
using attn::autograd::Value;

constexpr int64_t kShortest = 1024, kChecked = 768;
constexpr double kSeconds = 2;  // for each row, unless --seconds says otherwise

/// Tokens [1, n, C] in text segments of the mixer's length.
std::vector<Array> tokens_of(const TimedMixer& mixer, int64_t n, int64_t width) {
  std::vector<Array> segments;
  attn::Random random(2);
  for (int64_t begin = 0; begin < n; begin += mixer.segment ? mixer.segment : n) {
    const int64_t length = mixer.segment ? std::min(mixer.segment, n - begin) : n;
    segments.emplace_back(DType::float32, std::vector<int64_t>{1, length, width});
    attn::fill_normal(segments.back().flat(), random);
  }
  return segments;
}

bool is_finite(const Array& x) {
  bool finite = true;
  for (int64_t n = 0; n < x.count(); ++n) finite = finite && std::isfinite(x.number(n));
  return finite;
}

/// Of the process, without memory that is free: it would hide what is then allocated from it.
double resident_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::stod(line.substr(6)) * 1024;
  return NAN;
}

/// One layer and its tokens: forward and training of all of them.
class Run {
 public:
  Run(const NamedMixer& mixer, int64_t width, int64_t n)
      : parameters_({.seed = 1}), mixer_(mixer.make(attn::nn::Scope(parameters_) / "mixer", width, n)) {
    for (const Array& x : tokens_of(mixer_, n, width)) segments_.emplace_back(x, true);
  }
  double kept_bytes() const { return mixer_.kept_bytes; }

  void forward() {
    mixer_.restart();
    for (const Value& x : segments_) {
      Tape tape({}, memory_);
      last_ = mixer_.forward(tape, x).data();
    }
  }
  /// The gradient of the result is all ones.
  void train() {
    mixer_.restart();
    parameters_.clear_gradients();
    for (Value& x : segments_) {
      x.clear_gradient();
      Tape tape({.record = true, .training = true}, memory_);
      tape.backward(attn::autograd::sum(tape, mixer_.forward(tape, x)));
    }
  }
  /// What a tape holds after the forward of one text segment, arrays that it will use again included.
  double tape_bytes() {
    mixer_.restart();
    double most = 0;
    for (const Value& x : segments_) {
      const double before = resident_bytes();
      Tape tape({.record = true, .training = true});
      mixer_.forward(tape, x);
      most = std::max(most, resident_bytes() - before);
    }
    return most;
  }
  bool results_are_finite() const {
    bool finite = is_finite(last_);
    for (const Value& x : segments_) finite = finite && is_finite(x.gradient());
    return finite;
  }

 private:
  attn::nn::Parameters parameters_;
  TimedMixer mixer_;
  std::vector<Value> segments_;
  std::shared_ptr<attn::autograd::Recycler> memory_ = Tape().memory();
  Array last_;
};

/// The result on a short text is that of the second way.
bool check(const NamedMixer& named, int64_t width) {
  attn::nn::Parameters parameters({.seed = 1});
  TimedMixer mixer = named.make(attn::nn::Scope(parameters) / "mixer", width, kChecked);
  mixer.segment = 0;
  const Value x(tokens_of(mixer, kChecked, width)[0]);
  Tape tape;
  const Array a = mixer.forward(tape, x).data(), b = mixer.second(tape, x).data();
  double worst = 0, most = 0;
  for (int64_t n = 0; n < a.count(); ++n) {
    worst = std::max(worst, std::abs(a.number(n) - b.number(n)));
    most = std::max(most, std::abs(b.number(n)));
  }
  return worst <= error_bound(DType::float32) * most;
}

/// The figures of a mixer at n tokens.
struct Figures {
  int64_t n = 0;
  std::vector<double> forward = {}, training = {};  // seconds
  double tape_bytes = 0, kept_bytes = 0;
};

/// The quickest sample: other programs disturb every median.
double quickest(const std::vector<double>& seconds) { return *std::min_element(seconds.begin(), seconds.end()); }

/// The slope of log(time) against log(n), by least squares.
double exponent(std::span<const Figures> rows, std::vector<double> Figures::*samples) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(rows.size());
  for (const Figures& row : rows) {
    const double length = std::log(static_cast<double>(row.n)), time = std::log(quickest(row.*samples));
    x += length, y += time, xx += length * length, xy += length * time;
  }
  return (count * xy - x * y) / (count * xx - x * x);
}

/// Of a row of one length, or of the exponents over the upper half of the lengths.
struct Exponents {
  std::string n;
  double forward = NAN, training = NAN;
};

void add(const NamedMixer& mixer, int threads, const Figures& f, const Exponents& e, Report& report) {
  const auto of = [](const std::vector<double>& samples, const auto& figure) {
    return samples.empty() ? NAN : figure(samples);
  };
  const auto middle = [](const std::vector<double>& samples) { return median(samples) * 1e3; };
  const auto best = [](const std::vector<double>& samples) { return quickest(samples) * 1e3; };
  const auto spread = [](const std::vector<double>& samples) {
    return 100 * (*std::max_element(samples.begin(), samples.end()) - quickest(samples)) / median(samples);
  };
  report.add({{"mixer", mixer.name},
              {"isa", attn::active_isa()},
              {"threads", static_cast<int64_t>(threads)},
              {"n", e.n},
              {"forward ms", of(f.forward, middle)},
              {"forward quickest", of(f.forward, best)},
              {"forward spread %", of(f.forward, spread), "%.0f"},
              {"training ms", of(f.training, middle)},
              {"training quickest", of(f.training, best)},
              {"training spread %", of(f.training, spread), "%.0f"},
              {"tape MB", f.tape_bytes * 1e-6},
              {"kept MB", f.kept_bytes * 1e-6},
              {"forward exponent", e.forward, "%.2f"},
              {"training exponent", e.training, "%.2f"}});
}

/// Rows of all lengths; false if a result is wrong.
bool measure(const NamedMixer& mixer, int threads, const Settings& settings, std::vector<Figures>& rows,
             Report& report) {
  if (!check(mixer, settings.layer_width)) return false;
  for (int64_t n = kShortest; n <= settings.longest; n *= 2) {
    Run run(mixer, settings.layer_width, n);
    Figures figures{.n = n, .kept_bytes = run.kept_bytes()};
    run.forward();
    run.train();
    if (!run.results_are_finite()) return false;
    figures.tape_bytes = run.tape_bytes();
    const auto taken =
        in_turn({[&] { return seconds_of([&] { run.forward(); }); }, [&] { return seconds_of([&] { run.train(); }); }},
                3, settings.seconds > 0 ? settings.seconds : kSeconds);
    figures.forward = taken[0];
    figures.training = taken[1];
    add(mixer, threads, figures, {std::to_string(n)}, report);
    rows.push_back(figures);
  }
  return true;
}

}  // namespace

bool run_mixers(const Settings& settings, Report& report) {
  if (settings.layer_width % 64)
    throw std::runtime_error("--width is " + std::to_string(settings.layer_width) + ", must be a multiple of 64");
  const std::regex filter(settings.filter);
  for (const int threads : settings.threads) {
    attn::set_thread_count(threads);
    std::vector<std::pair<NamedMixer, std::vector<Figures>>> all;
    for (const NamedMixer& mixer : timed_mixers()) {
      if (!std::regex_search(mixer.name, filter)) continue;
      all.emplace_back(mixer, std::vector<Figures>());
      if (!measure(mixer, threads, settings, all.back().second, report)) {
        std::fprintf(stderr, "%s: WRONG\n", mixer.name.c_str());
        return false;
      }
    }
    for (const auto& [mixer, rows] : all) {
      if (rows.size() < 2) continue;
      const auto upper = std::span(rows).subspan(std::min(rows.size() / 2, rows.size() - 2));
      add(mixer, threads, {.tape_bytes = NAN, .kept_bytes = NAN},
          {std::to_string(upper.front().n) + " to " + std::to_string(upper.back().n),
           exponent(upper, &Figures::forward), exponent(upper, &Figures::training)},
          report);
    }
  }
  return true;
}

}  // namespace bench
