// The tokens that fit the masks of a text: one forward, and the largest logits at each mask.
#include "attn/models_fill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/checker.h"

namespace attn::models {
namespace {

std::vector<FilledToken> most_probable(const text::Tokenizer& tokenizer, std::span<const float> logits, int64_t top_k) {
  std::vector<int64_t> order(std::min(logits.size(), static_cast<size_t>(tokenizer.vocab_size())));
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<int64_t>(top_k, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int64_t a, int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  const double largest = logits[order[0]];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  std::vector<FilledToken> tokens;
  for (const int64_t id : std::span(order).first(count))
    tokens.push_back({id, std::exp(double{logits[id]} - largest) / sum, tokenizer.label(id)});
  return tokens;
}

}  // namespace

MaskFiller::MaskFiller(const std::string& folder, const OpenOptions& how)
    : MaskFiller(open_with_tokenizer(folder, how)) {}

MaskFiller::MaskFiller(Loaded loaded) : loaded_(std::move(loaded)) {
  const Config& config = loaded_.model->config();
  Checker checker("fill");
  checker.require(!config.causal && config.classes == 0 && config.head,
                  "the model must predict tokens from both sides, as a masked language model does");
  if (checker.require(loaded_.tokenizer != nullptr, "the model has no tokenizer")) {
    for (const char* name : {"[MASK]", "<mask>"})
      if (const auto id = loaded_.tokenizer->token_to_id(name); id && mask_id_ < 0) {
        mask_ = name;
        mask_id_ = *id;
      }
    checker.require(mask_id_ >= 0, "the tokenizer has no mask token, [MASK] or <mask>");
  }
  checker.done();
}

std::vector<FilledMask> MaskFiller::operator()(std::string_view text, int64_t top_k) const {
  if (top_k < 1) throw Error("fill", {"top_k is " + std::to_string(top_k) + ", must be at least 1"});
  const Config& config = loaded_.model->config();
  const text::Encoding encoding = loaded_.tokenizer->encode(text);
  Batch batch;
  batch.tokens = encoding.ids;
  if (config.type_vocab_size) batch.token_type_ids = encoding.token_type_ids;
  batch.sequences = 1;
  batch.length = std::ssize(encoding.ids);
  if (std::find(encoding.ids.begin(), encoding.ids.end(), mask_id_) == encoding.ids.end())
    throw Error("fill", {"the text has no " + mask_});
  Tape tape;
  const Array logits = loaded_.model->forward(tape, batch).data();
  std::vector<FilledMask> masks;
  for (int64_t n = 0; n < batch.length; ++n)
    if (encoding.ids[n] == mask_id_)
      masks.push_back(
          {n, most_probable(*loaded_.tokenizer,
                            {logits.data<float>() + n * config.vocab_size, static_cast<size_t>(config.vocab_size)},
                            top_k)});
  return masks;
}

}  // namespace attn::models
