#include "serve_engine.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "attn/core.h"

namespace cli {
namespace {

using attn::generate::FinishReason;
using attn::generate::WrittenText;
using Lock = std::unique_lock<std::mutex>;
using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kSilence{1};  // after which rank 0 sends that there is no step

/// What happens before a step. Rank 0 sends it to the others.
struct StepNews {
  std::vector<std::string> begun = {};  ///< sources of texts
  std::vector<int64_t> cancelled = {};  ///< requests
  bool ended = false;
};

void send(attn::cluster::Communicator& ranks, const StepNews& news) {
  if (ranks.size() > 1)
    attn::cluster::gather(ranks,
                          Json{{"begun", news.begun}, {"cancelled", news.cancelled}, {"ended", news.ended}}.dump());
}

StepNews receive(attn::cluster::Communicator& ranks) {
  const Json news = Json::parse(attn::cluster::gather(ranks, std::string()).front());
  return {news.at("begun").get<std::vector<std::string>>(), news.at("cancelled").get<std::vector<int64_t>>(),
          news.at("ended").get<bool>()};
}

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

Engine::Engine(const attn::generate::TextGenerator& generator, const EngineLimits& limits,
               attn::cluster::Communicator& ranks, std::function<void()> on_failure)
    : limits_(limits),
      batcher_(generator, limits.batcher),
      ranks_(ranks),
      on_failure_(std::move(on_failure)),
      thread_([this] {
        try {
          attn::cluster::on_all_ranks(ranks_, "serve", [this] { run(); });
        } catch (const std::exception& error) {
          fail(error.what());
        }
      }) {}

Engine::~Engine() {
  end_within({});
  {
    const Lock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<TextJob> Engine::submit(TextInput input) {
  const auto limit =
      std::chrono::duration_cast<TextJob::Clock::duration>(std::chrono::duration<double>(limits_.max_seconds));
  auto job = std::make_shared<TextJob>(std::move(input), TextJob::Clock::now() + limit);
  const Lock lock(mutex_);
  const int64_t most = limits_.batcher.max_requests + limits_.max_waiting;
  if (end_ || failure_ || counts_.requests + std::ssize(added_) >= most) {
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

void Engine::rethrow_failure() const {
  const Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

/// In the handler of an exception: ends all texts.
void Engine::fail(const std::string& reason) {
  {
    const Lock lock(mutex_);
    failure_ = std::current_exception();
    for (const auto& [request, job] : jobs_) job->finish({.error = reason, .status = 500});
    for (const auto* jobs : {&added_, &taken_})
      for (const std::shared_ptr<TextJob>& job : *jobs) job->finish({.error = reason, .status = 500});
  }
  on_failure_();
}

/// Waits until there is work, or until rank 0 has to send that there is none. False after the end.
bool Engine::take_added() {
  Lock lock(mutex_);
  const auto has_work = [&] { return ended_ || !added_.empty() || batcher_.batcher().requests() > 0; };
  if (ranks_.size() > 1) changed_.wait_for(lock, kSilence, has_work);
  else changed_.wait(lock, has_work);
  taken_ = std::exchange(added_, {});
  counts_.requests += std::ssize(taken_);
  return !ended_ || !taken_.empty() || batcher_.batcher().requests() > 0;
}

void Engine::run() {
  while (take_added()) {
    StepNews news{.cancelled = overdue()};
    for (const std::shared_ptr<TextJob>& job : taken_) news.begun.push_back(job->input_.source);
    send(ranks_, news);
    for (const int64_t request : news.cancelled) batcher_.cancel(request);
    for (const std::shared_ptr<TextJob>& job : taken_) begin(job);
    taken_.clear();
    step();
  }
  send(ranks_, {.ended = true});
}

void follow_engine(const attn::generate::TextGenerator& generator, const attn::generate::BatcherOptions& limits,
                   attn::cluster::Communicator& ranks,
                   const std::function<TextInput(const std::string& source)>& read) {
  attn::generate::TextBatcher batcher(generator, limits);
  attn::cluster::on_all_ranks(ranks, "serve", [&] {
    for (StepNews news = receive(ranks); !news.ended; news = receive(ranks)) {
      for (const int64_t request : news.cancelled) batcher.cancel(request);
      for (const std::string& source : news.begun) {
        const TextInput input = read(source);
        try {
          batcher.add(input.prompt, input.options);
        } catch (const attn::Error&) {  // rank 0 answers it
        }
      }
      batcher.step();
    }
  });
}

void Engine::begin(const std::shared_ptr<TextJob>& job) {
  try {
    const auto write = [job = job.get()](std::string_view piece) {
      job->write(piece);
      return true;  // a text that nobody reads any more is cancelled before the next step
    };
    jobs_.emplace(batcher_.add(job->input_.prompt, job->input_.options, write), job);
  } catch (const attn::Error& error) {
    const Lock lock(mutex_);
    ++counts_.failed;
    job->finish({.error = error.what(), .status = 400});
  }
}

/// Requests whose reader has gone, or whose time is over.
std::vector<int64_t> Engine::overdue() const {
  std::optional<TextJob::Clock::time_point> end;
  {
    const Lock lock(mutex_);
    end = end_;
  }
  const auto now = TextJob::Clock::now();
  std::vector<int64_t> requests;
  for (const auto& [request, job] : jobs_)
    if (job->cancelled_ || now > job->deadline_ || (end && now > *end)) requests.push_back(request);
  return requests;
}

void Engine::step() {
  const bool computes = batcher_.batcher().requests() > 0;
  const std::vector<WrittenText> texts = batcher_.step();
  for (const WrittenText& text : texts) {
    const auto found = jobs_.find(text.request);
    finish(*found->second, text);
    jobs_.erase(found);
  }
  const Lock lock(mutex_);
  counts_.steps += computes;
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
