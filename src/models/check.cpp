// What a model asks of a batch and of the cache that it continues, before anything is computed.
#include <algorithm>
#include <cmath>
#include <functional>

#include "attention/streaming.h"
#include "attn/autograd_ranks.h"
#include "attn/models.h"
#include "core/checker.h"
#include "models/shape.h"

namespace attn::models {
namespace {

std::string text(int64_t value) { return std::to_string(value); }

/// Every value in [low, high), or `ignored`; the first that is not will do.
void require_range(Checker& checker, const char* name, std::span<const int64_t> values, int64_t low, int64_t high,
                   int64_t ignored) {
  for (size_t n = 0; n < values.size(); ++n) {
    if ((values[n] >= low && values[n] < high) || values[n] == ignored) continue;
    checker.require(false, std::string(name) + "[" + std::to_string(n) + "] is " + text(values[n]) + ", must be in [" +
                               text(low) + ", " + text(high) + ")");
    return;
  }
}

bool has_size(size_t values, int64_t sequences, int64_t length) {
  int64_t count = 0;
  return sequences >= 0 && length >= 0 && !__builtin_mul_overflow(sequences, length, &count) &&
         static_cast<int64_t>(values) == count;
}

void check_values(Checker& checker, const Config& config, const Batch& batch) {
  checker.require(classifies_texts(config) && batch.targets.empty() && batch.target_weights.empty(),
                  "values are for a classifier of texts, in place of targets and their weights");
  checker.require(has_size(batch.values.size(), batch.sequences, config.classes), [&] {
    return text(std::ssize(batch.values)) + " values are given for " + text(batch.sequences) + " sequences and " +
           text(config.classes) + " classes";
  });
  const auto bad = std::find_if(batch.values.begin(), batch.values.end(), [](double v) { return !std::isfinite(v); });
  checker.require(bad == batch.values.end(),
                  [&] { return "values[" + text(bad - batch.values.begin()) + "] is not finite"; });
}

void check_targets(Checker& checker, const Config& config, const Batch& batch, bool last_only) {
  if (!batch.values.empty()) return check_values(checker, config, batch);
  const bool each = !classifies_texts(config);
  const int64_t length = !each || last_only ? 1 : batch.length;
  const bool packed = !batch.cu_seqlens.empty() && each && !last_only;  // `length` is that of all sequences
  checker.require(has_size(batch.targets.size(), packed ? 1 : batch.sequences, length), [&] {
    return text(std::ssize(batch.targets)) + " targets are given for " + text(batch.sequences) + " sequences of " +
           text(length) + (config.classes ? " class" : " tokens") + (packed ? " in all" : "");
  });
  checker.require(batch.target_weights.empty() || batch.target_weights.size() == batch.targets.size(), [&] {
    return text(std::ssize(batch.target_weights)) + " target_weights are given for " + text(std::ssize(batch.targets)) +
           " targets";
  });
  require_range(checker, "targets", batch.targets, 0, config.classes ? config.classes : config.vocab_size,
                ops::kIgnoreIndex);
}

/// The tokens of the longest text, those of the cache included.
int64_t longest_of(const Batch& batch, const ForwardOptions& options) {
  const std::vector<int64_t>& starts = batch.cu_seqlens;
  const std::span<const int64_t> chosen = options.cache_sequences;
  const size_t sequences = starts.empty() ? static_cast<size_t>(batch.sequences) : starts.size() - 1;
  int64_t longest = 0;
  for (size_t n = 0; n < sequences; ++n) {
    const int64_t sequence = n < chosen.size() ? chosen[n] : static_cast<int64_t>(n);
    const bool known = options.cache && sequence >= 0 && sequence < options.cache->sequences();
    const int64_t count = starts.empty() ? batch.length : starts[n + 1] - starts[n];
    longest = std::max(longest, (known ? options.cache->length(sequence) : 0) + count);
  }
  return longest;
}

void check_packed(Checker& checker, const Config& config, const Batch& batch, const ForwardOptions& options) {
  const std::vector<int64_t>& starts = batch.cu_seqlens;
  const bool rising = std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) == starts.end();
  checker.require(static_cast<int64_t>(starts.size()) == batch.sequences + 1 && starts.front() == 0 &&
                      starts.back() == batch.length && rising,
                  [&] {
                    return "starts must be " + text(batch.sequences + 1) + " numbers that rise from 0 to the " +
                           text(batch.length) + " tokens";
                  });
  checker.require(batch.lengths.empty(), "packed sequences cannot be combined with lengths");
  checker.require(!options.cache || !options.recorder,
                  "packed sequences with a cache cannot be combined with a recorder");
  checker.require(config.encoder_layers == 0 && !is_selfhead(config), "this model does not support packed sequences");
}

/// The embeddings that are read in place of tokens, of the batch or of its source.
void check_rows(Checker& checker, const Config& config, const Batch& batch, bool remembered) {
  if (!config.takes_embeddings) {
    checker.require(!batch.inputs_embeds, "inputs_embeds are given, but the model reads tokens");
    return;
  }
  const bool of_source = config.encoder_layers > 0;
  if (!batch.inputs_embeds && of_source && remembered) return;
  const std::vector<int64_t> wanted = {batch.sequences, of_source ? batch.source_length : batch.length,
                                       config.embed_dim};
  checker.require(batch.inputs_embeds && batch.inputs_embeds.shape() == wanted &&
                      is_floating(batch.inputs_embeds.dtype()) && wanted[1] >= 1,
                  [&] {
                    return "inputs_embeds are " + (batch.inputs_embeds ? batch.inputs_embeds.describe() : "not given") +
                           ", must be " + to_string(wanted.data(), 3) + " of a floating type";
                  });
  checker.require(batch.source.empty() && (of_source || (batch.tokens.empty() && batch.cu_seqlens.empty())),
                  "the model reads inputs_embeds in place of tokens, but tokens are given too");
}

void check_source(Checker& checker, const Config& config, const Batch& batch, bool remembered) {
  if (config.encoder_layers == 0) {
    checker.require(batch.source.empty(), "a source is given, but the model has no encoder");
    return;
  }
  const int64_t B = batch.sequences, L = batch.source_length;
  if (!has_source(config, batch) && remembered) return;
  checker.require(config.takes_embeddings || (L >= 1 && has_size(batch.source.size(), B, L)), [&] {
    return text(static_cast<int64_t>(batch.source.size())) + " tokens are given as the source of " + text(B) +
           " sequences of " + text(L) + " tokens, both at least 1";
  });
  require_range(checker, "source", batch.source, 0,
                config.source_vocab_size ? config.source_vocab_size : config.vocab_size, 0);
  if (batch.source_lengths.empty()) return;
  checker.require(static_cast<int64_t>(batch.source_lengths.size()) == B, [&] {
    return text(static_cast<int64_t>(batch.source_lengths.size())) + " source_lengths are given for " + text(B) +
           " sequences";
  });
  require_range(checker, "source_lengths", batch.source_lengths, 1, L + 1, L);
}

void check_tokens(Checker& checker, const Config& config, const Batch& batch) {
  require_range(checker, "tokens", batch.tokens, 0, config.vocab_size, 0);
  if (!batch.token_type_ids.empty()) {
    checker.require(batch.token_type_ids.size() == batch.tokens.size(),
                    "token_type_ids must be given for all tokens or for none");
    require_range(checker, "token_type_ids", batch.token_type_ids, 0, config.type_vocab_size,
                  config.type_vocab_size ? 0 : -1);
  }
}

void check_lengths(Checker& checker, const Batch& batch, bool whole) {
  if (batch.lengths.empty()) return;
  checker.require(static_cast<int64_t>(batch.lengths.size()) == batch.sequences, [&] {
    return std::to_string(batch.lengths.size()) + " lengths are given for " + text(batch.sequences) + " sequences";
  });
  if (whole) require_range(checker, "lengths", batch.lengths, 1, batch.length + 1, batch.length);
}

/// `sequences` is -1 where the batch has another fault.
void check_recorder(Checker& checker, const Config& config, const ForwardOptions& options, int64_t sequences) {
  if (!options.recorder) return;
  const RecorderOptions& wanted = options.recorder->options();
  checker.require(!options.recompute, "a recorder cannot be combined with recompute, which computes each block twice");
  checker.require(wanted.kind == AttentionKind::self || config.encoder_layers > 0,
                  "the recorder is for a kind of attention that only models with an encoder have");
  checker.require(sequences < 0 || wanted.sequence < sequences, [&] {
    return "the recorder is for sequence " + text(wanted.sequence) + ", must be for one from 0 to " +
           text(sequences - 1);
  });
  const int64_t layers = wanted.kind == AttentionKind::encoder ? config.encoder_layers : config.layers;
  for (const int64_t layer : wanted.selection.layers) {
    const bool exists = checker.require(layer < layers, [&] {
      return "the recorder is for layer " + text(layer) + ", must be for one from 0 to " + text(layers - 1);
    });
    if (exists && wanted.kind == AttentionKind::self)
      checker.require(has_attention(config, layer),
                      [&] { return "the recorder is for layer " + text(layer) + ", which has no attention"; });
  }
}

/// Which of the cache's sequences the batch continues.
void check_sequences(Checker& checker, const Batch& batch, const ForwardOptions& options) {
  const ModelCache& cache = *options.cache;
  const std::span<const int64_t> chosen = options.cache_sequences;
  if (batch.cu_seqlens.empty()) {
    checker.require(chosen.empty(), "cache_sequences are for packed sequences");
    for (int64_t n = 1; n < cache.sequences(); ++n)
      if (!checker.require(cache.length(n) == cache.length(), [&] {
            return "sequence " + text(n) + " of the cache has " + text(cache.length(n)) + " tokens and the first " +
                   text(cache.length()) + ", must be equal unless the batch is packed";
          }))
        return;
  }
  if (chosen.empty()) return;
  checker.require(std::ssize(chosen) == batch.sequences, [&] {
    return text(std::ssize(chosen)) + " cache_sequences are given for " + text(batch.sequences) + " sequences";
  });
  require_range(checker, "cache_sequences", chosen, 0, cache.sequences(), 0);
  std::vector<int64_t> sorted(chosen.begin(), chosen.end());
  std::sort(sorted.begin(), sorted.end());
  checker.require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
                  "cache_sequences name a sequence twice");
}

