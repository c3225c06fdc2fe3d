// Opens a GGUF file: its tensors by the names of the hub's families, quantized weights as they are.
#include "models/gguf.h"

#include <algorithm>

#include "models/gguf_blocks.h"
#include "models/hub.h"
#include "models/quantization.h"
#include "models/shape.h"
#include "text/gguf.h"
#include "text/pipeline.h"

namespace attn::models {
namespace {

using io::GgufTensor;

constexpr std::pair<std::string_view, std::string_view> kEnds[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                                   {"model.norm.weight", "output_norm.weight"},
                                                                   {"lm_head.weight", "output.weight"}};
/// After "model.layers.7." and "blk.7.".
constexpr std::pair<std::string_view, std::string_view> kOfLayers[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},          {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},     {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},           {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"post_attention_layernorm", "ffn_norm"}};
/// With norms before and after each branch, post_attention_layernorm comes after the attention. In other models it
/// comes before the feed-forward, and is ffn_norm.
constexpr std::pair<std::string_view, std::string_view> kOfSandwiches[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"}};

}  // namespace

std::string gguf_name(std::string_view theirs, bool sandwiches) {
  constexpr std::string_view kLayers = "model.layers.";
  for (const auto& [name, ours] : kEnds)
    if (theirs == name) return std::string(ours);
  if (!theirs.starts_with(kLayers)) return {};
  theirs.remove_prefix(kLayers.size());
  const size_t dot = theirs.find('.'), last = theirs.rfind('.');
  if (dot == std::string_view::npos || last <= dot) return {};
  const std::string_view part = theirs.substr(dot + 1, last - dot - 1);
  const auto named = [&](std::string_view ours) {
    return "blk." + std::string(theirs.substr(0, dot)) + "." + std::string(ours) + std::string(theirs.substr(last));
  };
  if (sandwiches)
    for (const auto& [name, ours] : kOfSandwiches)
      if (part == name) return named(ours);
  for (const auto& [name, ours] : kOfLayers)
    if (part == name) return named(ours);
  return {};
}

std::vector<int64_t> order_of_pairs(int64_t rows, int64_t width) {
  std::vector<int64_t> order;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row % width, half = width / 2;
    order.push_back(row - at + 2 * (at % half) + at / half);
  }
  return order;
}

namespace {

class GgufWeights {
 public:
  GgufWeights(const io::Gguf& file, const HubModel& model, const OpenOptions& options)
      : file_(file), model_(model), options_(options) {}

  /// Throws Error with the tensors that are missing or do not fit, before any memory is taken: the sizes in the file
  /// may be wrong. Of very many it names the first.
  void check() const {
    constexpr size_t kMostReasons = 16;
    std::vector<std::string> reasons;
    for (const ParameterShape& wanted : parameter_shapes(model_.config)) {
      try {
        require_fit(wanted, pieces_of(wanted.name));
      } catch (const Error& error) {
        reasons.push_back(error.reasons().front());
      }
    }
    if (reasons.empty()) return;
    const size_t all = reasons.size();
    reasons.resize(std::min(all, kMostReasons));
    if (all > kMostReasons) reasons.push_back("and " + std::to_string(all - kMostReasons) + " more");
    throw Error("open", std::move(reasons));
  }

  nn::ParameterData find(const nn::Variable& wanted) const {
    const std::vector<Piece> pieces = pieces_of(wanted.name);
    const auto is_whole = [](const Piece& piece) { return is_quantized(piece.tensor->type); };
    if (stays_quantized(wanted, options_) && std::all_of(pieces.begin(), pieces.end(), is_whole))
      return packed(pieces, wanted.slice);
    return quantized(wanted, numbers(wanted, pieces), model_.config, options_);
  }

 private:
  struct Piece {
    std::string name;
    const GgufTensor* tensor;
    int64_t rows() const {
      int64_t rows = 1;
      for (size_t axis = 0; axis + 1 < tensor->shape.size(); ++axis) rows *= tensor->shape[axis];
      return rows;
    }
    int64_t width() const { return tensor->shape.back(); }
  };

  [[noreturn]] void refuse(const std::string& reason) const { throw Error("open", {file_.path() + ": " + reason}); }

  std::vector<Piece> pieces_of(const std::string& ours) const {
    std::string missing;
    std::vector<std::string> candidates = {ours};
    if (ours == "tokens.weight" && model_.config.tie_embeddings) candidates.emplace_back("head.weight");
    for (const std::string& name : candidates)
      for (const auto* rules : {&model_.head->names, &model_.family->names})
        for (const NameRule& rule : *rules)
          if (std::vector<Piece> pieces = pieces_by(rule, name, missing); !pieces.empty()) return pieces;
    refuse("there is no tensor " + (missing.empty() ? "for " + ours : missing));
  }

  std::vector<Piece> pieces_by(const NameRule& rule, const std::string& ours, std::string& missing) const {
    std::vector<Piece> pieces;
    const bool sandwiches = model_.config.norm_placement == nn::NormPlacement::sandwich;
    const std::vector<std::string> names = names_by(rule, ours);
    for (const std::string& theirs : names) {
      const std::string full = theirs.starts_with('/') ? theirs.substr(1) : model_.family->prefix + theirs;
      const std::string name = gguf_name(full, sandwiches);
      const auto found = file_.tensors().find(name);
      if (found != file_.tensors().end()) pieces.push_back({name, &found->second});
      else if (file_.foreign().contains(name)) refuse_type(file_, name);
      else missing += (missing.empty() ? "" : ", ") + (name.empty() ? full : name);
    }
    if (pieces.size() < names.size()) pieces.clear();
    return pieces;
  }

