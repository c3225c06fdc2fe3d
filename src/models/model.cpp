// The one forward: embeddings, perhaps an encoder, blocks, norm, head; and the cache that it continues.
#include <algorithm>
#include <numeric>

#include "attn/autograd_operations.h"
#include "attn/models_ranks.h"
#include "core/checker.h"
#include "models/shape.h"

namespace attn::models {

Value Model::block(Tape& tape, const Layers& layers, size_t layer, const Value& x,
                   const nn::AttentionInputs& inputs) const {
  const Tape::NameScope scope(tape, (&layers == &encoder_ ? "encoder " : "block ") + std::to_string(layer));
  return std::visit([&](const auto& mixer) { return mixer(tape, x, inputs); }, layers[layer]);
}

namespace {

/// The gates of a layer; empty where there are none.
Value gates_of(const ForwardOptions& options, const Config& config, AttentionKind kind, size_t layer) {
  if (!options.gates) return {};
  return (*options.gates)[static_cast<size_t>(attention_place(config, kind, static_cast<int64_t>(layer)))];
}

/// Where each token is in its sequence, whose first is at first[n], or at 0 where `first` is empty.
std::vector<int64_t> places_of(std::span<const int64_t> cu_seqlens, int64_t B, int64_t L,
                               std::span<const int64_t> first) {
  std::vector<int64_t> places(static_cast<size_t>(B * L));
  const auto sequences = cu_seqlens.empty() ? B : std::ssize(cu_seqlens) - 1;
  for (int64_t n = 0; n < sequences; ++n) {
    const int64_t begin = cu_seqlens.empty() ? n * L : cu_seqlens[n],
                  end = cu_seqlens.empty() ? begin + L : cu_seqlens[n + 1];
    std::iota(places.begin() + begin, places.begin() + end, first.empty() ? 0 : first[n]);
  }
  return places;
}

/// Rows `first` .. `last` of sequence b of a view [B, H, L, ..].
template <int Rank>
ConstView<Rank> rows_of(const ConstView<Rank>& x, int64_t b, int64_t first, int64_t last) {
  ConstView<Rank> part = x;
  part.data = static_cast<const char*>(x.data) + (b * x.stride[0] + first * x.stride[2]) * size_of(x.dtype);
  part.size[0] = 1;
  part.size[2] = last - first;
  return part;
}

/// Hands the attention of one layer to a recorder that wants it.
class LayerRecording {
 public:
  /// `exists` is false for a layer without attention of this kind, which has nothing to record.
  LayerRecording(Recorder* recorder, AttentionKind kind, size_t layer, bool exists = true)
      : recorder_(recorder), kind_(kind), layer_(static_cast<int64_t>(layer)), exists_(exists) {
    wanted_ = exists && recorder && recorder->wants(kind, layer_);
  }

  /// The trace that the layer fills: the caller's, or one of this object if the caller wants none; null if nobody does.
  nn::AttentionTrace* trace(nn::AttentionTrace* callers) {
    trace_ = !exists_ ? nullptr : callers ? callers : wanted_ ? &own_ : nullptr;
    return trace_;
  }

  /// Records the recorder's sequence of the batch, without padding. `first` is the number of tokens before the batch.
  void finish(const Batch& batch, std::span<const int64_t> encoder_lengths, int64_t first) const {
    if (!wanted_) return;
    const bool encoder = kind_ == AttentionKind::encoder, packed = !encoder && !batch.cu_seqlens.empty();
    const auto at = static_cast<size_t>(recorder_->options().sequence);
    const std::vector<int64_t>& lengths = encoder ? batch.source_lengths : batch.lengths;
    const int64_t b = packed ? 0 : static_cast<int64_t>(at), begin = packed ? batch.cu_seqlens[at] : 0;
    RecordedAttention call = trace_->recorded("layer " + std::to_string(layer_));
    const int64_t whole = call.q.size[2];
    const int64_t end = packed ? batch.cu_seqlens[at + 1] : lengths.empty() ? whole : lengths[at];
    call.q = rows_of<4>(call.q, b, begin, end);
    call.lse = rows_of<3>(call.lse, b, begin, end);
    const int64_t keys = encoder_lengths.empty() ? call.k.size[2] : encoder_lengths[at];
    const bool cross = kind_ == AttentionKind::cross;
    call.k = rows_of<4>(call.k, b, cross ? 0 : begin, cross ? keys : end);
    call.options.key_length = call.options.cu_seqlens_q = call.options.cu_seqlens_k = {};
    ConstView<4>& bias = call.options.bias;
    if (bias && bias.size[2] == whole) {  // a function of the distance: the first rows are right for any sequence
      bias.size[2] = end - begin;
      bias.size[3] -= whole - (end - begin);
    }
    recorder_->record(layer_, first, call);
  }