void check_sequence_ranks(Checker& checker, const Config& config) {
  bool attends = true;
  for (int64_t n = 0; n < config.layers; ++n) attends = attends && has_attention(config, n);
  checker.require(attends && config.encoder_layers == 0 && !config.takes_embeddings && !config.classes &&
                      config.positions != PositionEncoding::relative &&
                      config.positions != PositionEncoding::learned_relative,
                  "ranks share the sequences of models that predict tokens with attention alone, without an encoder "
                  "and relative positions");
}

/// What a sequence that ranks share cannot have.
void check_shared(Checker& checker, const Config& config, const Batch& batch, const ForwardOptions& options) {
  check_sequence_ranks(checker, config);
  checker.require(batch.lengths.empty() && batch.cu_seqlens.empty(),
                  "ranks share sequences without padding, which are not packed");
  checker.require(!options.cache && !options.recorder && !options.traces && !options.last_only,
                  "ranks share sequences without a cache, a recorder, traces and last_only");
  const int64_t tokens = options.sequence->placement().tokens(), own = options.sequence->tokens();
  checker.require(batch.length == own, [&] {
    return "a sequence has " + text(batch.length) + " tokens, and this rank " + text(own) + " of them";
  });
  checker.require(!learns_positions(config) || tokens <= config.context, [&] {
    return "a sequence has " + text(tokens) + " tokens, must have at most the context of " + text(config.context);
  });
}

}  // namespace

