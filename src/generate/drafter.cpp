// Drafts of next tokens, from the text itself or by a smaller model.
#include <algorithm>

#include "generate/loop.h"

namespace attn::generate {

Drafter::Drafter(const GenerateOptions& options) : options_(options.speculation), length_(options.speculation.tokens) {
  if (options_.draft)
    model_ = std::make_unique<Sequences>(*options_.draft, std::span<const int64_t>(), GenerateOptions());
}

std::vector<int64_t> Drafter::next(std::span<const int64_t> text, int64_t most) {
  most = std::min(most, length_);
  if (most <= 0) return {};
  return model_ ? written(text, most) : looked_up(text, most);
}

void Drafter::judge(int64_t drafted, int64_t accepted) {
  if (accepted == drafted) length_ = std::min(length_ + 2, options_.tokens);
  else length_ = std::max<int64_t>(length_ - 1, 1);
}

/// What followed the last occurrence of the longest run that ends the text.
std::vector<int64_t> Drafter::looked_up(std::span<const int64_t> text, int64_t most) const {
  for (int64_t n = std::min(options_.ngram, std::ssize(text) - 1); n >= 1; --n) {
    const std::span<const int64_t> run = text.last(static_cast<size_t>(n)), before = text.first(text.size() - 1);
    const auto found = std::find_end(before.begin(), before.end(), run.begin(), run.end());
    if (found == before.end()) continue;
    const auto begin = found + n;
    return {begin, begin + std::min<int64_t>(most, before.end() - begin + 1)};
  }
  return {};
}

/// The most probable tokens of the draft model, as far as its context goes.
std::vector<int64_t> Drafter::written(std::span<const int64_t> text, int64_t most) {
  const int64_t context = options_.draft->config().context;
  const auto [end, other] = std::mismatch(written_.begin(), written_.end(), text.begin(), text.end());
  const int64_t same = std::min<int64_t>(end - written_.begin(), std::ssize(text) - 1);
  model_->cut(std::min(model_->known(), same));
  std::vector<int64_t> longer(text.begin(), text.end());
  while (std::ssize(longer) <= context && std::ssize(longer) < std::ssize(text) + most) {
    const std::vector<float> logits = model_->next({&longer, 1});
    longer.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  written_ = longer;
  return {longer.begin() + std::ssize(text), longer.end()};
}

}  // namespace attn::generate
