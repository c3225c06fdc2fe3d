// Embeddings of texts: tokens of all, sorted by length, packed, and the pooling of each text's rows.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/models_embed.h"
#include "core/checker.h"
#include "io/json.h"

namespace attn::models {
namespace {

using autograd::Array;
using io::Json;

/// The pooling that a module's config.json sets; older files have a field for each kind.
RowPooling pooling_of(const std::string& path) {
  const Json config = io::read_json("embed", path);
  const auto is_set = [&](const char* name) { return config.is_object() && config.value(name, Json()) == true; };
  const Json mode = config.is_object() ? config.value("pooling_mode", Json()) : Json();
  const std::pair<const char*, RowPooling> known[] = {{"mean", RowPooling::mean},
                                                      {"cls", RowPooling::first},
                                                      {"lasttoken", RowPooling::last},
                                                      {"max", RowPooling::max}};
  std::vector<RowPooling> found;
  for (const auto& [name, kind] : known) {
    const std::string field = "pooling_mode_" + std::string(name) +
                              (kind == RowPooling::first  ? "_token"
                               : kind == RowPooling::last ? ""
                                                          : "_tokens");
    if (mode == name || is_set(field.c_str())) found.push_back(kind);
  }
  bool others = is_set("pooling_mode_mean_sqrt_len_tokens") || is_set("pooling_mode_weightedmean_tokens");
  if (found.size() != 1 || others)
    throw Error("embed", {path + ": served is one pooling, of mean, cls, lasttoken and max"});
  return found.front();
}

/// What modules.json of sentence-transformers says, a list of modules that are run one after the other.
void read_modules(const std::string& folder, EmbedOptions& options) {
  const std::string path = folder + "/modules.json";
  if (!io::exists(path)) return;
  const Json modules = io::read_json("embed", path);
  if (!modules.is_array()) throw Error("embed", {path + " is not a list of modules"});
  for (const Json& module : modules) {
    const Json type = module.is_object() ? module.value("type", Json()) : Json();
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    const Json where = module.is_object() ? module.value("path", Json("")) : Json("");
    const std::string at = where.is_string() ? where.get<std::string>() : "";
    if (at.find('/') != std::string::npos || at == "..")
      throw Error("embed", {path + ": a module lies in " + io::as_shown(where) + ", must be a folder of this one"});
    if (name.ends_with(".Pooling")) options.pooling = pooling_of(folder + "/" + at + "/config.json");
    else if (name.ends_with(".Normalize")) options.normalise = true;
    else if (!name.ends_with(".Transformer"))
      throw Error("embed", {path + ": the module " + io::as_shown(type) + " is not served"});
  }
  const std::string lengths = folder + "/sentence_bert_config.json";
  if (!io::exists(lengths)) return;
  const Json said = io::read_json("embed", lengths);
  const Json longest = said.is_object() ? said.value("max_seq_length", Json()) : Json();
  if (longest.is_number_integer() && longest > 0) options.longest = longest.get<int64_t>();
}

/// One text's row of the result from its rows [L, C].
void pool(const float* rows, int64_t length, int64_t width, const EmbedOptions& options, float* to) {
  const auto row = [&](int64_t i) { return rows + i * width; };
  switch (options.pooling) {
    case RowPooling::first:
    case RowPooling::pooler: std::copy_n(row(0), width, to); break;
    case RowPooling::last: std::copy_n(row(length - 1), width, to); break;
    case RowPooling::max:
      std::copy_n(row(0), width, to);
      for (int64_t i = 1; i < length; ++i)
        for (int64_t c = 0; c < width; ++c) to[c] = std::max(to[c], row(i)[c]);
      break;
    case RowPooling::mean:
      std::fill_n(to, width, 0.0f);
      for (int64_t i = 0; i < length; ++i)
        for (int64_t c = 0; c < width; ++c) to[c] += row(i)[c];
      for (int64_t c = 0; c < width; ++c) to[c] /= static_cast<float>(length);
  }
  if (!options.normalise) return;
  const double squares = std::inner_product(to, to + width, to, 0.0);
  const auto factor = static_cast<float>(1 / std::max(std::sqrt(squares), 1e-12));
  for (int64_t c = 0; c < width; ++c) to[c] *= factor;
}

/// Texts of about the same length, one behind the other.
struct Packed {
  Batch batch;
  std::vector<int64_t> texts;  // of each sequence

