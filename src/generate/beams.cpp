// The search of beams: as transformers has it since its version 4.50, without drawing.
//
//   score of a running text   the sum of the log probabilities of its new tokens
//   of a finished one         that / length^length_penalty
// At each step the K = (1 + ends, at least 2) beams best continuations are looked at: those among the first `beams` of
// them that end are finished, the best of the others run on.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "generate/loop.h"

namespace attn::generate {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Continuation {
  double score;
  int64_t beam, token;
};

struct Finished {
  double score;
  std::vector<int64_t> text;
};

class BeamSearch {
 public:
  BeamSearch(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options)
      : options_(options),
        answers_(!options.decoder_start_token_ids.empty()),
        sequences_(model, answers_ ? prompt : std::span<const int64_t>(), options),
        vocabulary_(model.config().vocab_size) {
    const std::span<const int64_t> begin = answers_ ? std::span(options.decoder_start_token_ids) : prompt;
    texts_ = {{begin.begin(), begin.end()}};
    scores_ = {0};
    given_ = static_cast<int64_t>(begin.size());
    counted_from_ = answers_ ? 1 : given_;  // a token that is forced after the first counts as new
    longest_ = std::min(context_of(model, options) + 1, given_ + options.max_new_tokens);
    if (options.max_length) longest_ = std::min(longest_, options.max_length);
  }

  Generated run() {
    Generated result;
    auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      const auto now = std::chrono::steady_clock::now();
      return std::chrono::duration<double>(now - std::exchange(start, now)).count();
    };
    bool runs = length() < longest_;
    while (runs) {
      runs = step() && !(options_.beam.on_step && !options_.beam.on_step());
      if (result.prompt_seconds == 0) result.prompt_seconds = seconds();
    }
    result.token_seconds = seconds();
    const bool any = !finished_.empty();
    const std::vector<int64_t>& best = any ? finished_[0].text : texts_[0];
    result.score = any ? finished_[0].score : scores_[0];
    result.tokens.assign(best.begin() + given_, best.end());
    if (!result.tokens.empty() && is_end(result.tokens.back(), options_)) result.tokens.pop_back();
    return result;
  }

 private:
  int64_t length() const { return static_cast<int64_t>(texts_[0].size()); }
  double penalised(double score, int64_t new_tokens) const {
    return score / std::pow(static_cast<double>(new_tokens), options_.beam.length_penalty);
  }
  bool is_full() const { return static_cast<int64_t>(finished_.size()) == options_.beam.num_beams; }

