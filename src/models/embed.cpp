// Embeddings of texts: tokens of all, sorted by length, packed, and what a folder's modules make of each text's rows.
#include <algorithm>
#include <numeric>

#include "core/checker.h"
#include "models/folder.h"
#include "models/sentence.h"

namespace attn::models {

/// What is after the model.
class Embedder::Pipeline {
 public:
  Pipeline(const SentenceFiles& files, int64_t width, std::optional<Pooling> pooling) {
    FeatureShapes shapes = {{kTokenRows, {width, true}}};
    pooler_ = pooling == Pooling::pooler;
    if (pooler_) shapes[kTextRows] = {width, false};
    for (const auto& [kind, folder] : files.modules) {
      if (kind == "WeightedLayerPooling") require_last_layer(files.model);
      add(module_stage(kind, folder, pooling, shapes));
    }
    if (!files.has_modules || (pooling && !shapes.contains(kTextRows)))
      add(pooling_stage({pooling.value_or(files.pooling)}, true, shapes));
    if (!shapes.contains(kTextRows) || shapes[kTextRows].of_tokens)
      throw Error("embed", {files.model + ": no module makes a " + kTextRows + " of a text's rows, as Pooling does"});
    width_ = shapes[kTextRows].width;
  }

  int64_t width() const { return width_; }
  bool has_pooler() const { return pooler_; }
  /// The rows of the texts [B, width()].
  Array operator()(Features& features) const {
    for (const Stage& stage : stages_) stage(features);
    return features.arrays.at(kTextRows);
  }

 private:
  void add(Stage stage) {
    if (stage) stages_.push_back(std::move(stage));
  }
  static void require_last_layer(const std::string& folder) {
    FileFields config(io::read_python_json("embed", folder + "/config.json"), folder + "/config.json");
    if (const io::Json* all = config.find("output_hidden_states"); all && *all != false)
      config.refuse("output_hidden_states", "false beside WeightedLayerPooling, which would mix the layers");
  }

  std::vector<Stage> stages_;
  int64_t width_ = 0;
  bool pooler_ = false;
};

namespace {

/// Texts of about the same length, one after the other.
struct Packed {
  Batch batch;
  std::vector<int64_t> texts;  // of each sequence

