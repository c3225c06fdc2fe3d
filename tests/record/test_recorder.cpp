// record: what a recorder keeps of running models is what a forward of the whole text attends to.
#include "attn/record.h"

#include <filesystem>

#include "attn/generate.h"
#include "attn/view.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using models::Batch;
using models::Config;
using models::Model;

Config tiny(const std::string& name) {
  Config config = models::family(name);
  config.vocab_size = 13;
  config.context = 40;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = name == "llama" ? 2 : 0;
  if (name == "seq2seq") config.encoder_layers = 2;
  return config;
}

std::vector<int64_t> random_tokens(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> tokens;
  for (int64_t n = 0; n < count; ++n) tokens.push_back(random.below(13));
  return tokens;
}

Batch batch_of(const Config& config, const std::vector<int64_t>& tokens, const std::vector<int64_t>& source) {
  Batch batch;
  batch.sequences = 1;
  batch.tokens = tokens;
  batch.length = static_cast<int64_t>(tokens.size());
  if (config.encoder_layers) batch.source = source;
  batch.source_length = static_cast<int64_t>(batch.source.size());
  return batch;
}

/// [H, Lq, Lk] of what is kept of a layer.
Values weights_of(const RecordedAttention& layer) {
  const Shape<4> size = {1, layer.q.size[1], layer.q.size[2], layer.k.size[2]};
  Values weights(static_cast<size_t>(count_of(size)));
  attention_weights(layer.q, layer.k, layer.lse, View<4>(weights.data(), DType::float64, size), 0, 0, layer.options);
  return weights;
}

/// Rows and heads of [H, Lq, Lk] weights of which the first `keys` columns are left.
Values part_of(const Values& weights, int64_t Lq, int64_t Lk, const std::vector<int64_t>& heads, int64_t first,
               int64_t rows, int64_t keys) {
  Values part;
  for (int64_t head : heads)
    for (int64_t row = first; row < first + rows; ++row)
      for (int64_t key = 0; key < keys; ++key) part.push_back(weights[(head * Lq + row) * Lk + key]);
  return part;
}

/// The weights of every layer of a kind, from one forward of the whole text.
std::vector<Values> whole(const Model& model, const Batch& batch, AttentionKind kind) {
  std::vector<nn::AttentionTrace> traces;
  models::ForwardOptions options;
  (kind == AttentionKind::self    ? options.traces
   : kind == AttentionKind::cross ? options.cross_traces
                                  : options.encoder_traces) = &traces;
  Tape tape;
  model.forward(tape, batch, options);
  std::vector<Values> all;
  for (const nn::AttentionTrace& trace : traces) all.push_back(numbers(trace.weights()));
  return all;
}

struct Case {
  std::string name;
  Config config;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"gpt", "llama", "seq2seq"}) all.push_back({name, tiny(name)});
  const auto add = [&](const char* name, const char* family, const std::function<void(Config&)>& change) {
    all.push_back({name, tiny(family)});
    change(all.back().config);
  };
  add("alibi", "gpt", [](Config& c) { c.positions = models::PositionEncoding::alibi; });
  add("relative", "gpt", [](Config& c) { c.positions = models::PositionEncoding::relative; });
  add("relative, with an encoder", "seq2seq", [](Config& c) { c.positions = models::PositionEncoding::relative; });
  add("window and softcap", "llama", [](Config& c) {
    c.window = 5;
    c.softcap = 3;
  });
  add("sink", "llama", [](Config& c) { c.sinks = true; });
  add("one head", "selfhead", [](Config& c) {
    c.layers = 1;
    c.heads = 1;
    c.causal = true;
  });
  return all;
}

