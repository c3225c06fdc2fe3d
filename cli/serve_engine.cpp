#include "serve_engine.h"

#include <utility>

#include "attn/core.h"

namespace cli {
namespace {

using attn::generate::FinishReason;
using attn::generate::WrittenText;
using Lock = std::unique_lock<std::mutex>;

}  // namespace

std::optional<TextJob::End> TextJob::read(std::string& text, std::chrono::milliseconds most) {
  Lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return !text_.empty() || end_; });
  text = std::exchange(text_, {});
  return end_;
}

void TextJob::write(std::string_view piece) {
  if (piece.empty()) return;
  const Lock lock(mutex_);
  text_ += piece;
  changed_.notify_all();
}

void TextJob::finish(End end) {
  const Lock lock(mutex_);
  end_ = std::move(end);
  changed_.notify_all();
}

Engine::Engine(const attn::generate::TextGenerator& generator, const EngineLimits& limits)
    : limits_(limits), batcher_(generator, limits.batcher), thread_([this] { run(); }) {}

Engine::~Engine() {
  end_within({});
  {
    const Lock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<TextJob> Engine::submit(std::vector<int64_t> prompt, const attn::generate::TextOptions& options) {
  const auto limit =
      std::chrono::duration_cast<TextJob::Clock::duration>(std::chrono::duration<double>(limits_.max_seconds));
  auto job = std::make_shared<TextJob>(std::move(prompt), options, TextJob::Clock::now() + limit);
  const Lock lock(mutex_);
  const int64_t most = limits_.batcher.max_requests + limits_.max_waiting;
  if (end_ || counts_.requests + std::ssize(added_) >= most) {
    ++counts_.refused;
    return nullptr;
  }
  added_.push_back(job);
  changed_.notify_all();
  return job;
}

void Engine::end_within(std::chrono::milliseconds most) {
  const Lock lock(mutex_);
  const auto end = TextJob::Clock::now() + most;
  if (!end_ || end < *end_) end_ = end;
  changed_.notify_all();
}

EngineCounts Engine::counts() const {
  const Lock lock(mutex_);
  EngineCounts counts = counts_;
  counts.requests += std::ssize(added_);
  counts.waiting += std::ssize(added_);
  return counts;
}

void Engine::run() {
  while (true) {
    std::list<std::shared_ptr<TextJob>> added;
    {
      Lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || !added_.empty() || batcher_.batcher().requests() > 0; });
      if (ended_ && added_.empty() && batcher_.batcher().requests() == 0) return;
      added = std::exchange(added_, {});
      counts_.requests += std::ssize(added);
    }
    for (const std::shared_ptr<TextJob>& job : added) begin(job);
    end_overdue();
    step();
  }
}

void Engine::begin(const std::shared_ptr<TextJob>& job) {
  try {
    const auto write = [job = job.get()](std::string_view piece) {
      job->write(piece);
      return !job->cancelled_;
    };
    jobs_.emplace(batcher_.add(job->prompt_, job->options_, write), job);
  } catch (const attn::Error& error) {
    const Lock lock(mutex_);
    ++counts_.failed;
    job->finish({.error = error.what(), .status = 400});
  }
}

/// Requests whose reader has gone, or whose time is over.
void Engine::end_overdue() {
  std::optional<TextJob::Clock::time_point> end;
  {
    const Lock lock(mutex_);
    end = end_;
  }
  const auto now = TextJob::Clock::now();
  for (const auto& [request, job] : jobs_)
    if (job->cancelled_ || now > job->deadline_ || (end && now > *end)) batcher_.cancel(request);
}

void Engine::step() {
  const std::vector<WrittenText> texts = batcher_.step();
  for (const WrittenText& text : texts) {
    const auto found = jobs_.find(text.request);
    finish(*found->second, text);
    jobs_.erase(found);
  }
  const Lock lock(mutex_);
  ++counts_.steps;
  counts_.requests = batcher_.batcher().requests();
  counts_.waiting = batcher_.batcher().waiting();
  counts_.cache_bytes = batcher_.batcher().cache_bytes();
}

void Engine::finish(TextJob& job, const WrittenText& text) {
  const attn::generate::Generated& generated = text.generated;
  TextJob::End end{.prompt_tokens = std::ssize(text.prompt_ids),
                   .reused_tokens = generated.reused,
                   .new_tokens = std::ssize(generated.tokens),
                   .logprobs = generated.logprobs};
  if (!end.logprobs.empty()) {
    end.tokens = {text.prompt_ids.back()};
    end.tokens.insert(end.tokens.end(), generated.tokens.begin(), generated.tokens.end());
  }
  {
    const Lock lock(mutex_);
    counts_.prompt_tokens += end.prompt_tokens;
    counts_.reused_tokens += end.reused_tokens;
    counts_.new_tokens += end.new_tokens;
    const bool gone = text.reason == FinishReason::cancelled || job.cancelled_;
    ++(text.reason == FinishReason::failed ? counts_.failed : gone ? counts_.cancelled : counts_.finished);
    if (end_ && text.reason == FinishReason::cancelled) end.error = "the server ends";
  }
  if (text.reason == FinishReason::failed) {
    end.error = text.error;
    end.status = 500;
  } else if (text.reason == FinishReason::cancelled) {
    if (end.error.empty()) end.error = "the request takes longer than the server allows";
    end.status = 503;
  } else {
    end.finish_reason = text.reason == FinishReason::length ? "length" : "stop";
  }
  job.finish(std::move(end));
}

}  // namespace cli