  void add(const text::Encoding& encoding, int64_t text, bool with_types) {
    if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
    batch.tokens.insert(batch.tokens.end(), encoding.ids.begin(), encoding.ids.end());
    if (with_types)
      batch.token_type_ids.insert(batch.token_type_ids.end(), encoding.token_type_ids.begin(),
                                  encoding.token_type_ids.end());
    batch.cu_seqlens.push_back(static_cast<int64_t>(batch.tokens.size()));
    batch.length = batch.cu_seqlens.back();
    ++batch.sequences;
    texts.push_back(text);
  }
};

Array as_float32(const Array& rows) {
  if (rows.dtype() == DType::float32) return rows;
  const Array wide(DType::float32, rows.shape(), false);
  ops::convert(rows.flat(), wide.flat());
  return wide;
}

/// Of each text the first row.
Array first_rows(const Array& rows, std::span<const int64_t> starts) {
  const Array first(rows.dtype(), {std::ssize(starts) - 1, rows.width()}, false);
  ops::embedding(starts.first(starts.size() - 1), rows.rows(), first.rows());
  return first;
}

}  // namespace

Embedder::Embedder(Embedder&&) noexcept = default;
Embedder& Embedder::operator=(Embedder&&) noexcept = default;
Embedder::~Embedder() = default;

Embedder::Embedder(const std::string& folder, OpenOptions how, std::optional<Pooling> pooling) {
  SentenceFiles files = read_sentence_files(folder, pooling);
  how.task = pooling == Pooling::pooler ? "Pooler" : "Model";
  how.packed = how.packed.value_or(true);  // nearly all of its time goes into products of many rows
  const io::Json json = read_model_file("config", files.model);
  const Config config = config_of(json, files.model, how.task);
  if (config.encoder_layers || config.takes_embeddings)
    throw Error("embed",
                {files.model + ": a model " + (config.takes_embeddings ? "of rows" : "with an encoder and a decoder") +
                 " is not supported, must be an encoder or a decoder of texts alone"});
  pipeline_ = std::make_unique<const Pipeline>(files, config.embed_dim, pooling);
  loaded_ = open_parsed(files.model, json, how);
  if (!loaded_.tokenizer) throw Error("embed", {files.model + " has no tokenizer"});
  if (files.lower_case) loaded_.tokenizer = lower_cased(*loaded_.tokenizer, files.model);
  prompts_ = std::move(files.prompts);
  options.prompt = files.prompt;
  options.truncate_dim = files.dimensions;
  options.max_length = files.longest.value_or(std::min(files.tokenizers.value_or(config.context), config.context));
  if (const int64_t least = std::ssize(loaded_.tokenizer->encode("").ids); options.max_length < least)
    throw Error("embed", {files.length_field + " is " + std::to_string(options.max_length) + ", must be at least " +
                          std::to_string(least) + ", as many tokens are around a text"});
}

int64_t Embedder::width() const {
  return options.truncate_dim > 0 ? std::min(options.truncate_dim, pipeline_->width()) : pipeline_->width();
}

void Embedder::check() const {
  Checker checker("embed");
  const auto whole = [&](const char* name, int64_t value, int64_t least) {
    checker.require(value >= least, [&] {
      return std::string(name) + " is " + std::to_string(value) + ", must be at least " + std::to_string(least);
    });
  };
  whole("max_length", options.max_length, 0);
  whole("truncate_dim", options.truncate_dim, 0);
  whole("tokens_a_step", options.tokens_a_step, 1);
  checker.done();
}

std::vector<text::Encoding> Embedder::encoded(std::span<const std::string> texts, int64_t first, int64_t count) const {
  const Config& config = loaded_.model->config();
  const int64_t longest = options.max_length ? options.max_length : config.context;
  const bool bounded =
      config.positions == PositionEncoding::learned || config.positions == PositionEncoding::learned_relative;
  std::vector<text::Encoding> encodings(static_cast<size_t>(count));
  const auto fail = [&](int64_t n, const std::string& reason) {
    throw Error("embed", {(options.name ? options.name(n) : "text " + std::to_string(n)) + ": " + reason});
  };
  parallel_for(count, [&](int64_t n) {
    text::Encoding& encoding = encodings[n];
    try {
      encoding = loaded_.tokenizer->encode(options.prompt + texts[first + n], {.max_length = longest});
    } catch (const Error& error) {
      fail(first + n, error.reasons().front());
    }
    if (const int64_t tokens = std::ssize(encoding.ids); bounded && tokens > config.context)
      fail(first + n, "its " + std::to_string(tokens) + " tokens are more than the " + std::to_string(config.context) +
                          " positions that the model has learned; longest is " + std::to_string(longest));
  });
  return encodings;
}

/// As its tokens alone are, without what ends a text.
int64_t Embedder::prompt_tokens() const {
  if (options.prompt.empty()) return 0;
  const std::vector<int64_t> ids =
      loaded_.tokenizer
          ->encode(options.prompt,
                   {.max_length = options.max_length ? options.max_length : loaded_.model->config().context})
          .ids;
  return std::ssize(ids) - (!ids.empty() && loaded_.tokenizer->is_special(ids.back()) ? 1 : 0);
}

Array Embedder::operator()(std::span<const std::string> texts, const std::function<bool(int64_t done)>& on_progress,
                           std::vector<int64_t>* missing) const {
  check();
  const auto count = static_cast<int64_t>(texts.size());
  std::vector<text::Encoding> encodings;
  Array result(DType::float32, {count, width()});
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto stopped_at = [&](size_t at) {
    if (missing) missing->assign(order.begin() + static_cast<int64_t>(at), order.end());
    if (missing) std::sort(missing->begin(), missing->end());
    if (options.normalize) normalise_rows(result);
    return result;
  };
  constexpr int64_t kAtOnce = 1 << 14;  // texts that become tokens between two looks at on_progress
  for (int64_t first = 0; first < count; first += kAtOnce) {
    if (on_progress && !on_progress(0)) return stopped_at(0);
    std::vector<text::Encoding> more = encoded(texts, first, std::min(kAtOnce, count - first));
    std::move(more.begin(), more.end(), std::back_inserter(encodings));
  }
  const auto length = [&](int64_t n) { return static_cast<int64_t>(encodings[n].ids.size()); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  while (!order.empty() && length(order.back()) == 0) order.pop_back();  // no token, no vector

  const auto memory = autograd::Tape().memory();
  const int64_t prompt = prompt_tokens();
  for (size_t at = 0; at < order.size();) {
    Packed packed;
    while (at < order.size() &&
           (packed.texts.empty() || packed.batch.length + length(order[at]) <= options.tokens_a_step)) {
      packed.add(encodings[order[at]], order[at], loaded_.model->config().type_vocab_size > 0);
      ++at;
    }
    autograd::Tape tape({}, memory);
    const Array rows = loaded_.model->hidden(tape, packed.batch).data();
    Features features{{{kTokenRows, as_float32(rows)}}, packed.batch.cu_seqlens, prompt};
    if (pipeline_->has_pooler()) {
      const autograd::Value first(first_rows(rows, packed.batch.cu_seqlens));
      features.arrays[kTextRows] = as_float32(loaded_.model->pooler(tape, first).data());
    }
    const Array vectors = (*pipeline_)(features);
    for (int64_t n = 0; n < std::ssize(packed.texts); ++n)
      std::copy_n(vectors.data<float>() + n * vectors.width(), width(),
                  static_cast<float*>(result.data()) + packed.texts[n] * width());
    if (on_progress && !on_progress(static_cast<int64_t>(at))) return stopped_at(at);
  }
  return stopped_at(order.size());
}

}  // namespace attn::models