/// Generates, then compares what was kept with a forward of prompt and answer.
void expect_generation(const Case& one, AttentionKind kind, const TextRecorderOptions& kept, bool cache) {
  SCOPED_TRACE(one.name + (cache ? ", cached" : ""));
  Model model(one.config, nn::Precision::float64, 3);
  stir(model.parameters());
  TextRecorder recorder({.kind = kind}, kept);
  generate::GenerateOptions options;
  options.max_new_tokens = 9;
  options.seed = 4;
  options.cache = cache;
  options.recorder = &recorder;
  const std::vector<int64_t> prompt = random_tokens(7, 1);
  const bool answers = one.config.encoder_layers > 0;
  if (answers) options.decoder_start_token_ids = {12, 3};
  const generate::Generated result = generate::generate(model, prompt, options);
  std::vector<int64_t> text = answers ? options.decoder_start_token_ids : prompt;
  text.insert(text.end(), result.tokens.begin(), result.tokens.end() - 1);  // the last token was not given to the model
  const auto length = static_cast<int64_t>(text.size());
  const int64_t heads = one.config.heads, rows = kind == AttentionKind::encoder ? 7 : length;
  const int64_t keys = kind == AttentionKind::self ? length : 7;
  const std::vector<Values> expected = whole(model, batch_of(one.config, text, prompt), kind);
  const std::vector<RecordedAttention> layers = recorder.layers();
  ASSERT_EQ(layers.size(), expected.size());
  std::vector<int64_t> all_heads;
  for (int64_t h = 0; h < heads; ++h) all_heads.push_back(h);
  for (size_t n = 0; n < layers.size(); ++n) {
    EXPECT_EQ(layers[n].name, "layer " + std::to_string(n));
    ASSERT_EQ(layers[n].q.size[2], rows);
    ASSERT_EQ(layers[n].k.size[2], keys);
    EXPECT_TRUE(close_float64(weights_of(layers[n]), part_of(expected[n], rows, keys, all_heads, 0, rows, keys)));
  }
}

TEST(Recorder, AGeneratedTextIsKeptAsOneForwardAttends) {
  for (const Case& one : cases()) {
    for (const bool cache : {true, false}) {
      expect_generation(one, AttentionKind::self, {}, cache);
      if (!one.config.encoder_layers) continue;
      expect_generation(one, AttentionKind::cross, {}, cache);
      expect_generation(one, AttentionKind::encoder, {}, cache);
    }
  }
}

TEST(Recorder, FilesWithoutANameGiveTheSame) {
  const Folder folder;
  for (const Case& one : cases()) expect_generation(one, AttentionKind::self, {.folder = folder.path()}, true);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "what is kept has no name";
}

TEST(Recorder, LayersHeadsAndTokensAreChosen) {
  for (const Case& one : cases()) {
    if (one.config.heads == 1) continue;
    SCOPED_TRACE(one.name);
    Model model(one.config, nn::Precision::float64, 3);
    stir(model.parameters());
    const Batch batch = batch_of(one.config, random_tokens(20, 2), random_tokens(9, 3));
    TextRecorder recorder({.selection = {.layers = {1}, .heads = {3, 1}}}, {.first_query = 6, .queries = 5});
    Tape tape;
    model.forward(tape, batch, {.recorder = &recorder});
    const std::vector<RecordedAttention> layers = recorder.layers();
    ASSERT_EQ(layers.size(), 1u);
    EXPECT_EQ(layers[0].name, "layer 1");
    ASSERT_EQ(layers[0].q.size, (Shape<4>{1, 2, 5, 4}));
    ASSERT_EQ(layers[0].k.size[2], 11) << "no causal row looks at keys after it";
    const Values expected = whole(model, batch, AttentionKind::self)[1];
    EXPECT_TRUE(close_float64(weights_of(layers[0]), part_of(expected, 20, 20, {3, 1}, 6, 5, 11)));
  }
}

