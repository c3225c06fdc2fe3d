// models: the cache of a model, what its layers keep of the texts so far.
//
// ```cpp
// #include "attn/models.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 100;
//   const models::Model model(config, nn::Precision::float32, 1);
//   models::ModelCache cache = model.new_cache();
//   autograd::Tape tape;
//   model.forward(tape, {.tokens = {5, 7, 9}, .sequences = 1, .length = 3}, {.cache = &cache});
//   const nn::Value next = model.forward(tape, {.tokens = {2}, .sequences = 1, .length = 1}, {.cache = &cache});
// }
// ```
#pragma once

#include <span>
#include <vector>

#include "attn/nn.h"

#pragma GCC visibility push(default)
namespace attn {
class Checker;
}
namespace attn::models {

/// What the layers of a model keep of the tokens that it has computed, for a batch of sequences: keys and values, or
/// the states of other mixers. Model::new_cache() makes one.
///
/// Sequences have numbers from 0. A batch that is not packed continues all of them, which then have one length. Packed
/// batches continue some, by ForwardOptions::cache_sequences, each from its own length.
class ModelCache {
 public:
  ModelCache() = default;
  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of a sequence; 0 of an empty cache. Throws Error for a sequence that the cache does not have.
  int64_t length(int64_t sequence = 0) const;
  int64_t bytes() const;  ///< of this rank
  /// KV pages in use in each layer with attention, the same in all; 0 without such layers. A KV page has
  /// KVCacheConfig::page_size tokens, and forks share pages.
  int64_t pages_in_use() const { return attention_.empty() ? 0 : attention_.front().pages_in_use(); }
  Streaming streaming() const { return attention_.empty() ? Streaming() : attention_.front().config().streaming; }
  /// The ranks that share it, see Model::new_shared_cache(); null: this process has all of it.
  cluster::Communicator* ranks() const { return ranks_; }
  KVStorage storage() const { return attention_.empty() ? KVStorage::exact : attention_.front().config().storage; }
  /// Removes the tokens of every sequence from `length` on. Throws Error where a layer has a state, and for a streaming
  /// cache that has evicted tokens, unless length is 0 or length(): neither can go back.
  void truncate(int64_t length);
  /// The same of one sequence.
  void truncate(int64_t sequence, int64_t length);
  /// Replaces the batch by the given sequences of it, by index; an index may repeat. Copies share the stored tokens and
  /// continue independently, as beam search needs.
  void select(std::span<const int64_t> sequences);
  /// Adds an empty sequence at the end. Throws Error where a layer has a state, or the model an encoder.
  void add();
  /// Adds one that has the first `length` tokens of `sequence` and shares its full KV pages. Throws Error as add() and
  /// truncate() do.
  void fork(int64_t sequence, int64_t length);
  /// Removes a sequence; those after it move up. Throws Error as add() does.
  void remove(int64_t sequence);

 private:
  friend class Model;
  bool has_states() const;
  void check_one(int64_t sequence) const;
  void check_ragged() const;
  void check_own() const;
  cluster::Communicator* ranks_ = nullptr;
  std::vector<KVCache> attention_;      // of each layer with attention
  std::vector<nn::MixerState> states_;  // of each layer, empty for those with attention
  std::vector<int64_t> ids_;            // of each sequence in attention_; empty without attention
  std::vector<int64_t> lengths_;        // of each sequence
  std::vector<nn::Value> memories_;     // keys and values of each layer's cross-attention
  std::vector<int64_t> memory_lengths_;
  std::vector<int64_t> sources_;  // sequences with equal numbers have equal encoder states
};

}  // namespace attn::models
#pragma GCC visibility pop