void check_sequence_ranks(const Config& config, int ranks) {
  Checker checker("model");
  if (ranks > 1) check_sequence_ranks(checker, config);
  checker.done();
}

void check_streaming(Checker& checker, const Config& config, const Streaming& streaming) {
  if (!attn::check_streaming(checker, streaming)) return;
  checker.require(!learns_positions(config) || streaming.kept() <= config.context, [&] {
    return "sink tokens and window are " + text(streaming.kept()) + " tokens, must be at most the context of " +
           text(config.context) + ", whose positions are learned";
  });
}

nn::Parameters& Model::owned() const {
  if (!parameters_) throw Error("model", {"the model has been moved from"});
  return *parameters_;
}

void Model::check_cache(Checker& checker, const Tape& tape, const Batch& batch, const ForwardOptions& options,
                        bool whole) const {
  const ModelCache& cache = *options.cache;
  const auto layers = static_cast<int64_t>(cache.attention_.size());
  const int64_t own_layers = attention_place(config_, AttentionKind::self, config_.layers);
  const bool all = options.cache_sequences.empty();
  const bool fits =
      checker.require(layers == own_layers && (!whole || !all || cache.sequences() == batch.sequences), [&] {
        return "the cache is of " + text(layers) + " layers with attention and " + text(cache.sequences()) +
               " sequences, must be of " + text(own_layers) + " and " + text(batch.sequences) +
               ": new_cache() makes one";
      });
  for (int64_t n = 0; layers == own_layers && n < layers; ++n) {
    const KVCacheConfig &its = cache.attention_[static_cast<size_t>(n)].config(), own = cache_config(n);
    if (!checker.require(its.kv_heads == own.kv_heads && its.head_dim == own.head_dim &&
                             its.value_dim == own.value_dim && its.dtype == own.dtype,
                         [&] {
                           return "the cache has " + text(its.kv_heads) + " heads of width " + text(its.head_dim) +
                                  " in " + std::string(name_of(its.dtype)) + ", must have " + text(own.kv_heads) +
                                  " of width " + text(own.head_dim) + " in " + std::string(name_of(own.dtype));
                         }))
      break;
  }
  if (whole && fits) check_sequences(checker, batch, options);
  checker.require(batch.cu_seqlens.empty() || !cache.has_states(),
                  "packed sequences with a cache need attention in all layers");
  checker.require(!tape.recording(), "a cache is for inference, but the tape records");
  bool has_linear = false;
  for (int64_t n = 0; n < config_.layers; ++n) has_linear = has_linear || mixer_of(config_, n) == 'l';
  checker.require(!tape.options().batch_invariant || !has_linear,
                  "batch_invariant is not supported with a cache and linear attention: a token alone is computed in "
                  "another order than in a chunk");
  checker.require(batch.lengths.empty(), "lengths do not apply to a call that continues a cache");
  const bool records_self = options.recorder && options.recorder->options().kind == AttentionKind::self;
  checker.require(cache.streaming().window == 0 || (!options.traces && !records_self),
                  "traces and a recorder of self-attention need a cache that keeps all tokens, not a streaming one");
  checker.require(
      !cache.ranks() || (batch.cu_seqlens.empty() && !options.recorder && !options.traces && !options.gates),
      "a cache that ranks share is of one text, without a recorder, traces and gates");
  checker.require(!cache.ranks() || cache.length() > 0 || options.last_only,
                  "the first call of a cache that ranks share must be last_only");
  checker.require(cache.storage() == KVStorage::exact || (!options.traces && !records_self),
                  "traces and a recorder of self-attention need a cache whose storage is exact, not int8");
}

