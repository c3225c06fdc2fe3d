// The thread that generates the texts of a server's requests, all at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attn/generate_batch.h"

namespace cli {

/// One text, which the engine writes and a connection reads.
class TextJob {
 public:
  using Clock = std::chrono::steady_clock;
  struct End {
    std::string finish_reason = {};  ///< "stop" or "length"; "" where there is an error
    std::string error = {};
    int status = 200;  ///< of HTTP, for the error
    int64_t prompt_tokens = 0, reused_tokens = 0, new_tokens = 0;
    std::vector<int64_t> tokens = {};                          ///< the last of the prompt, then the new ones, and
    std::vector<attn::generate::TokenLogprobs> logprobs = {};  ///< of these, if the request wants them
  };

  TextJob(std::vector<int64_t> prompt, attn::generate::TextOptions options, Clock::time_point deadline)
      : prompt_(std::move(prompt)), options_(std::move(options)), deadline_(deadline) {}

  /// Waits for text, or for the end, at most so long. Moves the new text to `text`; the end is there when all has been
  /// read.
  std::optional<End> read(std::string& text, std::chrono::milliseconds most);
  /// Nobody reads on.
  void cancel() { cancelled_ = true; }

 private:
  friend class Engine;
  void write(std::string_view piece);
  void finish(End end);
  std::vector<int64_t> prompt_;
  attn::generate::TextOptions options_;
  Clock::time_point deadline_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<End> end_;
};

struct EngineLimits {
  attn::generate::BatcherOptions batcher;
  int64_t max_waiting = 256;  ///< requests beyond those that are computed
  double max_seconds = 300;   ///< of one request
};

/// What has happened so far.
struct EngineCounts {
  int64_t requests = 0, waiting = 0, cache_bytes = 0;            // now
  int64_t finished = 0, failed = 0, cancelled = 0, refused = 0;  // requests so far
  int64_t prompt_tokens = 0, reused_tokens = 0, new_tokens = 0, steps = 0;
};

class Engine {
 public:
  /// Borrows the generator. Throws Error as TextBatcher does.
  Engine(const attn::generate::TextGenerator& generator, const EngineLimits& limits);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Null where too many requests wait.
  std::shared_ptr<TextJob> submit(std::vector<int64_t> prompt, const attn::generate::TextOptions& options);
  /// Texts end within `most`; later ones are refused.
  void end_within(std::chrono::milliseconds most);
  EngineCounts counts() const;

 private:
  void run();
  void begin(const std::shared_ptr<TextJob>& job);
  void end_overdue();
  void step();
  void finish(TextJob& job, const attn::generate::WrittenText& text);

  EngineLimits limits_;
  attn::generate::TextBatcher batcher_;
  std::map<int64_t, std::shared_ptr<TextJob>> jobs_;  // by request; of the thread alone, as the batcher
  mutable std::mutex mutex_;                          // of what follows
  std::condition_variable changed_;
  std::list<std::shared_ptr<TextJob>> added_;
  EngineCounts counts_;
  std::optional<TextJob::Clock::time_point> end_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace cli
