// generate: many texts at once. Requests enter and leave between steps of the model.
//
// ```cpp
// #include "attn/generate_batch.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50;
//   const models::Model model(config, nn::Precision::float32, 1);
//   generate::Batcher batcher(model);
//   for (int64_t n = 0; n < 3; ++n) batcher.add({n, 7}, {.max_new_tokens = 8});
//   while (batcher.requests() > 0)
//     for (const generate::FinishedText& text : batcher.step())
//       if (text.generated.tokens.size() != 8) return 1;
// }
// ```
//
// One step computes a token of every text in one call of the model, which reads its weights once for all of them. The
// weights should be packed (models::OpenOptions::packed): tokens of a text have the same bits whatever texts are
// computed beside it, and for weights that are not packed this costs time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attn/generate_text.h"

#pragma GCC visibility push(default)
namespace attn::generate {

struct BatcherOptions {
  int64_t max_requests = 16;  ///< texts that are computed at once; others wait
  /// Tokens of one step: one of each text whose prompt has been computed; prompts share the rest, so that a long prompt
  /// is computed in several steps, between which other texts go on.
  int64_t max_step_tokens = 256;
  /// Limit on the tokens whose keys and values are in memory, those of finished texts included, rounded up to KV pages;
  /// 0 = max_requests times the context. A request waits until its prompt and max_new_tokens fit.
  int64_t max_cache_tokens = 0;
  KVStorage cache_storage = KVStorage::exact;  ///< as GenerateOptions::cache_storage, of all texts
};

enum class FinishReason {
  eos,        ///< one of eos_token_ids
  length,     ///< max_new_tokens, max_length or the context
  stopped,    ///< a stop string, or a callback that returned false
  cancelled,  ///< Batcher::cancel()
  failed      ///< an exception of this request, as for a logit that is NaN: FinishedText::error
};
constexpr auto enum_names(FinishReason) {
  return std::to_array<std::string_view>({"eos", "length", "stopped", "cancelled", "failed"});
}

struct FinishedText {
  int64_t request = 0;  ///< what add() returned
  /// `reused` are tokens of the prompt that were computed for another text. prompt_seconds count from add() to the
  /// first token, token_seconds from there to the last.
  Generated generated = {};
  FinishReason reason = FinishReason::eos;
  std::string error = {};
};

/// Generates many texts with one model. The tokens of a request are those of generate() with batch_invariant and the
/// same options, bit for bit, whatever other requests there are: but for one text beyond the context, which ends here.
///
/// Keys and values are in KV pages. Texts that begin alike share them, also with finished texts, which stay in memory
/// until room is needed, those first that were not used for the longest time. Not for several threads at once.
class Batcher {
 public:
  /// Borrows the model. Throws Error for options below 1, and for a model that does not continue texts, has an encoder
  /// or has a layer without attention.
  explicit Batcher(const models::Model& model, const BatcherOptions& options = {});
  ~Batcher();
  Batcher(Batcher&&) noexcept;
  Batcher& operator=(Batcher&&) noexcept;

  /// Queues a request and returns its number. Requests are taken in this order. on_token is called in step(). Throws
  /// Error as generate() does, for a prompt that fills the context or the cache, and for options that need more than
  /// one text or call: beams, streaming, recorder, text_cache, speculation, `cache` = false. The
  /// options' cache_storage must be the Batcher's, or exact, which has no effect.
  int64_t add(std::vector<int64_t> prompt, GenerateOptions options);
  /// Ends a request; the next step() returns it. False if it has ended.
  bool cancel(int64_t request);
  /// One call of the model, and what ended by it. Returns at once if there is no request.
  std::vector<FinishedText> step();

  int64_t requests() const;  ///< that have not been returned by step()
  int64_t waiting() const;   ///< those of them whose computation has not begun
  int64_t cache_bytes() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

struct WrittenText : FinishedText {
  std::string text = {};                 ///< the new text, without a stop string
  std::vector<int64_t> prompt_ids = {};  ///< the tokens of the prompt
};

/// A Batcher of texts: TextGenerator::write() for many prompts at once.
class TextBatcher {
 public:
  /// Borrows the generator. Throws Error as Batcher does.
  explicit TextBatcher(const TextGenerator& generator, const BatcherOptions& options = {});

  /// As Batcher::add(), with the options and the callback of write(); return_full_text has no effect.
  int64_t add(std::span<const int64_t> prompt_ids, const TextOptions& options = {}, TextGenerator::OnText on_text = {});
  bool cancel(int64_t request) { return batcher_.cancel(request); }
  /// As Batcher::step(). on_text is called in it, and what it throws ends its request as failed.
  std::vector<WrittenText> step();
  const Batcher& batcher() const { return batcher_; }

 private:
  struct Text {
    StreamedText streamed;
    TextGenerator::OnText on_text;
    std::vector<int64_t> prompt_ids;
    std::string text = {};
    bool add(const std::string& piece);
  };
  const TextGenerator& generator_;
  Batcher batcher_;
  std::map<int64_t, std::shared_ptr<Text>> texts_;
};

}  // namespace attn::generate
#pragma GCC visibility pop
