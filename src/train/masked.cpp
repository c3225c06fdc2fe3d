// Crops of a text with masked tokens.
#include <algorithm>
#include <cmath>

#include "attn/train_data.h"
#include "core/checker.h"

namespace attn::train {
namespace {

constexpr double kMasked = 0.8, kRandom = 0.1;  // of the tokens to predict; the others stay as they are

int64_t inner_length(const MaskingOptions& masking, int64_t context) {
  const int64_t around = std::ssize(masking.before) + std::ssize(masking.after);
  const auto is_token = [&](int64_t id) { return id >= 0 && id < masking.vocab_size; };
  Checker checker("data");
  checker.require(masking.share > 0 && masking.share < 1,
                  "share is " + std::to_string(masking.share) + ", must be in (0, 1)");
  checker.require(is_token(masking.mask_id), "mask_id is " + std::to_string(masking.mask_id) + ", must be in [0, " +
                                                 std::to_string(masking.vocab_size) + ")");
  checker.require(std::all_of(masking.before.begin(), masking.before.end(), is_token) &&
                      std::all_of(masking.after.begin(), masking.after.end(), is_token),
                  "before and after must be tokens of the vocabulary");
  checker.require(context > around, "context is " + std::to_string(context) + ", must be more than the " +
                                        std::to_string(around) + " special tokens around a crop");
  checker.done();
  return context - around;
}

}  // namespace

MaskedTextDataset::MaskedTextDataset(std::vector<int64_t> tokens, const MaskingOptions& masking, int64_t context,
                                     int64_t batch, uint64_t seed, int64_t validation_batches,
                                     int64_t validation_tokens)
    : masking_(masking),
      crops_(std::move(tokens), inner_length(masking, context), batch, seed, validation_batches, validation_tokens),
      seed_(seed) {}

models::Batch MaskedTextDataset::masked(const models::Batch& crops, uint64_t seed, uint64_t number) const {
  Random random(seed, number);
  models::Batch batch;
  batch.sequences = crops.sequences;
  batch.length = crops.length + std::ssize(masking_.before) + std::ssize(masking_.after);
  const auto add_special = [&](const std::vector<int64_t>& ids) {
    batch.tokens.insert(batch.tokens.end(), ids.begin(), ids.end());
    batch.targets.insert(batch.targets.end(), ids.size(), ops::kIgnoreIndex);
  };
  for (int64_t b = 0; b < crops.sequences; ++b) {
    add_special(masking_.before);
    std::vector<bool> chosen(static_cast<size_t>(crops.length));
    for (auto&& each : chosen) each = random.uniform() < masking_.share;
    if (std::find(chosen.begin(), chosen.end(), true) == chosen.end())
      chosen[static_cast<size_t>(random.below(crops.length))] = true;
    for (int64_t n = 0; n < crops.length; ++n) {
      const int64_t token = crops.tokens[static_cast<size_t>(b * crops.length + n)];
      const bool is_target = chosen[static_cast<size_t>(n)];
      batch.targets.push_back(is_target ? token : ops::kIgnoreIndex);
      const double fate = is_target ? random.uniform() : 1;
      batch.tokens.push_back(fate < kMasked             ? masking_.mask_id
                             : fate < kMasked + kRandom ? random.below(masking_.vocab_size)
                                                        : token);
    }
    add_special(masking_.after);
  }
  return batch;
}

models::Batch MaskedTextDataset::training(uint64_t number) const {
  return masked(crops_.training(number), ~seed_, number);
}

models::Batch MaskedTextDataset::validation(int64_t number) const {
  constexpr uint64_t kValidation = 0x5bd1e995;  // other tokens than those of the training batch of this number
  return masked(crops_.validation(number), seed_ ^ kValidation, static_cast<uint64_t>(number));
}

}  // namespace attn::train
