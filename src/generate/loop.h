// loop: the rules and the model as generate() and the search of beams call them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attn/generate.h"
#include "core/checker.h"

namespace attn::generate {

/// A token with its logit, then with its probability up to a common factor.
struct WeightedToken {
  int64_t id;
  double weight;
};
/// Memory that sample() uses again for each token.
struct SampleWorkspace {
  std::vector<WeightedToken> candidates = {};
  std::vector<bool> penalised = {};
};
/// The public sample() without allocations.
int64_t sample(std::span<const float> logits, std::span<const int64_t> seen, const SamplingOptions& options,
               Random& random, SampleWorkspace& workspace);
/// Throws Error that lists the options that are out of range.
void check(const SamplingOptions& options);
/// Every id must be in [0, count); the first that is not is a reason.
void require_ids(Checker& checker, const char* name, std::span<const int64_t> ids, int64_t count);

/// The tokens that must not come next, after `text` whose first `given` tokens nobody chose.
std::vector<int64_t> forbidden(std::span<const int64_t> text, int64_t given, const GenerateOptions& options);

/// Calls add(token, bias) for every run that the token would complete after `text`.
void add_biases(std::span<const int64_t> text, const GenerateOptions& options,
                const std::function<void(int64_t token, double bias)>& add);

/// How many tokens of a text the model sees before it forgets the first ones; without a limit with streaming.
int64_t context_of(const models::Model& model, const GenerateOptions& options);

/// The tokens of a text up to which rotary positions do not depend on its length.
int64_t steady_length(const models::Config& config);

bool is_end(int64_t token, const GenerateOptions& options);

/// Chooses the tokens of one text.
class Chooser {
 public:
  /// The first `given` tokens of the text are not new.
  Chooser(int64_t given, const GenerateOptions& options) : options_(options), given_(given), random_(options.seed) {}
  /// The token after `text`, of which the model has seen the tokens from `first` on. Changes the logits.
  int64_t next(std::span<float> logits, std::span<const int64_t> text, int64_t first);
  /// Of the first `count` tokens that were chosen; empty unless the options want them. Can be called once.
  std::vector<TokenLogprobs> take_logprobs(size_t count);

 private:
  const GenerateOptions& options_;
  int64_t given_;
  Random random_;
  SampleWorkspace workspace_;
  std::vector<float> raw_;  // the model's logits
  std::vector<TokenLogprobs> logprobs_;
};

/// Texts of one length whose tokens come one after the other, and what the model has cached of them.
class Sequences {
 public:
  /// One text. `source`, or the rows of the options, are what an encoder reads; empty where there is none.
  Sequences(const models::Model& model, std::span<const int64_t> source, const GenerateOptions& options);
  /// Logits [texts, V] after texts whose beginnings are what they were the last time.
  std::vector<float> next(std::span<const std::vector<int64_t>> texts, int64_t first = 0);
  /// Logits [1 + draft, V] after the one text, of whose tokens the cache lacks the last, and after each draft token.
  std::vector<float> next(int64_t last, std::span<const int64_t> draft);
  /// Tokens of each text that are cached.
  int64_t known() const { return cached_ ? cache_.length() : 0; }
  /// Removes the cached tokens from `length` on.
  void cut(int64_t length) { cache_.truncate(length); }
  /// The texts that are named, each by its number, in place of those that there are.
  void select(std::span<const int64_t> texts);
  /// Takes over what `from` knows of the beginning of the one text; returns how many tokens that are.
  int64_t resume(TextCache& from, std::span<const int64_t> text);
  /// Leaves what was computed of the one text for a later call.
  void keep(TextCache& to, std::span<const int64_t> text);

 private:
  std::vector<float> logits(models::Batch& batch, bool last_only);
  const models::Model& model_;
  models::ModelCache cache_;
  std::span<const int64_t> source_;
  Array rows_;
  Recorder* recorder_;
  bool cached_, same_bits_;
  std::shared_ptr<autograd::Recycler> memory_ = autograd::Tape().memory();
};

/// Drafts the next tokens of one text.
class Drafter {
 public:
  explicit Drafter(const GenerateOptions& options);
  /// At most `most` tokens that may follow.
  std::vector<int64_t> next(std::span<const int64_t> text, int64_t most);
  /// The model accepted so many tokens of the last draft.
  void judge(int64_t drafted, int64_t accepted);

 private:
  std::vector<int64_t> looked_up(std::span<const int64_t> text, int64_t most) const;
  std::vector<int64_t> written(std::span<const int64_t> text, int64_t most);
  const Speculation& options_;
  int64_t length_;                    // of the next draft, at most
  std::unique_ptr<Sequences> model_;  // the draft model, if there is one
  std::vector<int64_t> written_;      // what it has been given
};

/// The search, of options that have been checked.
Generated search(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options);

}  // namespace attn::generate