void Model::check_call(const Tape& tape, const Batch& batch, const ForwardOptions& options, bool with_targets) const {
  owned();
  Checker checker("model");
  const int64_t B = batch.sequences, L = batch.length;
  const bool packed = !batch.cu_seqlens.empty();
  const bool has_all = !has_tokens(config_) || has_size(batch.tokens.size(), packed ? 1 : B, L);
  const bool whole = checker.require(B >= 1 && L >= 1 && has_all, [&] {
    return text(static_cast<int64_t>(batch.tokens.size())) + " tokens are given for " + text(B) + " sequences of " +
           text(L) + (packed ? " tokens in all" : " tokens") + ", both at least 1";
  });
  check_tokens(checker, config_, batch);
  if (packed && whole) check_packed(checker, config_, batch, options);
  const bool remembered = options.cache && !options.cache->memories_.empty();
  check_rows(checker, config_, batch, remembered);
  check_source(checker, config_, batch, remembered);
  check_lengths(checker, batch, whole);
  if (options.cache) check_cache(checker, tape, batch, options, whole);
  else checker.require(options.cache_sequences.empty(), "cache_sequences are given without a cache");
  if (whole && positions_.weight) {
    const auto require_within = [&](int64_t length, int64_t context) {
      checker.require(length <= context, [&] {
        return "a sequence has " + text(length) + " tokens, must have at most the context of " + text(context);
      });
    };
    const int64_t length = longest_of(batch, options);
    const Streaming streaming = options.cache ? options.cache->streaming() : Streaming();
    require_within(streaming.position(length - 1) + 1, config_.context);
    if (has_source(config_, batch))
      require_within(batch.source_length, config_.source_context ? config_.source_context : config_.context);
  }
  checker.require(config_.encoder_layers > 0 || (!options.cross_traces && !options.encoder_traces),
                  "cross_traces and encoder_traces are for models with an encoder");
  check_recorder(checker, config_, options, whole ? B : -1);
  if (options.gates)
    checker.require(static_cast<int64_t>(options.gates->size()) == attention_count(config_), [&] {
      return "gates are given for " + text(static_cast<int64_t>(options.gates->size())) +
             " attention layers, must be " + text(attention_count(config_)) + ": those of attention_layers()";
    });
  if (options.sequence) check_shared(checker, config_, batch, options);
  if (owned().tensor_ranks())
    checker.require(
        !options.recorder && !options.traces && !options.cross_traces && !options.encoder_traces && !options.gates,
        "ranks that share the layers have no recorder, traces or gates");
  checker.require(!with_targets || config_.head, "a model without a head has no loss");
  if (with_targets) check_targets(checker, config_, batch, options.last_only);
  checker.done();
}

}  // namespace attn::models