 private:
  Recorder* recorder_;
  AttentionKind kind_;
  int64_t layer_;
  bool exists_, wanted_ = false;
  nn::AttentionTrace own_ = {};
  nn::AttentionTrace* trace_ = nullptr;
};

}  // namespace

namespace {

/// Of sequence b, on all ranks together.
int64_t new_tokens(const Batch& batch, const ForwardOptions& options, size_t b) {
  if (options.sequence) return options.sequence->placement().tokens();
  return batch.cu_seqlens.empty() ? batch.length : batch.cu_seqlens[b + 1] - batch.cu_seqlens[b];
}

/// What a layer's attention continues. Of a cache that ranks share, one after the other keeps the next tokens.
nn::CacheSlot slot_of(const ModelCache& cache, KVCache& layer, std::span<const int64_t> ids) {
  if (!cache.ranks()) return {.cache = &layer, .sequences = ids};
  constexpr int64_t kTurn = 256;  // tokens
  cluster::Communicator& ranks = *cache.ranks();
  return {.cache = &layer,
          .sequences = ids,
          .ranks = &ranks,
          .first = cache.length(),
          .keeps = cache.length() / kTurn % ranks.size() == ranks.rank()};
}

}  // namespace

/// The embeddings [B, L, C] of the batch's tokens, or of the encoder's; sequence n begins at first[n], or at 0 where
/// `first` is empty.
Value Model::embed(Tape& tape, const Batch& batch, std::span<const int64_t> first, const Streaming& streaming,
                   bool encoder, const autograd::SharedSequence* sequence) const {
  const int64_t B = batch.cu_seqlens.empty() ? batch.sequences : 1, L = encoder ? batch.source_length : batch.length;
  const Tape::NameScope scope(tape, encoder ? "encoder embedding" : "embedding");
  const nn::Embedding& tokens = encoder && encoder_tokens_.weight ? encoder_tokens_ : tokens_;
  Value x;
  if (config_.takes_embeddings && (encoder || encoder_.empty())) {
    const Array given = tape.array(parameters_->dtype(), batch.inputs_embeds.shape());
    ops::convert(batch.inputs_embeds.flat(), given.flat());
    x = Value(given);
  } else {
    x = tokens(tape, encoder ? batch.source : batch.tokens, {B, L});
  }
  const nn::Embedding& learned = encoder ? encoder_positions_ : positions_;
  std::vector<int64_t> places = places_of(encoder ? std::vector<int64_t>() : batch.cu_seqlens, B, L, first);
  for (int64_t& place : places) place = sequence ? sequence->positions()[place] : streaming.position(place);
  if (learned.weight) {
    for (int64_t& place : places) place += config_.position_offset;
    x = add(tape, x, learned(tape, std::move(places), {B, L}));
  } else if (config_.positions == PositionEncoding::sinusoidal) {
    const auto [least, most] = std::minmax_element(places.begin(), places.end());
    const int64_t begin = *least, count = *most + 1 - begin;
    for (int64_t& place : places) place -= begin;
    const Value table(nn::sinusoids(count, x.shape()[2], x.dtype(), begin));
    x = add(tape, x, embedding(tape, places, table, {B, L}));
  }
  if (types_.weight) {
    const bool given = !encoder && !batch.token_type_ids.empty();
    x = add(tape, x,
            types_(tape, given ? batch.token_type_ids : std::vector<int64_t>(static_cast<size_t>(B * L), 0), {B, L}));
  }
  const nn::Norm& norm = encoder ? encoder_embedding_norm_ : embedding_norm_;
  if (norm.weight) x = norm(tape, x);
  x = dropout(tape, x, config_.dropout);
  return embedding_projection_.weight ? embedding_projection_(tape, x) : x;
}

/// What the encoder makes of the batch's source, [B, Ls, C].
Value Model::encode(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  Value x = embed(tape, batch, {}, {}, true);
  if (options.encoder_traces) options.encoder_traces->assign(encoder_.size(), {});
  for (size_t n = 0; n < encoder_.size(); ++n) {
    nn::AttentionInputs inputs;
    inputs.key_length = batch.source_lengths;
    inputs.gates = gates_of(options, config_, AttentionKind::encoder, n);
    LayerRecording recording(options.recorder, AttentionKind::encoder, n);
    inputs.trace = recording.trace(options.encoder_traces ? &(*options.encoder_traces)[n] : nullptr);
    const auto run = [this, n, inputs](Tape& inner, const Value& in) { return block(inner, encoder_, n, in, inputs); };
    x = options.recompute ? recompute(tape, x, run) : run(tape, x);
    recording.finish(batch, {}, 0);
  }
  return encoder_norm_.weight ? encoder_norm_(tape, x) : x;
}

Value Model::hidden(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  check_call(tape, batch, options, false);
  return rows(tape, batch, options);
}

/// hidden(), of what has been checked.
Value Model::rows(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  ModelCache* const cache = options.cache;
  const auto memory = std::make_shared<Value>();  // shared with blocks that are computed again
  if (has_source(config_, batch)) {
    *memory = encode(tape, batch, options);
    if (cache) {
      cache->memory_lengths_ = batch.source_lengths;
      cache->sources_.resize(static_cast<size_t>(batch.sequences));
      std::iota(cache->sources_.begin(), cache->sources_.end(), 0);
      cache->memories_.clear();
      for (const auto& layer : layers_)
        cache->memories_.push_back(std::get<nn::Block>(layer).cross.key_value(tape, *memory));
    }
  }
  std::vector<int64_t> sequences, ids, lengths;  // of the cache that the batch continues
  for (int64_t b = 0; cache && b < batch.sequences; ++b) {
    sequences.push_back(options.cache_sequences.empty() ? b : options.cache_sequences[static_cast<size_t>(b)]);
    if (!cache->ids_.empty()) ids.push_back(cache->ids_[static_cast<size_t>(sequences.back())]);
    lengths.push_back(cache->length(sequences.back()));
  }
  const int64_t first = cache ? lengths[0] : 0;  // of what a recorder sees, whose batch is not packed
  if (cache && cache->states_.empty()) cache->states_ = new_states(batch.sequences);
  Value x = embed(tape, batch, lengths, cache ? cache->streaming() : Streaming(), false, options.sequence);
  for (auto* traces : {options.traces, options.cross_traces})
    if (traces) traces->assign(layers_.size(), {});
  size_t attention = 0;
  for (size_t n = 0; n < layers_.size(); ++n) {
    nn::AttentionInputs inputs;
    inputs.key_length = batch.lengths;
    inputs.cu_seqlens = batch.cu_seqlens;
    inputs.encoder_length = cache ? cache->memory_lengths_ : batch.source_lengths;
    inputs.sequence = options.sequence;
    if (*memory) inputs.encoder_states = memory.get();
    const bool attends = has_attention(config_, static_cast<int64_t>(n));
    if (cache && attends) inputs.cache = slot_of(*cache, cache->attention_[attention++], ids);
    if (cache && !attends) inputs.state = &cache->states_[n];
    if (cache && !encoder_.empty()) inputs.key_value = &cache->memories_[n];
    if (attends) inputs.gates = gates_of(options, config_, AttentionKind::self, n);
    if (!encoder_.empty()) inputs.cross_gates = gates_of(options, config_, AttentionKind::cross, n);
    LayerRecording self(options.recorder, AttentionKind::self, n, attends),
        cross(options.recorder, AttentionKind::cross, n);
    inputs.trace = self.trace(options.traces ? &(*options.traces)[n] : nullptr);
    inputs.cross_trace = cross.trace(options.cross_traces ? &(*options.cross_traces)[n] : nullptr);
    const auto run = [this, n, inputs, memory](Tape& inner, const Value& in) {
      return block(inner, layers_, n, in, inputs);
    };
    x = options.recompute ? recompute(tape, x, run) : run(tape, x);
    self.finish(batch, {}, first);
    cross.finish(batch, inputs.encoder_length, first);
  }
  for (size_t b = 0; b < sequences.size(); ++b)
    cache->lengths_[static_cast<size_t>(sequences[b])] += new_tokens(batch, options, b);
  return norm_.weight ? norm_(tape, x) : x;
}

/// The hidden states that a classifier or a pooler reads, [B, C].
Value Model::pooled(Tape& tape, const Value& x, const Batch& batch) const {
  const int64_t B = batch.sequences;
  std::vector<int64_t> first, lengths;
  for (int64_t b = 0; b < B; ++b) {
    const auto n = static_cast<size_t>(b);
    first.push_back(batch.cu_seqlens.empty() ? b * batch.length : batch.cu_seqlens[n]);
    lengths.push_back(!batch.cu_seqlens.empty() ? batch.cu_seqlens[n + 1] - first.back()
                      : batch.lengths.empty()   ? batch.length
                                                : batch.lengths[n]);
  }
  if (config_.pooling == ClassifierPooling::mean && !config_.pooler) return mean_pool(tape, x, lengths, first);
  for (int64_t b = 0; b < B && config_.pooling == ClassifierPooling::last; ++b)
    first[static_cast<size_t>(b)] += lengths[static_cast<size_t>(b)] - 1;
  return select_rows(tape, x, std::move(first), {B});
}

/// The ranks that share the vocabulary; null where this process has all logits.
cluster::Communicator* Model::vocabulary_ranks() const {
  return config_.head && config_.classes == 0 ? owned().tensor_ranks() : nullptr;
}

/// All of them, or those of this rank.
Value Model::logits(Tape& tape, Value x, bool whole) const {
  const Tape::NameScope scope(tape, "head");
  if (head_dense_.weight) x = activate(tape, config_.head_activation, head_dense_(tape, x));
  if (head_norm_.weight) x = head_norm_(tape, x);
  const DType type = parameters_->dtype() == DType::float64 ? DType::float64 : DType::float32;
  cluster::Communicator* const ranks = vocabulary_ranks();
  if (ranks) x = shared_input(tape, x, *ranks);
  x = linear(tape, scale(tape, x, config_.logit_scale), head_.weight ? head_.weight : tokens_.weight, head_.bias, type);
  if (const double cap = config_.logit_softcap; cap > 0)
    x = scale(tape, activate(tape, Activation::tanh, scale(tape, x, 1 / cap)), cap);
  return ranks && whole ? gather_columns(tape, x, *ranks) : x;
}

Value Model::pooler(Tape& tape, const Value& first) const {
  if (!pooler_.weight) throw Error("model", {"the model has no pooler"});
  return activate(tape, Activation::tanh, pooler_(tape, first));
}

Value Model::forward(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  return score(tape, batch, options, true);
}

namespace {

/// True where the ranks that share an empty cache divide a text: of fewer tokens each computes all.
bool divides(const ModelCache& cache, const Batch& batch) {
  constexpr int64_t kLeast = 16;  // tokens of a rank
  return cache.ranks() && cache.length() == 0 && batch.length >= kLeast * cache.ranks()->size();
}

}  // namespace

/// The last hidden state [1, 1, C] of a text that ranks divide, on all of them.
Value Model::last_of_divided(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  cluster::Communicator& ranks = *options.cache->ranks();
  const autograd::SharedSequence sequence(ranks, placement_for(config_, batch.length, ranks.size()));
  ForwardOptions of_rank = options;
  of_rank.sequence = &sequence;
  const Value x = rows(tape, shard_of(batch, sequence), of_rank);
  const DType wide = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Array last(wide, {1, 1, x.shape()[2]}), narrow = tape.array(x.dtype(), last.shape());
  if (sequence.positions().back() == batch.length - 1)
    ops::convert(x.data().rows().slice(0, sequence.tokens() - 1, sequence.tokens()), last.rows());
  cluster::all_reduce(ranks, last.flat());  // of one term that is not zero
  ops::convert(last.flat(), narrow.flat());
  return Value(narrow);
}

/// forward(), with all logits or those of this rank.
Value Model::score(Tape& tape, const Batch& batch, const ForwardOptions& options, bool whole) const {
  check_call(tape, batch, options, false);
  const int64_t B = batch.sequences, L = batch.length;
  if (options.cache && divides(*options.cache, batch))
    return logits(tape, last_of_divided(tape, batch, options), whole);
  Value x = rows(tape, batch, options);
  if (config_.pooler) return pooler(tape, pooled(tape, x, batch));
  if (!config_.head) return x;
  if (classifies_texts(config_)) return logits(tape, pooled(tape, x, batch), whole);
  if (options.last_only) {
    const bool packed = !batch.cu_seqlens.empty();
    std::vector<int64_t> last;
    for (int64_t b = 0; b < B; ++b) {
      const auto n = static_cast<size_t>(b);
      last.push_back((packed ? batch.cu_seqlens[n + 1] : b * L + (batch.lengths.empty() ? L : batch.lengths[n])) - 1);
    }
    x = select_rows(tape, x, std::move(last), packed ? std::vector<int64_t>{1, B} : std::vector<int64_t>{B, 1});
  }
  return logits(tape, x, whole);
}

namespace {

/// Which rows have a target.
std::vector<int64_t> rows_with_targets(const std::vector<int64_t>& targets) {
  std::vector<int64_t> rows;
  for (int64_t n = 0; n < std::ssize(targets); ++n)
    if (targets[static_cast<size_t>(n)] != ops::kIgnoreIndex) rows.push_back(n);
  return rows;
}

template <class T>
std::vector<T> picked(const std::vector<T>& from, std::span<const int64_t> which) {
  std::vector<T> some;
  for (size_t n = 0; n < which.size() && !from.empty(); ++n) some.push_back(from[static_cast<size_t>(which[n])]);
  return some;
}

}  // namespace

TargetLogits Model::target_logits(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  return logits_of_targets(tape, batch, options, true);
}

TargetLogits Model::logits_of_targets(Tape& tape, const Batch& batch, const ForwardOptions& options, bool whole) const {
  check_call(tape, batch, options, true);
  const bool of_rows = !classifies_texts(config_) && !options.last_only;
  const std::vector<int64_t> counted = rows_with_targets(batch.targets);
  if (!of_rows || counted.empty() || counted.size() == batch.targets.size())
    return {score(tape, batch, options, whole), batch.targets, batch.target_weights};
  const Value x = select_rows(tape, rows(tape, batch, options), counted, {1, std::ssize(counted)});
  return {logits(tape, x, whole), picked(batch.targets, counted), picked(batch.target_weights, counted)};
}

namespace {

/// The weight of this rank's targets among those of all ranks.
double share_of_targets(const TargetLogits& found, cluster::Communicator& ranks) {
  double own = 0, all = 0;
  for (size_t n = 0; n < found.targets.size(); ++n)
    if (found.targets[n] != ops::kIgnoreIndex) own += found.weights.empty() ? 1 : found.weights[n];
  std::vector<double> of_ranks(ranks.size());
  cluster::synchronize(ranks, "targets");
  ranks.all_gather(&own, sizeof own, of_ranks.data());
  for (const double weight : of_ranks) all += weight;
  return all > 0 ? own / all : 0;
}

}  // namespace

Value Model::loss(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  if (batch.values.empty()) {
    TargetLogits found = logits_of_targets(tape, batch, options, false);
    const double share = options.sequence ? share_of_targets(found, options.sequence->ranks()) : 1;
    cluster::Communicator* const ranks = vocabulary_ranks();
    const Value mean = ranks ? cross_entropy_over_ranks(tape, found.logits, found.targets, found.weights,
                                                        nn::share_of(config_.vocab_size, *ranks).begin, *ranks)
                             : cross_entropy(tape, found.logits, std::move(found.targets), std::move(found.weights));
    return scale(tape, mean, share);
  }
  check_call(tape, batch, options, true);
  const Value y = forward(tape, batch, options);
  const Array wanted = tape.array(y.dtype(), y.shape());
  ops::convert(Array(batch.values, y.shape()).flat(), wanted.flat());
  return mean_squared_error(tape, y, Value(wanted));
}

KVCacheConfig Model::cache_config(int64_t place) const {
  const LayerShape heads = attention_shape(config_, place);
  KVCacheConfig shape;
  shape.kv_heads = heads.kv_heads;
  if (const cluster::Communicator* ranks = owned().tensor_ranks())
    shape.kv_heads = nn::share_of_heads(heads.heads, heads.kv_heads, ranks->rank(), ranks->size()).kv_heads.count();
  shape.head_dim = heads.key_width;
  shape.value_dim = heads.value_width;
  shape.dtype = owned().dtype();
  return shape;
}

std::vector<nn::MixerState> Model::new_states(int64_t sequences) const {
  std::vector<nn::MixerState> states;
  for (const auto& layer : layers_) {
    const nn::Block* block = std::get_if<nn::Block>(&layer);
    states.push_back(block && block->mixer ? block->mixer->new_state(sequences) : nn::MixerState());
  }
  return states;
}

ModelCache Model::new_cache(int64_t sequences, const Streaming& streaming, KVStorage storage) const {
  owned();
  Checker checker("model");
  checker.require(config_.causal, "only a causal model can continue a text");
  checker.require(sequences > 0,
                  [&] { return "the number of sequences is " + std::to_string(sequences) + ", must be at least 1"; });
  check_streaming(checker, config_, streaming);
  const int64_t count = config_.causal ? attention_place(config_, AttentionKind::self, config_.layers) : 0;
  checker.require(storage == KVStorage::exact || count > 0 || !config_.causal,
                  "no layer of the model has keys and values that a KV cache in 8 bits could round");
  checker.done();
  ModelCache cache;
  cache.states_ = new_states(sequences);
  for (int64_t n = 0; n < count; ++n) {
    KVCacheConfig shape = cache_config(n);
    shape.streaming = streaming;
    shape.storage = storage;
    cache.attention_.emplace_back(shape);
  }
  for (int64_t b = 0; b < sequences; ++b) {
    for (KVCache& layer : cache.attention_) layer.add();
    if (count > 0) cache.ids_.push_back(b);
  }
  cache.lengths_.assign(static_cast<size_t>(sequences), 0);
  return cache;
}

ModelCache Model::new_shared_cache(cluster::Communicator& ranks, KVStorage storage) const {
  owned();
  Checker checker("model");
  bool attends = !is_selfhead(config_) && config_.causal && config_.encoder_layers == 0;
  for (int64_t n = 0; n < config_.layers; ++n)
    attends = attends && has_attention(config_, n) && window_of(config_, n) == 0;
  const PositionEncoding positions = config_.positions;
  checker.require(attends && positions != PositionEncoding::alibi && positions != PositionEncoding::relative &&
                      positions != PositionEncoding::learned_relative,
                  "ranks share the tokens of a text that a causal model continues whose layers attend to all earlier "
                  "tokens, without windows, ALiBi and relative positions");
  checker.done();
  ModelCache cache = new_cache(1, {}, storage);
  if (ranks.size() > 1) cache.ranks_ = &ranks;
  return cache;
}

void Model::load(const io::Safetensors& file, const std::string& prefix) { owned().load(file, prefix); }

std::vector<io::NamedTensor> Model::tensors(const std::string& prefix) const { return owned().tensors(prefix); }

}  // namespace attn::models
