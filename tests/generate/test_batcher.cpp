// generate: many texts at once are the texts alone, whatever is computed beside them.
#include "attn/generate_batch.h"

#include <map>

#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using generate::Batcher;
using generate::BatcherOptions;
using generate::FinishedText;
using generate::FinishReason;
using generate::GenerateOptions;
using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabulary = 40;

models::Config shape(const std::string& family, int64_t context = 256) {
  models::Config config = models::family(family);
  config.vocab_size = kVocabulary, config.embed_dim = 32, config.heads = 4, config.layers = 2, config.context = context;
  if (family == "llama") config.kv_heads = 2;
  return config;
}

/// Tokens come in pairs whose logits differ by as much as a sum of products rounds: which of them is greater depends on
/// the last bits of the hidden states.
models::Model model_of(const models::Config& config, nn::Precision precision = nn::Precision::float32) {
  models::Model model(config, precision, 3);
  stir(model.parameters(), 0.5);
  Random random(5);
  for (const nn::Parameter& parameter : model.parameters().all()) {
    const std::vector<int64_t>& size = parameter.master.shape();
    if (size[0] != config.vocab_size || parameter.master.dtype() != DType::float32) continue;
    auto* rows = static_cast<float*>(parameter.master.data());
    for (int64_t n = 0; n + 1 < size[0]; n += 2)
      for (int64_t d = 0; d < size[1]; ++d)
        rows[(n + 1) * size[1] + d] = rows[n * size[1] + d] * (1 + 0x1p-22F * static_cast<float>(random.below(3) - 1));
  }
  model.parameters().refresh();
  model.parameters().pack();
  return model;
}

Tokens random_tokens(int64_t count, uint64_t seed) {
  Random random(seed);
  Tokens tokens;
  for (int64_t n = 0; n < count; ++n) tokens.push_back(random.below(kVocabulary));
  return tokens;
}

struct Request {
  Tokens prompt;
  GenerateOptions options;
};

/// Prompts that share beginnings, short and long ones, greedy and drawn.
std::vector<Request> some_requests() {
  std::vector<Request> all;
  const Tokens system = random_tokens(70, 1);
  for (uint64_t n = 0; n < 9; ++n) {
    Request each{random_tokens(1 + static_cast<int64_t>(n * n), n + 5), {}};
    if (n % 3 == 1) each.prompt.insert(each.prompt.begin(), system.begin(), system.end());
    each.options.max_new_tokens = 3 + static_cast<int64_t>(7 * n % 23);
    each.options.sampling.temperature = n % 2 ? 0.8 : 0;
    each.options.sampling.top_p = 0.9;
    each.options.sampling.repetition_penalty = n == 4 ? 1.3 : 1;
    each.options.no_repeat_ngram_size = n == 5 ? 2 : 0;
    each.options.eos_token_ids = {static_cast<int64_t>(n)};
    each.options.seed = n;
    all.push_back(each);
  }
  return all;
}

std::map<int64_t, FinishedText> run(Batcher& batcher) {
  std::map<int64_t, FinishedText> all;
  while (batcher.requests() > 0)
    for (FinishedText& each : batcher.step()) all[each.request] = std::move(each);
  return all;
}

/// What generate() makes of each alone.
std::vector<Tokens> alone(const models::Model& model, const std::vector<Request>& requests,
                          KVStorage storage = KVStorage::exact) {
  std::vector<Tokens> all;
  for (const Request& each : requests) {
    GenerateOptions options = each.options;
    options.batch_invariant = true;
    options.cache_storage = storage;
    all.push_back(generate::generate(model, each.prompt, options).tokens);
  }
  return all;
}