TEST(Recorder, OneTextOfABatchPaddedOrPacked) {
  Config config = tiny("encoder");
  config.classes = 3;
  config.pooling = models::ClassifierPooling::each;
  for (const auto positions :
       {models::PositionEncoding::learned, models::PositionEncoding::relative, models::PositionEncoding::alibi}) {
    config.positions = positions;
    Model model(config, nn::Precision::float64, 3);
    stir(model.parameters());
    const std::vector<int64_t> tokens = random_tokens(20, 5);
    const std::vector<int64_t> second(tokens.begin() + 10, tokens.begin() + 17);
    const Values expected = whole(model, batch_of(config, second, {}), AttentionKind::self)[1];
    Batch padded = batch_of(config, tokens, {}), packed = batch_of(config, tokens, {});
    padded.sequences = 2;
    padded.length = 10;
    padded.lengths = {10, 7};
    packed.cu_seqlens = {0, 10, 17, 20};
    packed.sequences = 3;
    for (const Batch& batch : {padded, packed}) {
      TextRecorder recorder({.sequence = 1});
      Tape tape;
      model.hidden(tape, batch, {.recorder = &recorder});
      ASSERT_EQ(recorder.layers().size(), 2u);
      EXPECT_TRUE(close_float64(weights_of(recorder.layers()[1]), expected));
    }
  }
}

TEST(Recorder, EachTextOfABatchWithACache) {
  for (const char* name : {"llama", "alibi", "relative"}) {
    Config config = tiny(name == std::string("llama") ? "llama" : "gpt");
    if (name == std::string("alibi")) config.positions = models::PositionEncoding::alibi;
    if (name == std::string("relative")) config.positions = models::PositionEncoding::relative;
    SCOPED_TRACE(name);
    Model model(config, nn::Precision::float64, 3);
    stir(model.parameters());
    const std::vector<int64_t> first = random_tokens(9, 5), second = random_tokens(9, 6);
    for (const int64_t sequence : {0, 1}) {
      models::ModelCache cache = model.new_cache(2);
      TextRecorder recorder({.sequence = sequence});
      for (const auto& [from, to] : {std::pair{0, 4}, {4, 5}, {5, 9}}) {
        Batch batch = batch_of(config, {first.begin() + from, first.begin() + to}, {});
        batch.tokens.insert(batch.tokens.end(), second.begin() + from, second.begin() + to);
        batch.sequences = 2;
        Tape tape;
        model.forward(tape, batch, {.cache = &cache, .recorder = &recorder});
      }
      const Values expected = whole(model, batch_of(config, sequence ? second : first, {}), AttentionKind::self)[1];
      EXPECT_TRUE(close_float64(weights_of(recorder.layers()[1]), expected));
    }
  }
}

TEST(Recorder, ATextThatOutgrowsTheContextBeginsAnew) {
  const Model model(tiny("gpt"), nn::Precision::float32, 3);
  TextRecorder recorder;
  generate::GenerateOptions options;
  options.max_new_tokens = 30;
  options.context = 12;
  options.recorder = &recorder;
  const std::vector<int64_t> prompt = random_tokens(8, 1);
  generate::generate(model, prompt, options);
  ASSERT_EQ(recorder.layers().size(), 2u);
  EXPECT_LE(recorder.layers()[0].q.size[2], 12);
  EXPECT_GE(recorder.layers()[0].q.size[2], 6);
}

TEST(Recorder, SavesWhatIsReadBack) {
  const Folder folder;
  for (const char* name : {"gpt", "llama"}) {
    const Config config = tiny(name);
    const Model model(config, nn::Precision::float64, 3);
    TextRecorder recorder({}, {.first_query = 4, .folder = folder.path()});
    Tape tape;
    model.forward(tape, batch_of(config, random_tokens(9, 2), {}), {.recorder = &recorder});
    const std::string path = folder / "seen.safetensors";
    view::save_attention(path, std::vector<std::string>(9, "a"), recorder.layers(), std::vector<std::string>(5, "b"));
    const view::SavedAttention read = view::read_attention(path);
    ASSERT_EQ(read.layers.size(), 2u);
    EXPECT_EQ(read.tokens.size(), 9u);
    EXPECT_EQ(read.queries, std::vector<std::string>(5, "b"));
    EXPECT_THROW(view::save_attention(path, {}, recorder.layers(), std::vector<std::string>(9, "b")), Error);
    for (size_t n = 0; n < 2; ++n) EXPECT_EQ(weights_of(read.layers[n]), weights_of(recorder.layers()[n]));
    EXPECT_EQ(io::read_file(path), view::saved_attention(read.tokens, recorder.layers(), read.queries));
  }
}