  void require_fit(const ParameterShape& wanted, const std::vector<Piece>& pieces) const {
    int64_t rows = 0;
    bool fit = true;
    std::string shapes;
    const bool is_vector = wanted.shape.size() == 1;
    for (const Piece& piece : pieces) {
      fit = fit && (is_vector ? piece.rows() == 1 : piece.width() == wanted.shape.back());
      rows += is_vector ? piece.width() : piece.rows();
      shapes += (shapes.empty() ? "" : " + ") + piece.name + " " +
                to_string(piece.tensor->shape.data(), static_cast<int>(piece.tensor->shape.size()));
    }
    if (!fit || rows != wanted.shape.front())
      refuse(shapes + ": must make " + wanted.name + " " +
             to_string(wanted.shape.data(), static_cast<int>(wanted.shape.size())));
  }

  /// For each row of theirs, the row of the file; empty where they are the same.
  std::vector<int64_t> order_of(const Piece& piece, int64_t rows) const {
    const bool turns =
        piece.name.find(".attn_q.") != std::string::npos || piece.name.find(".attn_k.") != std::string::npos;
    if (!turns || std::string_view(model_.family->name) != "llama") return {};
    return order_of_pairs(rows, attention_shape(model_.config).key_width);
  }

  ops::PackedMatrix packed(const std::vector<Piece>& pieces, const nn::Slice& slice) const {
    std::vector<ops::QuantizedMatrix> parts;
    for (const Piece& piece : pieces) {
      parts.push_back(quantized_rows(*piece.tensor));
      if (const std::vector<int64_t> order = order_of(piece, piece.rows()); !order.empty())
        reorder_rows(parts.back(), order);
    }
    try {
      return ops::PackedMatrix(slice_of(parts.size() == 1 ? parts[0] : joined(std::move(parts)), slice));
    } catch (const Error& error) {
      refuse(pieces[0].name + ": " + error.reasons().front());
    }
  }

  Array numbers(const nn::Variable& wanted, const std::vector<Piece>& pieces) const {
    const Array all(wanted.dtype, wanted.shape, false);
    const int64_t bytes = size_of(wanted.dtype);
    char* at = static_cast<char*>(all.data());
    for (const Piece& piece : pieces) {
      const bool is_vector = wanted.shape.size() == 1;
      const int64_t rows = is_vector ? piece.width() : piece.rows(), width = is_vector ? 1 : piece.width();
      const Array part(wanted.dtype, {piece.rows(), piece.width()}, false);
      read(piece, part);
      const std::vector<int64_t> order = order_of(piece, rows);
      for (int64_t row = 0; row < rows; ++row, at += width * bytes) {
        const int64_t from = order.empty() ? row : order[static_cast<size_t>(row)];
        std::copy_n(static_cast<const char*>(part.data()) + from * width * bytes, width * bytes, at);
      }
    }
    return all;
  }

  void read(const Piece& piece, const Array& to) const {
    if (is_quantized(piece.tensor->type)) return ops::dequantize(quantized_rows(*piece.tensor), to.rows());
    const DType type = piece.tensor->type == io::GgufType::f32   ? DType::float32
                       : piece.tensor->type == io::GgufType::f16 ? DType::float16
                                                                 : DType::bfloat16;
    const ConstView<2> theirs(piece.tensor->data, type, {piece.rows(), piece.width()});
    ops::convert(theirs, to.rows());
  }

  const io::Gguf& file_;
  const HubModel& model_;
  const OpenOptions& options_;
};

}  // namespace

Config read_gguf_config(const std::string& path) {
  return read_hub_config(gguf_config(io::Gguf::map(path)), path, "ForCausalLM").config;
}

Loaded open_gguf(const std::string& path, const OpenOptions& options) {
  if (!options.adapter.empty()) throw Error("open", {path + " is a GGUF file: an adapter of PEFT is for a folder"});
  if (options.adapt)
    throw Error("open", {path + " is a GGUF file: to fine-tune, take the folder that it was made from"});
  const io::Gguf file = io::Gguf::map(path);
  const io::Json config = gguf_config(file);
  const HubModel hub = read_hub_config(config, path, "ForCausalLM");
  Loaded loaded;
  read_generation_fields(config, path, hub.config, loaded);
  const GgufWeights weights(file, hub, options);
  weights.check();
  const int64_t total = count_parameters(hub.config).total();
  int64_t done = 0;
  const auto find = [&](const nn::Variable& wanted, const auto&) {
    nn::ParameterData content = weights.find(wanted);
    done += content.packed ? content.packed.size()[0] * content.packed.size()[1] : content.array.count();
    if (options.on_progress && !options.on_progress(done, total)) throw Error("open", {path + ": stopped"});
    return content;
  };
  loaded.model = std::make_unique<Model>(hub.config, parameter_options(options), find);
  if (file.metadata().contains("tokenizer.ggml.tokens"))
    loaded.tokenizer = text::read_pipeline(text::gguf_tokenizer(file), path);
  if (const io::Json chat = file.metadata().value("tokenizer.chat_template", io::Json()); chat.is_string())
    loaded.chat_template = chat.get<std::string>();
  return loaded;
}

}  // namespace attn::models