TEST(Batcher, TextsAreThoseOfEachAlone) {
  const std::vector<Request> requests = some_requests();
  for (const char* family : {"gpt", "llama"})
    for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
      const models::Model model = model_of(shape(family), precision);
      const std::vector<Tokens> expected = alone(model, requests);
      for (const BatcherOptions& options : {BatcherOptions{},
                                            {.max_requests = 1},
                                            {.max_requests = 3, .max_step_tokens = 7},
                                            {.max_requests = 9, .max_step_tokens = 40, .max_cache_tokens = 256}}) {
        Batcher batcher(model, options);
        std::vector<int64_t> numbers;
        for (size_t n = 0; n < requests.size(); ++n) {
          numbers.push_back(batcher.add(requests[n].prompt, requests[n].options));
          if (n == 2) batcher.step();  // others come later
        }
        const std::map<int64_t, FinishedText> texts = run(batcher);
        for (size_t n = 0; n < requests.size(); ++n)
          EXPECT_EQ(texts.at(numbers[n]).generated.tokens, expected[n])
              << family << ' ' << options.max_requests << ": " << n;
      }
    }
}

TEST(Batcher, TextsOfACacheIn8BitsToo) {
  const std::vector<Request> requests = some_requests();
  const models::Model model = model_of(shape("llama"), nn::Precision::float32);
  const std::vector<Tokens> expected = alone(model, requests, KVStorage::int8);
  Batcher batcher(model, {.max_requests = 3, .max_step_tokens = 7, .cache_storage = KVStorage::int8});
  std::vector<int64_t> ids;
  for (const Request& each : requests) ids.push_back(batcher.add(each.prompt, each.options));
  std::map<int64_t, FinishedText> all = run(batcher);
  for (size_t n = 0; n < ids.size(); ++n) EXPECT_EQ(all[ids[n]].generated.tokens, expected[n]) << n;
  Batcher exact(model);
  EXPECT_NE(error_of([&] { exact.add({1}, {.cache_storage = KVStorage::int8}); }).find("cache_storage is not that of"),
            std::string::npos);
}

/// Log probabilities are those of the model's logits, whatever the sampling makes of them, and for every way to
/// generate.
TEST(Logprobs, AreTheModels) {
  const models::Model model = model_of(shape("llama"), nn::Precision::float32);
  const Tokens prompt = random_tokens(9, 4);
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.sampling = {.temperature = 0.8, .top_k = 5, .repetition_penalty = 1.4};
  options.suppress_tokens = {1, 2, 3};
  options.top_logprobs = 3;
  options.batch_invariant = true;
  const generate::Generated found = generate::generate(model, prompt, options);
  ASSERT_EQ(found.logprobs.size(), 12U);
  Tokens text = prompt;
  for (size_t n = 0; n < found.tokens.size(); ++n) {
    autograd::Tape tape;
    const Values logits = numbers(
        model.forward(tape, {.tokens = text, .sequences = 1, .length = std::ssize(text)}, {.last_only = true}).data());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    const double bound = 1e-4;  // of float32 logits below 10, in another order of additions
    EXPECT_NEAR(found.logprobs[n].logprob, logits[static_cast<size_t>(found.tokens[n])] - std::log(sum), bound);
    std::vector<double> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    ASSERT_EQ(found.logprobs[n].top.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      const auto& [id, logprob] = found.logprobs[n].top[i];
      EXPECT_NEAR(logprob, sorted[i] - std::log(sum), bound);
      EXPECT_NEAR(logits[static_cast<size_t>(id)], sorted[i], bound);
    }
    text.push_back(found.tokens[n]);
  }
  Batcher batcher(model);
  const int64_t request = batcher.add(prompt, options);
  GenerateOptions drafting = options;
  drafting.speculation.tokens = 4;
  for (const generate::Generated& same :
       {run(batcher)[request].generated, generate::generate(model, prompt, drafting)}) {
    ASSERT_EQ(same.tokens, found.tokens);
    for (size_t n = 0; n < found.tokens.size(); ++n) {
      EXPECT_EQ(same.logprobs[n].logprob, found.logprobs[n].logprob);
      EXPECT_EQ(same.logprobs[n].top, found.logprobs[n].top);
    }
  }
}

