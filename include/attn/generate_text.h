// generate: text in, text out.
//
//   const attn::generate::TextGenerator generator("gpt2");  // a folder of the Hugging Face hub, or one of attn train
//   const auto story = generator.write("Once upon a time", {.max_new_tokens = 50, .temperature = 0});
//   std::puts(story.text.c_str());
//
// A TextGenerator does what has to be done around generate(): special tokens, generation_config.json, stop strings, and
// streaming in whole characters.
#pragma once

#include "attn/generate.h"

#pragma GCC visibility push(default)
namespace attn::generate {

/// What one call changes. The names are those of transformers' generate(). An absent field is as the folder's
/// generation_config.json says, and otherwise as GenerateOptions says.
struct TextOptions {
  std::optional<int64_t> max_new_tokens = {}, min_new_tokens = {};
  std::optional<bool> do_sample = {};      ///< false: always the most probable token
  std::optional<double> temperature = {};  ///< where nothing says it: kTemperature, or 0 for a model with an encoder
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> no_repeat_ngram_size = {}, num_beams = {};
  std::optional<double> length_penalty = {};
  std::optional<EarlyStopping> early_stopping = {};
  std::vector<std::string> stop_strings = {};  ///< the text ends before the first of them
  uint64_t seed = 0;
  int64_t context = 0;            ///< as GenerateOptions::context
  bool cache = true;              ///< as GenerateOptions::cache
  bool return_full_text = false;  ///< the text begins with the prompt; not for a model with an encoder
  view::Recorder* recorder = {};  ///< as GenerateOptions::recorder
};
constexpr double kTemperature = 0.8;

struct GeneratedText {
  std::string text;                 ///< up to a stop string
  std::vector<int64_t> prompt_ids;  ///< [L], with special tokens
  Generated generated;              ///< the new tokens, among them those of a stop string
};

/// A model that continues texts or, with an encoder, answers them.
class TextGenerator {
 public:
  /// Receives the text that each token adds, in whole characters, perhaps "". Returning false ends the text. A search
  /// of beams calls it with "" after each step, and with the text at the end.
  using OnText = std::function<bool(std::string_view text)>;

  /// Opens a folder. Throws Error as models::open_with_tokenizer().
  explicit TextGenerator(const std::string& folder, const models::OpenOptions& how = {});
  /// Throws Error for a model without a tokenizer.
  explicit TextGenerator(models::Loaded loaded);
  /// Borrows all three; they must outlive the generator. The encoder of a model with one reads what
  /// `source_tokenizer`, if there is one, encodes. Its answers begin and end with the last token of the vocabulary, as
  /// those of attn train do.
  TextGenerator(const models::Model& model, const text::Tokenizer& tokenizer,
                const text::Tokenizer* source_tokenizer = nullptr);

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Of prompts.
  const text::Tokenizer& source_tokenizer() const { return *source_tokenizer_; }
  /// Continues or answers `prompt`. Throws Error, before on_text is called, for options that contradict each other or
  /// that the model does not allow, and for a prompt without a token.
  GeneratedText write(std::string_view prompt, const TextOptions& options = {}, const OnText& on_text = {}) const;
  /// The same of a prompt that is tokens already; return_full_text has no effect.
  GeneratedText write(std::span<const int64_t> prompt_ids, const TextOptions& options = {},
                      const OnText& on_text = {}) const;
  /// What generate() is called with. Throws Error for do_sample = false with a temperature.
  GenerateOptions options(const TextOptions& options = {}) const;

 private:
  GeneratedText write_after(std::string_view prefix, std::span<const int64_t> prompt_ids, const TextOptions& options,
                            const OnText& on_text) const;
  models::Loaded loaded_;  // empty where the model is borrowed
  const models::Model* model_;
  const text::Tokenizer *tokenizer_, *source_tokenizer_;
  GenerateOptions defaults_;
};

/// Ends a streamed text at the first of the stop strings, which is not shown: what may be its beginning is held back.
class StopFilter {
 public:
  /// Throws Error for an empty stop string.
  explicit StopFilter(std::vector<std::string> stops);
  /// The part of the text so far that no stop string can begin in.
  std::string feed(std::string_view piece);
  /// What was held back, at the end of the text.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace attn::generate
#pragma GCC visibility pop
