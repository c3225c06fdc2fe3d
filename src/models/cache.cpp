// What generation keeps of the texts so far: sequences that grow, fork and leave, the same in all layers.
#include <algorithm>
#include <numeric>

#include "attn/models.h"
#include "core/checker.h"

namespace attn::models {
namespace {

template <typename T>
std::vector<T> selected(const std::vector<T>& of, std::span<const int64_t> sequences) {
  std::vector<T> some;
  if (!of.empty())
    for (const int64_t n : sequences) some.push_back(of[static_cast<size_t>(n)]);
  return some;
}

}  // namespace

int64_t ModelCache::length(int64_t sequence) const {
  if (lengths_.empty()) return 0;
  check_one(sequence);
  return lengths_[static_cast<size_t>(sequence)];
}

int64_t ModelCache::bytes() const {
  int64_t total = 0;
  for (const nn::MixerState& state : states_) total += state.bytes();
  for (const KVCache& layer : attention_) total += layer.pages_in_use() * layer.config().page_bytes();
  return total;
}

bool ModelCache::has_states() const {
  return std::any_of(states_.begin(), states_.end(), [](const nn::MixerState& state) { return !state.parts.empty(); });
}

void ModelCache::check_one(int64_t sequence) const {
  Checker checker("ModelCache");
  checker.require(sequence >= 0 && sequence < sequences(), [&] {
    return "the sequence is " + std::to_string(sequence) + ", must be in [0, " + std::to_string(sequences()) + ")";
  });
  checker.done();
}

void ModelCache::truncate(int64_t length) {
  const bool uneven = std::adjacent_find(lengths_.begin(), lengths_.end(), std::not_equal_to<>()) != lengths_.end();
  const int64_t shortest = lengths_.empty() ? 0 : *std::min_element(lengths_.begin(), lengths_.end());
  Checker checker("ModelCache");
  checker.require(length >= 0 && length <= shortest, [&] {
    return "length is " + std::to_string(length) + ", must be in [0, " + std::to_string(shortest) + "]";
  });
  checker.require(!has_states() || length == 0 || (length == shortest && !uneven), [&] {
    return "length is " + std::to_string(length) + ", must be 0 or " + std::to_string(shortest) +
           ": the state of a mixer cannot go back to an earlier token";
  });
  checker.require(!ranks_ || length == 0 || length == shortest,
                  "a cache that ranks share can be emptied, not shortened");
  checker.done();
  if (ranks_ && length > 0) return;
  for (KVCache& layer : attention_)
    for (const int64_t id : ids_) layer.truncate(id, length);
  if (length == 0) states_.clear();  // the next call makes new ones
  std::fill(lengths_.begin(), lengths_.end(), length);
}

void ModelCache::check_own() const {
  if (ranks_) throw Error("ModelCache", {"the cache is of one text, whose tokens ranks share"});
}

void ModelCache::truncate(int64_t sequence, int64_t length) {
  check_own();
  check_one(sequence);
  const auto at = static_cast<size_t>(sequence);
  Checker checker("ModelCache");
  checker.require(length >= 0 && length <= lengths_[at], [&] {
    return "length is " + std::to_string(length) + ", must be in [0, " + std::to_string(lengths_[at]) + "]";
  });
  checker.require(!has_states() || length == lengths_[at], "the state of a mixer cannot go back to an earlier token");
  checker.done();
  for (KVCache& layer : attention_) layer.truncate(ids_[at], length);
  lengths_[at] = length;
}

void ModelCache::select(std::span<const int64_t> sequences) {
  check_own();
  for (const int64_t n : sequences) check_one(n);
  for (nn::MixerState& state : states_)
    if (!state.parts.empty()) state.select(sequences);
  std::vector<int64_t> ids;  // the same in all layers, which are treated alike
  for (KVCache& layer : attention_) {
    ids.clear();
    for (const int64_t id : selected(ids_, sequences)) ids.push_back(layer.fork(id, layer.length(id)));
    for (const int64_t id : ids_) layer.remove(id);
  }
  ids_ = std::move(ids);
  lengths_ = selected(lengths_, sequences);
  const std::vector<int64_t> sources = selected(sources_, sequences);
  if (sources != sources_)
    for (nn::Value& memory : memories_) {
      nn::MixerState kept{{memory.data()}};
      kept.select(sequences);
      memory = nn::Value(kept.parts.front());
    }
  sources_ = sources;
  memory_lengths_ = selected(memory_lengths_, sequences);
}

void ModelCache::check_ragged() const {
  check_own();
  Checker checker("ModelCache");
  checker.require(
      !attention_.empty() && !has_states() && memories_.empty(),
      "sequences come and go only in the cache of a model with attention in all layers and without an encoder");
  checker.done();
}

void ModelCache::add() {
  check_ragged();
  int64_t id = 0;
  for (KVCache& layer : attention_) id = layer.add();
  ids_.push_back(id);
  lengths_.push_back(0);
}

void ModelCache::fork(int64_t sequence, int64_t length) {
  check_ragged();
  check_one(sequence);
  int64_t id = 0;
  for (KVCache& layer : attention_) id = layer.fork(ids_[static_cast<size_t>(sequence)], length);
  ids_.push_back(id);
  lengths_.push_back(length);
}

void ModelCache::remove(int64_t sequence) {
  check_ragged();
  check_one(sequence);
  for (KVCache& layer : attention_) layer.remove(ids_[static_cast<size_t>(sequence)]);
  ids_.erase(ids_.begin() + sequence);
  lengths_.erase(lengths_.begin() + sequence);
}

}  // namespace attn::models