TEST(Logprobs, EndWithTheText) {
  const models::Model model = model_of(shape("gpt"), nn::Precision::float32);
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 5;
  const Tokens tokens = generate::generate(model, Tokens{1}, options).tokens;
  EXPECT_TRUE(generate::generate(model, Tokens{1}, options).logprobs.empty());
  options.eos_token_ids = {tokens[0]};
  options.top_logprobs = 0;
  const generate::Generated ended = generate::generate(model, Tokens{1}, options);
  EXPECT_TRUE(ended.tokens.empty() && ended.logprobs.empty());
  options.top_logprobs = -1;
  EXPECT_NE(error_of([&] { generate::generate(model, Tokens{1}, options); }).find("top_logprobs is -1, must be from 0"),
            std::string::npos);
  options.top_logprobs = 2;
  options.beam.num_beams = 2;
  EXPECT_NE(error_of([&] { generate::generate(model, Tokens{1}, options); }).find("beams do not support top_logprobs"),
            std::string::npos);
}

TEST(Batcher, BeginningsAreShared) {
  const models::Model model = model_of(shape("llama"));
  Batcher batcher(model);
  Tokens prompt = random_tokens(150, 1);
  batcher.add(prompt, {.max_new_tokens = 5});
  const FinishedText first = run(batcher).at(0);
  EXPECT_EQ(first.generated.reused, 0);
  EXPECT_EQ(first.reason, FinishReason::length);
  const int64_t bytes = batcher.cache_bytes();
  // The next turn of a conversation, and the same question once more.
  prompt.insert(prompt.end(), first.generated.tokens.begin(), first.generated.tokens.end());
  prompt.push_back(3);
  batcher.add(prompt, {.max_new_tokens = 5});
  batcher.add(prompt, {.max_new_tokens = 5});
  const std::map<int64_t, FinishedText> next = run(batcher);
  EXPECT_EQ(next.at(1).generated.reused, 154);  // the last of the new tokens was not computed
  EXPECT_EQ(next.at(2).generated.reused, 154);
  EXPECT_EQ(next.at(1).generated.tokens, next.at(2).generated.tokens);
  EXPECT_LT(batcher.cache_bytes(), 2 * bytes) << "two of three KV pages are shared";
}

TEST(Batcher, TheCacheHasItsLimit) {
  const models::Model model = model_of(shape("llama"));
  const int64_t page = KVCacheConfig().page_size;
  Batcher batcher(model, {.max_requests = 8, .max_cache_tokens = 3 * page});
  for (uint64_t n = 0; n < 6; ++n) batcher.add(random_tokens(60, n), {.max_new_tokens = 30});
  const int64_t page_bytes = page * 2 * 2 * 8 * 4 * 2;  // keys and values, heads, width, float32, layers
  int64_t most = 0, steps = 0;
  std::map<int64_t, FinishedText> all;
  while (batcher.requests() > 0) {
    for (FinishedText& each : batcher.step()) all[each.request] = std::move(each);
    most = std::max(most, batcher.cache_bytes());
    ++steps;
  }
  EXPECT_LE(most, 3 * page_bytes);
  EXPECT_GT(most, page_bytes);
  EXPECT_EQ(all.size(), 6u);
  EXPECT_GT(steps, 5 * 30) << "one after the other: two pages each";
}

TEST(Batcher, ALongPromptLetsOthersGoOn) {
  const models::Model model = model_of(shape("llama"));
  Batcher batcher(model, {.max_step_tokens = 16});
  int64_t before = 0;
  bool long_began = false;
  batcher.add(random_tokens(5, 1), {.max_new_tokens = 100, .on_token = [&](int64_t) {
                                      before += !long_began;
                                      return true;
                                    }});
  batcher.add(random_tokens(200, 2), {.max_new_tokens = 1, .on_token = [&](int64_t) { return long_began = true; }});
  run(batcher);
  EXPECT_GE(before, 200 / 16);
  EXPECT_LT(before, 20);
}

