#include "progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "numbers.h"
#include "output.h"

namespace cli {
namespace {

// A rank is worth naming that takes so many times as long as the others, for so many steps.
constexpr double kSlow = 1.25;
constexpr int kSlowSteps = 5;

size_t terminal_width() {
  constexpr size_t kUsual = 80;  // where the terminal does not say
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

StatusLine::StatusLine() : terminal_(isatty(STDERR_FILENO)), shown_(std::chrono::steady_clock::now()) {}

bool StatusLine::is_due() const {
  const double pause = terminal_ ? 0.1 : 10;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - shown_).count() >= pause;
}

void StatusLine::show(const std::string& text) {
  shown_ = std::chrono::steady_clock::now();
  // The last column stays free: many terminals begin a new line as soon as it is filled.
  if (terminal_) say("\r{}\x1b[K", text.substr(0, terminal_width() - 1));
  else say("{}\n", text);
  std::fflush(stderr);
  open_ = terminal_;
}

void StatusLine::keep(const std::string& text) {
  show(text);
  end();
}

void StatusLine::end() {
  if (open_) say("\n");
  open_ = false;
}

void StatusLine::erase() {
  if (open_) say("\r\x1b[K");
  open_ = false;
}

void Meter::show(int64_t done) {
  if (!line_.is_due()) return;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
  if (done == 0) return line_.show(fmt::format("0 of {} {}", grouped(total_), unit_));
  const double rate = static_cast<double>(done) / taken.count();
  line_.show(fmt::format("{} of {} {}, {}/s, {} left", grouped(done), grouped(total_), unit_,
                         grouped(static_cast<int64_t>(rate)), clock_time(static_cast<double>(total_ - done) / rate)));
}

void TrainingProgress::step(const attn::train::StepReport& report) {
  const double rate = static_cast<double>(report.tokens) / report.seconds;
  const bool first = seconds_ == 0;
  seconds_ = first ? report.seconds : 0.95 * seconds_ + 0.05 * report.seconds;
  rate_ = first ? rate : 0.95 * rate_ + 0.05 * rate;
  loss_ = first ? report.loss : 0.9 * loss_ + 0.1 * report.loss;
  step_ = report.step;
  skipped_ += report.skipped;
  scale_ = report.loss_scale;
  slow_steps_ = report.slowness < kSlow ? 0 : report.slowest_rank == slowest_ ? slow_steps_ + 1 : 1;
  slowest_ = report.slowest_rank;
  slowness_ = report.slowness;
  if (!quiet_ && line_.is_due()) line_.show(text());
}

void TrainingProgress::validation(const attn::train::Validation& result, bool best, bool shows_accuracy) {
  using attn::train::Metric;
  validation_ = fmt::format("  val {:.4f}", result.loss);
  if (result.metric != Metric::loss && result.metric != Metric::accuracy)
    validation_ += fmt::format(" ({} {:.4f})", attn::name_of(result.metric), result.score);
  else if (shows_accuracy) validation_ += fmt::format(" ({:.1f} %)", 100 * result.accuracy);
  if (best) validation_ += " best";
  if (!quiet_) line_.keep(text());
}

void TrainingProgress::note(const std::string& text) {
  line_.end();
  say("attn: {}\n", text);
}

/// What matters most comes first: a narrow terminal cuts the end.
std::string TrainingProgress::text() const {
  const double left = static_cast<double>(steps_ - step_) * seconds_;
  std::string notes;
  if (scale_ != 1) notes += fmt::format("  loss scale {}", scale_);
  if (skipped_ > 0) notes += fmt::format("  {} skipped", skipped_);
  if (slow_steps_ >= kSlowSteps) notes += fmt::format("  rank {} takes {:.1f} times as long", slowest_, slowness_);
  return fmt::format("step {}/{}  loss {:.4f}  {} tokens/s  ETA {}{}{}  {:.0f} % of peak", step_, steps_, loss_,
                     grouped(static_cast<int64_t>(rate_)), clock_time(left), validation_, notes,
                     100 * rate_ * flops_ / peak_);
}

}  // namespace cli
