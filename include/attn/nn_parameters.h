// nn: the named parameters of a model. Layers (attn/nn.h) make them through a Scope; optimizers and files iterate over
// them.
//
// ```cpp
// #include <cstdio>
// #include "attn/nn_parameters.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::Scope head = nn::Scope(parameters) / "head";
//   head.variable("weight", {10, 64});
//   head.variable("bias", {10}, nn::ParameterRole::bias);
//   for (const nn::Parameter& parameter : parameters.all()) std::printf("%s\n", parameter.name.c_str());
// }
// ```
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/autograd_ranks.h"
#include "attn/io.h"

#pragma GCC visibility push(default)
namespace attn::nn {

using autograd::Value;

/// The role of a parameter decides its type, initialisation and weight decay. bias, scale and decay are float32 where
/// layers compute in 16 bits, and have no weight decay. The others have the type that layers compute in, and decay.
enum class ParameterRole {
  linear,       ///< a weight [out, in]
  embedding,    ///< rows that ids select
  residual,     ///< a weight [out, in] of a projection into the residual stream
  factor,       ///< a weight matrix that the layer multiplies by itself, not by linear(); initialised as linear
  convolution,  ///< W factors a channel, [C, W], initialised uniformly in +-1 / sqrt(W)
  recurrent,    ///< a matrix of an LSTM [4 H, H], initialised uniformly in +-1 / sqrt(H)
  adapter_in,   ///< A of LoRA [rank, in], initialised uniformly in +-1 / sqrt(in)
  adapter_out,  ///< B of LoRA [out, rank], initialised with zeros
  bias,         ///< initialised with zeros
  gates,        ///< the bias of an LSTM [4 H]: zeros, and ones for the forget gates (Jozefowicz et al. 2015)
  scale,        ///< of a norm, initialised with ones
  decay         ///< the logarithm of a rate of forgetting, initialised with that of 1/16 (arXiv:2312.06635)
};

/// Indices begin .. end - 1 of an axis.
struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

/// The part of a parameter that this rank has, where ranks share the layers of a model.
struct Slice {
  int axis = 0;
  std::vector<IndexRange> ranges = {};  ///< of that axis, one after the other; empty = all of the parameter
  /// Rows of the whole from this one on are on several ranks, each of which computes a part of their gradient.
  std::optional<int64_t> repeated_from = {};
  bool is_first = true;  ///< no rank before this one has them

  std::vector<int64_t> shape_of(std::vector<int64_t> whole) const;  ///< of the part
};
/// The part of the whole: a copy or, without ranges, the same memory.
Array slice_of(const Array& whole, const Slice& slice);
/// Copies a part to its place in the whole, of one type.
void put_slice(const Array& part, const Slice& slice, const Array& whole);
/// Which of n indices one of several ranks has: about as many as the others, and if there are many, a multiple of a
/// power of two up to 256.
IndexRange share_of(int64_t n, int rank, int ranks);
inline IndexRange share_of(int64_t n, const cluster::Communicator& ranks) {
  return share_of(n, ranks.rank(), ranks.size());
}

/// The heads of a layer that one of several ranks has: whole groups of query heads with their key/value head or, if
/// there are more ranks than these, some query heads of a group. Throws Error for more ranks than query heads.
struct HeadShare {
  IndexRange heads, kv_heads;
  bool repeated = false;  ///< other ranks have the same key/value head,
  bool is_first = true;   ///< but none before this one
};
HeadShare share_of_heads(int64_t heads, int64_t kv_heads, int rank, int ranks);

/// A parameter that a layer needs: its name in the model ("blocks.0.attention.qkv.weight"), role, type and shape.
struct Variable {
  std::string name = {};
  ParameterRole role = ParameterRole::linear;
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};  ///< of the whole
  Slice slice = {};                 ///< what this rank has of it
};

/// One named array of a model. Layers compute with `value`. The optimizer updates `master`: the same array or, where a
/// training computes in 16 bits, its float32 original.
struct Parameter {
  std::string name = {};
  Value value = {};
  Array master = {};
  bool decay = false;                     ///< weight decay applies
  bool is_linear = false;                 ///< a weight [out, in] of linear()
  std::vector<int64_t> whole_shape = {};  ///< of what ranks that share the layers have together,
  Slice slice = {};                       ///< and the part that this rank has
};

/// training: values want gradients, masters are float32 or float64, except where Options::trains freezes a parameter.
/// inference: only the arrays that layers compute with exist.
enum class Purpose { training, inference };

/// The distribution of new weights.
enum class Initialization {
  xavier,  ///< uniform in +-sqrt(6 / (in + out)) (Glorot & Bengio 2010)
  gpt2     ///< normal, deviation 0.02; projections into the residual stream 0.02 / sqrt(2 N)
};
constexpr auto enum_names(Initialization) { return std::to_array<std::string_view>({"xavier", "gpt2"}); }

/// The type of activations and products. With a 16-bit type, master weights and their gradients are float32. float64 is
/// for gradient checks. Training in float16 needs a scaled loss, see train::LossScaling.
enum class Precision { float32, bfloat16, float64, float16 };
constexpr auto enum_names(Precision) {
  return std::to_array<std::string_view>({"float32", "bfloat16", "float64", "float16"});
}

/// The content of a parameter: an array or, of a frozen weight [out, in] of linear() or embedding(), a packed matrix of
/// 8 or 4 bits.
struct ParameterData {
  ParameterData(Array array_) : array(std::move(array_)) {}
  ParameterData(ops::PackedMatrix packed_) : packed(std::move(packed_)) {}
  Array array = {};
  ops::PackedMatrix packed = {};
};