TEST(Batcher, RequestsEnd) {
  const models::Model model = model_of(shape("gpt", 64));
  Batcher batcher(model, {.max_requests = 2});
  const Tokens prompt = random_tokens(10, 1);
  int64_t seen = 0;
  const int64_t stopped = batcher.add(prompt, {.max_new_tokens = 20, .on_token = [&](int64_t) { return ++seen < 3; }});
  const int64_t endless = batcher.add(prompt, {.max_new_tokens = 1000});
  const int64_t cancelled = batcher.add(prompt, {.max_new_tokens = 20});
  const int64_t thrown =
      batcher.add(prompt, {.max_new_tokens = 20, .on_token = [](int64_t) -> bool { throw Error("x", {"its own"}); }});
  const int64_t nothing = batcher.add(prompt, {.max_new_tokens = 0});
  EXPECT_EQ(batcher.requests(), 5);
  EXPECT_TRUE(batcher.cancel(cancelled));
  EXPECT_FALSE(batcher.cancel(cancelled));
  EXPECT_FALSE(batcher.cancel(99));
  const std::map<int64_t, FinishedText> all = run(batcher);
  EXPECT_EQ(all.at(stopped).reason, FinishReason::stopped);
  EXPECT_EQ(all.at(stopped).generated.tokens.size(), 3u);
  EXPECT_EQ(all.at(endless).reason, FinishReason::length);
  EXPECT_EQ(all.at(endless).generated.tokens.size(), 64u - 10 + 1) << "the model sees 64 tokens";
  EXPECT_EQ(all.at(cancelled).reason, FinishReason::cancelled);
  EXPECT_TRUE(all.at(cancelled).generated.tokens.empty());
  EXPECT_EQ(all.at(thrown).reason, FinishReason::failed);
  EXPECT_EQ(all.at(thrown).error, "[x] its own");
  EXPECT_EQ(all.at(nothing).reason, FinishReason::length);
  EXPECT_TRUE(all.at(nothing).generated.tokens.empty());
  EXPECT_FALSE(batcher.cancel(endless)) << "it has ended";
  EXPECT_TRUE(batcher.step().empty());
}

TEST(Batcher, Errors) {
  const models::Model model = model_of(shape("gpt", 64));
  const auto said = [](const std::function<void()>& call, const std::string& words) {
    EXPECT_NE(error_of(call).find(words), std::string::npos) << error_of(call) << " lacks " << words;
  };
  said([&] { Batcher(model, {.max_requests = 0}); }, "max_requests is 0, must be from 1");
  said([&] { Batcher(model, {.max_step_tokens = -1}); }, "max_step_tokens is -1");
  models::Config config = shape("seq2seq");
  const models::Model answering = model_of(config);
  said([&] { Batcher{answering}; }, "a model with an encoder");
  config = shape("gpt");
  config.mixers = "lf";
  const models::Model hybrid = model_of(config);
  said([&] { Batcher{hybrid}; }, "layer 0 has no attention");
  Batcher batcher(model, {.max_cache_tokens = 64});
  said([&] { batcher.add({}, {}); }, "at least one token");
  said([&] { batcher.add({kVocabulary}, {}); }, "prompt[0] is 40");
  said([&] { batcher.add(random_tokens(65, 1), {}); }, "the prompt has 65 tokens, must have at most the context of 64");
  said([&] { batcher.add({1}, {.streaming = {.window = 9}}); }, "a request needs the cache, and supports no beams");
  said([&] { batcher.add({1}, {.speculation = {.tokens = 2}}); }, "or speculation");
  EXPECT_EQ(batcher.requests(), 0);
}

TEST(Batcher, ARequestThatNeverFitsIsRefused) {
  const models::Model model = model_of(shape("gpt", 200));
  Batcher batcher(model, {.max_cache_tokens = 64});
  EXPECT_NE(error_of([&] {
              batcher.add(random_tokens(60, 1), {.max_new_tokens = 10});
            }).find("prompt and new tokens are up to 70 tokens, more than max_cache_tokens = 64 has room for"),
            std::string::npos);
  batcher.add(random_tokens(60, 1), {.max_new_tokens = 5});
  EXPECT_EQ(run(batcher).size(), 1u);
}

// -------------------------------------------------------------------------------------------------------- speculation