  /// One token more; false where the search ends.
  bool step() {
    const bool at_end = options_.beam.forced_eos && length() == longest_;  // only the end may follow
    const std::vector<Continuation> best = at_end ? ends() : continuations();
    const int64_t new_length = length() + 1, wanted = options_.beam.num_beams;
    const bool last = new_length >= longest_ + (options_.beam.forced_eos ? 1 : 0);
    std::vector<Continuation> running;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      const Continuation& one = best[rank];
      if (!last && !is_end(one.token, options_)) {
        if (static_cast<int64_t>(running.size()) < wanted) running.push_back(one);
      } else if (static_cast<int64_t>(rank) < wanted && !(is_full() && stops_when_full())) {
        finish(one, new_length);
      }
    }
    if (running.empty()) return false;
    go_on(running);
    const double ideal = options_.beam.early_stopping == EarlyStopping::certain && options_.beam.length_penalty > 0
                             ? penalised(scores_[0], longest_ + (options_.beam.forced_eos ? 1 : 0) - counted_from_)
                             : penalised(scores_[0], length() - counted_from_);
    return !is_full() || (ideal > finished_.back().score && !stops_when_full());
  }

  bool stops_when_full() const { return options_.beam.early_stopping == EarlyStopping::full; }

  void finish(const Continuation& one, int64_t new_length) {
    std::vector<int64_t> text = texts_[static_cast<size_t>(one.beam)];
    text.push_back(one.token);
    const double score = penalised(one.score, new_length - counted_from_);
    const auto place =
        std::find_if(finished_.begin(), finished_.end(), [&](const Finished& f) { return f.score < score; });
    finished_.insert(place, {score, std::move(text)});
    if (static_cast<int64_t>(finished_.size()) > options_.beam.num_beams) finished_.pop_back();
  }

  void go_on(const std::vector<Continuation>& running) {
    std::vector<std::vector<int64_t>> texts;
    std::vector<int64_t> from;
    scores_.clear();
    for (const Continuation& one : running) {
      texts.push_back(texts_[static_cast<size_t>(one.beam)]);
      texts.back().push_back(one.token);
      scores_.push_back(one.score);
      from.push_back(one.beam);
    }
    texts_ = std::move(texts);
    sequences_.select(from);
  }

  std::vector<Continuation> ends() const {
    std::vector<Continuation> all;
    for (size_t beam = 0; beam < texts_.size(); ++beam)
      all.push_back({scores_[beam], static_cast<int64_t>(beam), options_.eos_token_ids.front()});
    return all;
  }

  /// The best, falling.
  std::vector<Continuation> continuations() {
    const std::vector<float> logits = sequences_.next(texts_);
    std::vector<Continuation> all;
    all.reserve(logits.size());
    for (size_t beam = 0; beam < texts_.size(); ++beam) {
      const std::vector<double> next =
          log_probabilities(std::span(logits).subspan(beam * vocabulary_, vocabulary_), beam);
      for (int64_t token = 0; token < vocabulary_; ++token)
        if (next[token] > kNever) all.push_back({scores_[beam] + next[token], static_cast<int64_t>(beam), token});
    }
    const int64_t kept = options_.beam.num_beams * std::max<int64_t>(2, 1 + std::ssize(options_.eos_token_ids));
    const auto middle = all.begin() + std::min<int64_t>(kept, std::ssize(all));
    std::partial_sort(all.begin(), middle, all.end(), [](const Continuation& a, const Continuation& b) {
      return std::tuple(-a.score, a.beam, a.token) < std::tuple(-b.score, b.beam, b.token);
    });
    all.erase(middle, all.end());
    return all;
  }

  std::vector<double> log_probabilities(std::span<const float> logits, size_t beam) const {
    const double largest = *std::max_element(logits.begin(), logits.end());
    const double sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double before, float logit) {
      return before + std::exp(static_cast<double>(logit) - largest);
    });
    const double total = largest + std::log(sum);
    if (!std::isfinite(total))
      throw Error("generate", {"the logits after " + std::to_string(length()) + " tokens are not finite"});
    std::vector<double> next(logits.begin(), logits.end());
    for (double& each : next) each -= total;
    const std::vector<int64_t>& text = texts_[beam];
    add_biases(text, options_, [&](int64_t id, double bias) { next[id] += bias; });
    if (const double penalty = options_.sampling.repetition_penalty; penalty != 1)
      for (const int64_t id : std::set(text.begin(), text.end()))
        next[id] = next[id] > 0 ? next[id] / penalty : next[id] * penalty;
    for (const int64_t id : forbidden(text, given_, options_)) next[id] = kNever;
    return next;
  }

  const GenerateOptions& options_;
  bool answers_;
  Sequences sequences_;
  int64_t vocabulary_, given_ = 0, counted_from_ = 0, longest_ = 0;
  std::vector<std::vector<int64_t>> texts_;  // that run, falling by score
  std::vector<double> scores_;
  std::vector<Finished> finished_;  // falling
};

}  // namespace

Generated search(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options) {
  Generated result = BeamSearch(model, prompt, options).run();
  if (options.on_token)
    for (const int64_t token : result.tokens)
      if (!options.on_token(token)) break;
  return result;
}

}  // namespace attn::generate
