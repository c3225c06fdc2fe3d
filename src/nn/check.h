// What layers check. At construction: options, against the width. At a call: that the layer has been made, and what it
// is given. Reasons begin with `part`, as "attention: ", where a block checks the options of what it holds.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attn/nn.h"
#include "core/checker.h"

namespace attn::nn {

/// "[2, 7, 32]"
std::string shape_of(const Value& x);
std::string shape_of(const std::vector<int64_t>& shape);

/// A number of columns or rows: 1 .. 2^31.
void check_extent(Checker& checker, std::string_view part, const char* name, int64_t value);
/// An option of which 0 means a default: 0 .. 2^31.
void check_option(Checker& checker, std::string_view part, const char* name, int64_t value);
void check_dropout(Checker& checker, std::string_view part, double probability);
void check_buckets(Checker& checker, std::string_view part, bool bidirectional, int64_t buckets, int64_t max_distance);

void check_rope_scaling(Checker& checker, std::string_view part, const RopeScalingOptions& scaling, int64_t pairs);

void check_options(Checker& checker, std::string_view part, int64_t width, const NormOptions& options);
void check_options(Checker& checker, std::string_view part, int64_t width, const FeedForwardOptions& options);
void check_options(Checker& checker, std::string_view part, int64_t width, const SelfAttentionOptions& options);
void check_options(Checker& checker, std::string_view part, int64_t width, const MultiHeadAttentionOptions& options);

/// True if the layer has its parameters; `weight` is one of them.
bool check_made(Checker& checker, bool made);
inline bool check_made(Checker& checker, const Value& weight) { return check_made(checker, bool(weight)); }
/// `name` is [B, L, width], or with `any_rank` [.., width], of the type that the layer computes in.
bool check_rows(Checker& checker, const char* name, const Value& x, int64_t width, DType dtype, bool any_rank = false);
/// As many sequences as B, each there and each once.
void check_sequences(Checker& checker, const CacheSlot& slot, int64_t B);

/// W of a causal convolution: lowest .. 8.
void check_convolution_width(Checker& checker, const char* name, int64_t width, int64_t lowest);
/// An array of a MixerState.
struct StatePart {
  DType dtype;
  std::vector<int64_t> shape;
};
/// A state of these sizes, in inference, and no packed sequences.
void check_state(Checker& checker, const Tape& tape, const MixerInputs& inputs, const std::vector<StatePart>& wanted);
void check_state(Checker& checker, const Tape& tape, const MixerInputs& inputs, const MixerState& expected);

/// What an attention layer is, as far as its inputs have to fit.
struct AttentionShape {
  int64_t width = 0, encoder_dim = 0;  // 0: no encoder states
  bool needs_memory = false;
  int64_t heads = 1, kv_heads = 1, key_width = 0, value_width = 0;
  bool causal = false, relative = false, recording = false;
  DType dtype = DType::float32;
};
void check_inputs(Checker& checker, const AttentionShape& layer, const Value& x, const AttentionInputs& inputs);

}  // namespace attn::nn