TEST(Speculation, TheTextIsThatWithoutDrafts) {
  const std::vector<Request> requests = some_requests();
  for (const char* family : {"gpt", "llama"}) {
    const models::Model model = model_of(shape(family)), other = model_of(shape("llama", 100));
    const std::vector<Tokens> expected = alone(model, requests);
    for (const generate::Speculation& speculation : {generate::Speculation{.tokens = 5},
                                                     {.tokens = 3, .ngram = 1},
                                                     {.tokens = 4, .draft = &other},
                                                     {.tokens = 4, .draft = &model}}) {
      int64_t drafted = 0, accepted = 0, greedy_drafted = 0, greedy_accepted = 0;
      for (size_t n = 0; n < requests.size(); ++n) {
        GenerateOptions options = requests[n].options;
        options.speculation = speculation;
        const generate::Generated text = generate::generate(model, requests[n].prompt, options);
        EXPECT_EQ(text.tokens, expected[n]) << family << ' ' << n;
        drafted += text.drafted;
        accepted += text.accepted;
        if (options.sampling.temperature > 0) continue;
        greedy_drafted += text.drafted;
        greedy_accepted += text.accepted;
      }
      EXPECT_GT(drafted, 0);
      EXPECT_LE(accepted, drafted);
      const bool itself = speculation.draft == &model;
      EXPECT_GT(3 * greedy_accepted, itself ? greedy_drafted : -1) << "it accepts its own greedy texts";
    }
  }
}

TEST(Speculation, BeyondTheContext) {
  const models::Model model = model_of(shape("gpt", 24));
  for (const models::Model* draft : {static_cast<const models::Model*>(nullptr), &model}) {
    GenerateOptions options{.sampling = {.temperature = 0}, .max_new_tokens = 100, .batch_invariant = true};
    const Tokens prompt = random_tokens(10, 4);
    const generate::Generated expected = generate::generate(model, prompt, options);
    options.speculation = {.tokens = 6, .draft = draft};
    int64_t told = 0;
    options.on_token = [&](int64_t) { return ++told > 0; };
    const generate::Generated text = generate::generate(model, prompt, options);
    EXPECT_EQ(text.tokens, expected.tokens);
    EXPECT_EQ(text.forgotten, expected.forgotten);
    EXPECT_EQ(told, 100);
  }
}

TEST(Speculation, ATextCacheKeepsWhatIsRight) {
  const models::Model model = model_of(shape("llama"));
  generate::TextCache cache;
  GenerateOptions options{
      .sampling = {.temperature = 0}, .max_new_tokens = 30, .text_cache = &cache, .speculation = {.tokens = 6}};
  Tokens text = random_tokens(10, 4);
  const generate::Generated first = generate::generate(model, text, options);
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_TRUE(std::equal(cache.tokens.begin(), cache.tokens.end(), text.begin()));
  EXPECT_GE(cache.tokens.size(), 39u);
  text.push_back(1);
  GenerateOptions again = options;
  again.text_cache = nullptr;
  const Tokens expected = generate::generate(model, text, again).tokens;
  const generate::Generated second = generate::generate(model, text, options);
  EXPECT_EQ(second.tokens, expected);
  EXPECT_GE(second.reused, 39);
}

TEST(Speculation, Errors) {
  const models::Model model = model_of(shape("gpt"));
  models::Config config = shape("gpt");
  config.vocab_size = 9;
  const models::Model other = model_of(config);
  config = shape("gpt");
  config.mixers = "fl";
  const models::Model hybrid = model_of(config);
  const auto said = [](const models::Model& of, const GenerateOptions& options, const std::string& words) {
    const std::string error = error_of([&] { generate::generate(of, Tokens{1}, options); });
    EXPECT_NE(error.find(words), std::string::npos) << error << " lacks " << words;
  };
  said(model, {.speculation = {.tokens = -1}}, "speculation.tokens is -1, must be from 0 to 64");
  said(model, {.speculation = {.tokens = 1, .ngram = 0}}, "speculation.ngram is 0, must be from 1 to 64");
  said(model, {.speculation = {.tokens = 1, .draft = &other}}, "a vocabulary of 9 tokens, must have the 40");
  said(hybrid, {.speculation = {.tokens = 1}}, "attention in all layers, and layer 1 of the model has a state");
  said(model, {.speculation = {.tokens = 1, .draft = &hybrid}}, "and layer 1 of the draft model has a state");
  said(model, {.cache = false, .speculation = {.tokens = 1}}, "speculation needs the cache");
}

}  // namespace
}  // namespace attn::test
