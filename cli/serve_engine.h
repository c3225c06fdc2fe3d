// The thread that generates the texts of a server's requests, all at once. Ranks that share the model's layers make
// every step together: before it, rank 0 says which texts begin and which are cancelled.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attn/cluster.h"
#include "attn/generate_batch.h"

namespace cli {

/// What a text is made from.
struct TextInput {
  std::vector<int64_t> prompt = {};
  attn::generate::TextOptions options = {};
  std::string source = {};  ///< from which other ranks make the same
};

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

  TextJob(TextInput input, Clock::time_point deadline) : input_(std::move(input)), deadline_(deadline) {}

  /// Waits for text, or for the end, at most so long. Moves the new text to `text`; the end is there when all has been
  /// read.
  std::optional<End> read(std::string& text, std::chrono::milliseconds most);
  /// Nobody reads on.
  void cancel() { cancelled_ = true; }

 private:
  friend class Engine;
  void write(std::string_view piece);
  void finish(End end);
  TextInput input_;
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
  /// Borrows the generator and the ranks that share its model's layers, of which this is rank 0. `on_failure` is called
  /// by the engine's thread if the model can compute no more. Throws Error as TextBatcher does.
  Engine(const attn::generate::TextGenerator& generator, const EngineLimits& limits, attn::cluster::Communicator& ranks,
         std::function<void()> on_failure);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Null where too many requests wait.
  std::shared_ptr<TextJob> submit(TextInput input);
  /// Texts end within `most`; later ones are refused.
  void end_within(std::chrono::milliseconds most);
  EngineCounts counts() const;
  /// Throws what on_failure was called for.
  void rethrow_failure() const;

 private:
  void run();
  void fail(const std::string& reason);
  bool take_added();
  void begin(const std::shared_ptr<TextJob>& job);
  std::vector<int64_t> overdue() const;
  void step();
  void finish(TextJob& job, const attn::generate::WrittenText& text);

  EngineLimits limits_;
  attn::generate::TextBatcher batcher_;
  attn::cluster::Communicator& ranks_;
  std::function<void()> on_failure_;
  std::list<std::shared_ptr<TextJob>> taken_;         // that begin with the next step; of the thread alone, as
  std::map<int64_t, std::shared_ptr<TextJob>> jobs_;  // those that have begun, by request, and the batcher
  mutable std::mutex mutex_;                          // of what follows
  std::condition_variable changed_;
  std::list<std::shared_ptr<TextJob>> added_;
  EngineCounts counts_;
  std::optional<TextJob::Clock::time_point> end_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

/// Makes the steps of the engine of rank 0 on another rank, until that ends. `read` makes a text from its source.
void follow_engine(const attn::generate::TextGenerator& generator, const attn::generate::BatcherOptions& limits,
                   attn::cluster::Communicator& ranks, const std::function<TextInput(const std::string& source)>& read);

}  // namespace cli