// --------------------------------------------------------------------------------------------------------- bad input

TEST(RecorderErrors, WrongOptionsAreNamed) {
  EXPECT_NE(error_of([] { TextRecorder({.selection = {.layers = {-1}}}); }).find("must not be negative"),
            std::string::npos);
  EXPECT_NE(error_of([] { TextRecorder({}, {.queries = -2}); }).find("queries is -2, must be -1 (all) or not negative"),
            std::string::npos);
  const Config config = tiny("gpt");
  const Model model(config, nn::Precision::float32, 3);
  const auto refused = [&](const RecorderOptions& wanted, const std::string& folder = {}, bool recompute = false) {
    return error_of([&] {
      TextRecorder recorder(wanted, {.folder = folder});
      Tape tape;
      model.forward(tape, batch_of(config, random_tokens(5, 2), {}), {.recompute = recompute, .recorder = &recorder});
    });
  };
  EXPECT_NE(refused({.sequence = 1}).find("sequence 1, must be for one from 0 to 0"), std::string::npos);
  EXPECT_NE(refused({.selection = {.layers = {2}}}).find("layer 2, must be for one from 0 to 1"), std::string::npos);
  EXPECT_NE(refused({.selection = {.heads = {4}}}).find("the head is 4, must be from 0 to 3"), std::string::npos);
  EXPECT_NE(refused({.kind = AttentionKind::cross}).find("models with an encoder"), std::string::npos);
  EXPECT_NE(refused({}, {}, true).find("cannot be combined with recompute"), std::string::npos);
  EXPECT_NE(refused({}, "/nowhere/at/all").find("/nowhere/at/all: cannot create a file"), std::string::npos);
}

TEST(RecorderErrors, CallsThatDoNotContinueAreRefused) {
  std::vector<float> numbers(200, 0.25f), slopes(3, 1.0f);
  const auto call = [&](int64_t heads, int64_t tokens) {
    RecordedAttention layer;
    layer.name = "layer 0";
    layer.q = layer.k = ConstView<4>(numbers.data(), DType::float32, {1, heads, tokens, 4});
    layer.lse = ConstView<3>(numbers.data(), DType::float32, {1, heads, tokens});
    return layer;
  };
  TextRecorder recorder;
  EXPECT_NE(error_of([&] { recorder.record(0, 3, call(2, 3)); }).find("begins at token 3, but 0 tokens are recorded"),
            std::string::npos);
  recorder.record(0, 0, call(2, 3));
  EXPECT_NE(error_of([&] { recorder.record(0, 3, call(3, 2)); }).find("do not continue [1, 2, 3, 4]"),
            std::string::npos);
  RecordedAttention other = call(2, 2);
  other.options.alibi_slopes = slopes;
  EXPECT_NE(error_of([&] { recorder.record(0, 3, other); }).find("one slope for each head"), std::string::npos);
  other = call(2, 2);
  other.options.bias = ConstView<4>(numbers.data(), DType::float32, {1, 2, 2, 5});
  EXPECT_NE(error_of([&] { recorder.record(0, 3, other); }).find("function of the distance is recorded"),
            std::string::npos);
  other = call(2, 2);
  other.q.data = nullptr;
  EXPECT_NE(error_of([&] { recorder.record(0, 3, other); }).find("must have data"), std::string::npos);
  EXPECT_EQ(recorder.layers()[0].q.size[2], 3) << "what is refused changes nothing";
  recorder.record(0, 2, call(2, 2));
  EXPECT_EQ(recorder.layers()[0].q.size[2], 4) << "token 2 was taken back";
  EXPECT_EQ(recorder.layers()[0].k.size[2], 4);
}

}  // namespace
}  // namespace attn::test