/// A callback that creates the content of each parameter, new or in existing memory such as a mapped file. `draw` fills
/// an array of the whole with random numbers of the initialisation. Of an array the callback may return the slice
/// alone; of a packed matrix it must.
using ParameterSource =
    std::function<ParameterData(const Variable& wanted, const std::function<void(const Array&)>& draw)>;
/// The default callback: random numbers for every parameter.
Array random_parameter(const Variable& wanted, const std::function<void(const Array&)>& draw);

/// LoRA (Hu et al. 2021, arXiv:2106.09685): a linear layer x W^T gains s x A^T B^T with A [rank, in] and B [out, rank],
/// whose parameters are NAME.lora.a and NAME.lora.b. A layer that computes several things at once, as `qkv`, has parts,
/// and a part that is named has an adapter of its own, NAME.lora.PART.a.
struct LoraOptions {
  int64_t rank = 0;  ///< 0 = no layer has an adapter
  double alpha = 16;
  bool rank_stabilized = false;  ///< s = alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank
  double dropout = 0;            ///< of the adapters' input in training, in [0, 1)
  /// The last names of the layers with adapters, or of their parts: query, key, value, gate, up. A layer with the name
  /// of a part, as the gated `up`, is meant as a whole by the names of its parts, gate_up.
  std::vector<std::string> targets = {"query", "value"};
  double scale() const;  ///< s
};

/// All parameters of a model, in order of creation.
class Parameters {
 public:
  struct Options {
    Initialization initialization = Initialization::gpt2;
    Precision precision = Precision::float32;
    uint64_t seed = 0;
    double residual_factor = 1;  ///< of projections into the residual stream; 1 / sqrt(2 N) in GPT-2
    Purpose purpose = Purpose::training;
    /// With Purpose::training: whether the parameter of this name is trained. The others are frozen: they want no
    /// gradient, have no master of their own, and AdamW keeps no moments of them. Null: all are trained.
    std::function<bool(std::string_view name)> trains = {};
    LoraOptions lora = {};
    /// Ranks that share the layers (tensor parallelism): layers with heads, hidden features or a vocabulary make a
    /// slice of their parameters, whose random numbers are those of one process. Borrowed; null or one rank: the whole.
    cluster::Communicator* tensor_ranks = nullptr;
  };
  /// With a null `source` parameters have names and shapes but no memory, as for counting them.
  explicit Parameters(const Options& options, ParameterSource source = random_parameter);

  const Options& options() const { return options_; }
  /// Options::tensor_ranks; null where this process has the whole.
  cluster::Communicator* tensor_ranks() const;
  /// The type of activations and products.
  DType dtype() const;
  const std::deque<Parameter>& all() const { return all_; }
  const Parameter* find(std::string_view name) const;  ///< nullptr if there is none
  int64_t count() const;                               ///< numbers in all parameters of this rank together
  int64_t trained_count() const;                       ///< numbers in those that want a gradient
  int64_t bytes() const;                               ///< of the arrays and packed matrices that layers compute with
  /// Empties all gradients, before the next backward.
  void clear_gradients();
  /// With tensor ranks: replaces the gradients of rows that several ranks have by their sum. All ranks call it once
  /// after each backward, whose gradients began empty.
  void add_up_gradients();
  /// Call it after a change of the masters: updates the copies that layers compute with and undoes pack().
  void refresh();
  /// Undoes pack(). Throws Error where that has freed weights.
  void unpack();
  /// Packs the weights [out, in] of a model whose weights no longer change: products are faster, most of all those of
  /// few rows, see ops::PackedMatrix. With Purpose::inference the packed weights replace the others where they can:
  /// then tensors(), refresh() and load() throw Error.
  void pack();
  /// The masters of this rank under `prefix` and their names, for io::format_safetensors(). The data is borrowed.
  std::vector<io::NamedTensor> tensors(const std::string& prefix = "") const;
  /// Copies the masters from a file with these tensors and updates the copies that layers compute with. Throws Error,
  /// before anything changes, with all tensors that are missing or have another type or shape. The file has the whole.
  void load(const io::Safetensors& file, const std::string& prefix = "");

 private:
  std::vector<std::pair<std::string, Array>> masters(const std::string& prefix) const;
  Value add(Parameter parameter);
  friend class Scope;
  Options options_;
  ParameterSource source_;
  std::deque<Parameter> all_;
  std::map<std::string, size_t, std::less<>> index_;  // into all_
};

/// A prefix of parameter names, as "blocks.0.attention.", in which a layer makes its parameters. Parameters are
/// borrowed.
class Scope {
 public:
  explicit Scope(Parameters& parameters, std::string prefix = "")
      : parameters_(&parameters), prefix_(std::move(prefix)) {}
  Scope operator/(std::string_view name) const { return Scope(*parameters_, prefix_ + std::string(name) + "."); }
  /// The prefix without its last dot, "blocks.0.attention"; empty at the root.
  std::string name() const { return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1); }
  DType dtype() const { return parameters_->dtype(); }
  const LoraOptions& lora() const { return parameters_->options().lora; }
  cluster::Communicator* tensor_ranks() const { return parameters_->tensor_ranks(); }

  /// Makes the parameter of this name, of which this rank has a slice. Throws Error for a name that exists or has an
  /// empty component, for an extent below 1 and for an array of more than 2^63 bytes.
  Value variable(std::string_view name, std::vector<int64_t> shape, ParameterRole role = ParameterRole::linear,
                 const Slice& slice = {}) const;

 private:
  Parameters* parameters_;
  std::string prefix_;
};

}  // namespace attn::nn
#pragma GCC visibility pop
