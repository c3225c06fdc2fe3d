// generate: text in, text out.
//
// ```cpp
// #include "attn/generate_text.h"
// using namespace attn;
// int main() {
//   const auto tokenizer = text::bytes();
//   models::Config config = models::family("gpt");
//   config.vocab_size = tokenizer->vocab_size();
//   const models::Model model(config, nn::Precision::float32, 1);
//   const generate::TextGenerator generator(model, *tokenizer);
//   const auto written = generator.write("Once upon a time", {.max_new_tokens = 8, .temperature = 0});
//   return written.generated.tokens.size() == 8 ? 0 : 1;
// }
// ```
//
// generate::TextGenerator("gpt2") opens a folder of the Hugging Face hub, or one that attn train wrote. The generator
// adds special tokens, follows generation_config.json, ends texts at stop strings and streams whole characters.
#pragma once

#include "attn/generate.h"

#pragma GCC visibility push(default)
namespace attn::generate {

/// The temperature where neither TextOptions nor the folder names one and the model has no encoder.
constexpr double kTemperature = 0.8;

/// Changes for one call, with the names of transformers' generate(). An absent field is as the folder's
/// generation_config.json says, or else as GenerateOptions has it.
struct TextOptions {
  std::optional<int64_t> max_new_tokens = {}, min_new_tokens = {};
  std::optional<bool> do_sample = {};      ///< false: always the most probable token
  std::optional<double> temperature = {};  ///< above 0 with do_sample = false is an Error
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> no_repeat_ngram_size = {}, num_beams = {};
  std::optional<double> length_penalty = {};
  std::optional<EarlyStopping> early_stopping = {};
  std::vector<std::string> stop_strings = {};       ///< the text ends before the first of them
  uint64_t seed = 0;                                ///< of the random numbers that draw tokens
  int64_t context = 0;                              ///< as GenerateOptions::context
  bool cache = true;                                ///< as GenerateOptions::cache
  Streaming streaming = {};                         ///< as GenerateOptions::streaming
  KVStorage cache_storage = KVStorage::exact;       ///< as GenerateOptions::cache_storage
  cluster::Communicator* sequence_ranks = nullptr;  ///< as GenerateOptions::sequence_ranks
  std::optional<int64_t> top_logprobs = {};         ///< as GenerateOptions::top_logprobs
  bool return_full_text = false;    ///< the text begins with the prompt, unless the model has an encoder
  Recorder* recorder = nullptr;     ///< as GenerateOptions::recorder
  TextCache* text_cache = nullptr;  ///< as GenerateOptions::text_cache
  Speculation speculation = {};     ///< as GenerateOptions::speculation
};

struct GeneratedText {
  std::string text = {};                 ///< the new text, without a stop string
  std::vector<int64_t> prompt_ids = {};  ///< the tokens of the prompt, with special tokens
  Generated generated = {};              ///< the new tokens, with those of a stop string
};

/// A model that continues texts or, with an encoder, writes a new text for each.
class TextGenerator {
 public:
  /// Is called with the text that each token adds, in whole characters, which may be "". Return false to end the text.
  /// A beam search calls it with "" after each step and with the text at its end.
  using OnText = std::function<bool(std::string_view text)>;

  /// Opens a folder. Throws Error as models::open_with_tokenizer().
  explicit TextGenerator(const std::string& folder, const models::OpenOptions& how = {});
  /// Throws Error for a model without a tokenizer.
  explicit TextGenerator(models::Loaded loaded);
  /// Borrows all three for its lifetime. `source_tokenizer` encodes prompts for a model with an encoder, whose new
  /// texts begin and end with the last token of the vocabulary, as those of attn train.
  TextGenerator(const models::Model& model, const text::Tokenizer& tokenizer,
                const text::Tokenizer* source_tokenizer = nullptr);

  const models::Model& model() const { return *model_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// The tokenizer of prompts.
  const text::Tokenizer& source_tokenizer() const { return *source_tokenizer_; }
  /// Throws Error before the first call of on_text for options that contradict each other or that the model does not
  /// support, and for a prompt without tokens.
  GeneratedText write(std::string_view prompt, const TextOptions& options = {}, const OnText& on_text = {}) const;
  /// The same for a prompt of token ids [L]; return_full_text has no effect.
  GeneratedText write(std::span<const int64_t> prompt_ids, const TextOptions& options = {},
                      const OnText& on_text = {}) const;
  /// Tokens that the model sees with these options.
  int64_t context(const TextOptions& options = {}) const;
  /// The options with which write() calls generate().
  GenerateOptions options(const TextOptions& options = {}) const;

 private:
  GeneratedText write_after(std::string_view prefix, std::span<const int64_t> prompt_ids, const TextOptions& options,
                            const OnText& on_text) const;
  models::Loaded loaded_;  // empty where the model is borrowed
  const models::Model* model_;
  const text::Tokenizer *tokenizer_, *source_tokenizer_;
  GenerateOptions defaults_;
};

/// Ends a streamed text before the first of the stop strings. It holds back text that may be the beginning of one.
class StopFilter {
 public:
  /// Throws Error for an empty stop string.
  explicit StopFilter(std::vector<std::string> stops);
  /// Adds a piece and returns the text that can be shown now.
  std::string feed(std::string_view piece);
  /// The text held back, after the last piece.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

/// The text of tokens that come one after the other, as far as it can be shown: in whole characters, and up to the
/// first stop string.
class StreamedText {
 public:
  /// Borrows the tokenizer. The tokens follow those of `before`, on which their text may depend. Throws Error for an
  /// empty stop string.
  StreamedText(const text::Tokenizer& tokenizer, std::span<const int64_t> before,
               std::vector<std::string> stop_strings);
  /// Adds a token and returns the text that can be shown now.
  std::string push(int64_t token);
  /// The rest, after the last token.
  std::string finish();
  /// True after a stop string, which ends the text.
  bool stopped() const;

 private:
  text::TextStream stream_;
  StopFilter filter_;
};

}  // namespace attn::generate
#pragma GCC visibility pop