  void add(const text::Encoding& encoding, int64_t text, bool with_types) {
    if (batch.starts.empty()) batch.starts.push_back(0);
    batch.tokens.insert(batch.tokens.end(), encoding.ids.begin(), encoding.ids.end());
    if (with_types) batch.types.insert(batch.types.end(), encoding.types.begin(), encoding.types.end());
    batch.starts.push_back(static_cast<int64_t>(batch.tokens.size()));
    batch.length = batch.starts.back();
    ++batch.sequences;
    texts.push_back(text);
  }
};

}  // namespace

Embedder::Embedder(const std::string& folder, OpenOptions how, std::optional<RowPooling> pooling) {
  read_modules(folder, options);
  options.pooling = pooling.value_or(options.pooling);
  how.task = pooling == RowPooling::pooler ? "Pooler" : "Model";
  how.packed = how.packed.value_or(true);  // nearly all of its time goes into products of many rows
  loaded_ = open(folder, how);
  if (!loaded_.tokenizer) throw Error("embed", {folder + " has no tokenizer"});
}

Array Embedder::operator()(std::span<const std::string> texts, const std::function<bool(int64_t done)>& on_progress,
                           std::vector<int64_t>* missing) const {
  const Config& config = loaded_.model->config();
  const auto count = static_cast<int64_t>(texts.size());
  Checker checker("embed");
  checker.require(options.longest >= 0 && options.longest <= config.context, [&] {
    return "longest is " + std::to_string(options.longest) + ", must be at most the context of " +
           std::to_string(config.context);
  });
  checker.require(options.tokens_a_step >= 1, "tokens_a_step must be positive");
  checker.require(options.pooling != RowPooling::pooler || config.pooler,
                  "the model has no pooler, or was opened without it: the constructor takes what is to be loaded");
  checker.done();
  const int64_t longest = options.longest ? options.longest : config.context;
  std::vector<text::Encoding> encodings(texts.size());
  Array result(DType::float32, {count, width()});
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto stopped_at = [&](size_t at) {
    if (missing) missing->assign(order.begin() + static_cast<int64_t>(at), order.end());
    if (missing) std::sort(missing->begin(), missing->end());
    return result;
  };
  constexpr int64_t kAtOnce = 1 << 14;  // texts that become tokens between two looks at on_progress
  for (int64_t first = 0; first < count; first += kAtOnce) {
    if (on_progress && !on_progress(0)) return stopped_at(0);
    parallel_for(std::min(kAtOnce, count - first), [&](int64_t n) {
      try {
        encodings[first + n] = loaded_.tokenizer->encode_within(longest, texts[first + n]);
      } catch (const Error& error) {
        throw Error("embed", {"text " + std::to_string(first + n) + ": " + error.reasons().front()});
      }
    });
  }
  const auto length = [&](int64_t n) { return static_cast<int64_t>(encodings[n].ids.size()); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  while (!order.empty() && length(order.back()) == 0) order.pop_back();  // no token, no vector

  const auto memory = autograd::Tape().memory();
  for (size_t at = 0; at < order.size();) {
    Packed packed;
    while (at < order.size() &&
           (packed.texts.empty() || packed.batch.length + length(order[at]) <= options.tokens_a_step)) {
      packed.add(encodings[order[at]], order[at], config.token_types > 0);
      ++at;
    }
    autograd::Tape tape({}, memory);
    Array rows = loaded_.model->hidden(tape, packed.batch).data();
    std::vector<int64_t>& starts = packed.batch.starts;
    if (options.pooling == RowPooling::pooler) {  // one row a text is left
      const Array first(rows.dtype(), {packed.batch.sequences, width()}, false);
      starts.pop_back();
      ops::embedding(starts, rows.rows(), first.rows());
      rows = loaded_.model->pooler(tape, autograd::Value(first)).data();
      starts.resize(starts.size() + 1);
      std::iota(starts.begin(), starts.end(), 0);
    }
    Array wide = rows;
    if (rows.dtype() != DType::float32) {
      wide = Array(DType::float32, rows.shape(), false);
      ops::convert(rows.flat(), wide.flat());
    }
    parallel_for(packed.batch.sequences, [&](int64_t s) {
      pool(static_cast<const float*>(wide.data()) + starts[s] * width(), starts[s + 1] - starts[s], width(), options,
           static_cast<float*>(result.data()) + packed.texts[s] * width());
    });
    if (on_progress && !on_progress(static_cast<int64_t>(at))) return stopped_at(at);
  }
  return stopped_at(order.size());
}

}  // namespace attn::models
