// What long work says on standard error while it runs.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "attn/train.h"

namespace cli {

/// One line that is written over on a terminal and never wider than it; elsewhere a plain line now and then.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { end(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Enough time has passed since the last text: a tenth of a second on a terminal, ten seconds elsewhere.
  bool is_due() const;
  void show(const std::string& text);
  /// The same for a line that stays.
  void keep(const std::string& text);
  /// So that something else can be written: the cursor is at the beginning of a line.
  void end();
  /// The same, and what was shown is gone from a terminal.
  void erase();

 private:
  bool terminal_, open_ = false;
  std::chrono::steady_clock::time_point shown_;
};

/// The line of work whose extent is known: how much is done, how much a second, the time that is left.
class Meter {
 public:
  Meter(std::string unit, int64_t total) : unit_(std::move(unit)), total_(total) {}
  void show(int64_t done);
  void hide() { line_.erase(); }

 private:
  std::string unit_;
  int64_t total_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  StatusLine line_;
};

/// The line of a model that is being loaded; it goes with the object.
class Loading {
 public:
  ~Loading() {
    if (meter_) meter_->hide();
  }
  /// What OpenOptions::on_progress takes.
  std::function<bool(int64_t, int64_t)> listener() {
    return [this](int64_t done, int64_t total) {
      if (!meter_) meter_.emplace("parameters", total);
      meter_->show(done);
      return true;
    };
  }

 private:
  std::optional<Meter> meter_;
};

/// The line of a training: step, loss, tokens a second, the time that is left.
class TrainingProgress {
 public:
  /// `peak`: multiply-adds a second, counted as two, of the machine; `flops_per_token`: of a training step.
  TrainingProgress(int64_t steps, double flops_per_token, double peak, bool quiet)
      : steps_(steps), flops_(flops_per_token), peak_(peak), quiet_(quiet) {}

  void step(const attn::train::StepReport& report);
  void validation(const attn::train::Validation& result, bool best, bool shows_accuracy);
  void note(const std::string& text);
  void end() { line_.end(); }

 private:
  std::string text() const;
  StatusLine line_;
  int64_t steps_;
  double flops_, peak_, scale_ = 1;
  double rate_ = 0, loss_ = 0, seconds_ = 0;  // of a step; all three smoothed
  bool quiet_;
  std::string validation_;
  int64_t step_ = 0, skipped_ = 0;
  int slowest_ = 0, slow_steps_ = 0;  // a rank, and for how many steps it has been much slower than the others
  double slowness_ = 1;
};

}  // namespace cli
