// text: tokenizers, from text to token ids and back.
//
// ```cpp
// #include "attn/text.h"
// using namespace attn;
// int main() {
//   const auto tokenizer = text::characters_of("hello world");  // or text::open_tokenizer("FOLDER")
//   const std::vector<int64_t> ids = tokenizer->encode("hello");
//   return tokenizer->decode(ids) == "hello" ? 0 : 1;
// }
// ```
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core_dtype.h"

#pragma GCC visibility push(default)
namespace attn::text {

/// One encoded text, or pair of texts.
struct Encoding {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> types = {};  ///< token type ids: which text a token belongs to
};

/// Truncation and padding settings of a tokenizer's files. Only encode_batch() applies them.
struct Lengths {
  std::optional<int64_t> longest = {};  ///< maximal length, special tokens included; longer texts are truncated
  bool cuts_left = false;               ///< truncate at the beginning, not at the end
  std::optional<int64_t> padding = {};  ///< id of the padding token
  int64_t padding_type = 0;
  bool pads_left = false;
  int64_t padded = 0;    ///< pad every text to this length; 0 = to the longest of the batch
  int64_t multiple = 0;  ///< round the length up to a multiple; 0 = no rounding
};

/// A batch of encoded texts, padded to one length.
struct EncodedBatch {
  int64_t sequences = 0, length = 0;          ///< B, L
  std::vector<int64_t> ids = {}, types = {};  ///< [B, L]
  std::vector<int64_t> mask = {};             ///< [B, L]: 1 for a token, 0 for padding
};

/// Encodes text to ids in [0, size()) and decodes them. All methods are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "characters", "bytes", "words"; "bpe", "wordpiece", "unigram", "wordlevel".
  virtual std::string kind() const = 0;
  virtual int64_t size() const = 0;
  /// Encodes a text without adding special tokens; special tokens written in the text are recognised. Throws Error with
  /// the byte offset for text that is not UTF-8 (except kind "bytes") and, if there is no unknown token, for the first
  /// character that is not in the vocabulary.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Encodes one text or a pair with the special tokens that the model was trained with, e.g. [CLS] a [SEP] b [SEP].
  virtual Encoding encode_marked(std::string_view text) const;
  virtual Encoding encode_marked(std::string_view first, std::string_view second) const;
  /// encode_marked() truncated to `longest` tokens. Special tokens are kept; of a pair the longer text is truncated
  /// first. Throws Error if `longest` has no room for the special tokens.
  virtual Encoding encode_within(int64_t longest, std::string_view text) const;
  virtual Encoding encode_within(int64_t longest, std::string_view first, std::string_view second) const;
  /// Decodes ids and omits special tokens. Throws Error for ids outside the vocabulary. The result may end inside a
  /// UTF-8 character; TextStream returns whole characters.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The id of a token, such as "[MASK]" or "</s>"; std::nullopt if the vocabulary does not have it.
  virtual std::optional<int64_t> find(std::string_view token) const;
  /// True for special tokens, such as [CLS].
  virtual bool is_special(int64_t id) const;
  /// The truncation and padding settings of the tokenizer's files.
  virtual Lengths lengths() const;
  /// A readable form of one token, for labels: whitespace and control characters are visible, always valid UTF-8.
  virtual std::string label(int64_t id) const = 0;
  /// The tokenizer as JSON, which load_tokenizer() reads.
  virtual std::string to_json() const = 0;

  /// Decodes ids one at a time. Borrows the tokenizer.
  class Decoding {
   public:
    virtual ~Decoding() = default;
    /// The text that this id completes. All pieces and finish() together equal decode() of all ids.
    virtual std::string push(int64_t id) = 0;
    virtual std::string finish() = 0;
  };
  virtual std::unique_ptr<Decoding> decoding() const;
};

/// Encodes a batch with special tokens, truncated and padded by the settings of the tokenizer's files; `lengths`
/// overrides them, except the truncation side. Throws Error if there is no padding token, and as encode_within() does.
EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          const std::optional<Lengths>& lengths = {});

/// Decodes a text token by token, in whole characters. Borrows the tokenizer.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer);
  /// The new whole characters; "" while one is incomplete. All pieces and finish() together equal decode() of all ids.
  /// Bytes that cannot begin a character are returned unchanged; only the kind "bytes" has them.
  std::string push(int64_t id);
  /// The rest. The stream then starts again.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::unique_ptr<Tokenizer::Decoding> decoding_;
  std::string held_;
};

/// A tokenizer with one token per Unicode character of `text`, in order of code points. Throws Error for text that is
/// empty or not UTF-8.
std::unique_ptr<Tokenizer> characters_of(std::string_view text);
/// A tokenizer of bytes: 256 tokens, any input.
std::unique_ptr<Tokenizer> bytes();

struct WordOptions {
  int64_t min_count = 2;      ///< rarer words become <unk>
  int64_t max_words = 50000;  ///< at most so many words, the most frequent
  bool lower_case = true;     ///< Unicode case folding
};
/// A tokenizer of words and punctuation marks: 0 is <pad>, 1 is <unk>, then words by descending frequency, ties by
/// bytes. A word is a run of letters, digits and accents, with apostrophes inside; every other character except spaces
/// is a token. decode() puts spaces between words. Throws Error for text that is not UTF-8, and if no word is frequent
/// enough.
std::unique_ptr<Tokenizer> words_of(std::span<const std::string> texts, const WordOptions& options = {});

/// Loads the result of to_json(), or a tokenizer.json of Hugging Face's tokenizers; the ids are the same as theirs.
/// `source` is the file name that errors show. Throws Error for invalid input.
std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& source);
/// Loads a SentencePiece model (tokenizer.model, spiece.model), unigram or bpe.
std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const std::string& source);
/// Loads GPT-2's two files: tokens with ids as JSON (vocab.json, encoder.json), and one merge per line (merges.txt,
/// vocab.bpe).
std::unique_ptr<Tokenizer> load_gpt2(std::string_view encoder_json, std::string_view merges, const std::string& source);
/// Loads BERT's vocab.txt, one token per line.
std::unique_ptr<Tokenizer> load_wordpiece(std::string_view vocab_txt, bool lower_case, const std::string& source);

/// Opens the tokenizer of a model's folder as transformers' AutoTokenizer does, from tokenizer.json or the older files,
/// tokenizer_config.json, special_tokens_map.json, added_tokens.json and the class or family in the folder
/// (docs/tokenizers.md); or opens one file, a tokenizer.json or a SentencePiece model. Throws Error with file, field
/// and value for what is not supported or contradictory, and with the names it looked for if it finds none.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);
/// The tokenizer of a folder; null if the folder has none of these files.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& folder);

struct TrainingOptions {
  std::string kind = "bpe";   ///< "bpe", byte-level as GPT-2; "wordpiece" as BERT; "unigram" as T5
  int64_t vocab_size = 8000;  ///< at most, special tokens and characters included
  int64_t min_count = 2;      ///< rarer pairs are not merged; not for unigram
  bool lower_case = true;     ///< of wordpiece
};
/// Learns a vocabulary. Its to_json() is a tokenizer.json that Hugging Face's tokenizers load too. Throws Error for
/// text that is not UTF-8, for texts without words, and for a vocab_size that has no room for the characters of the
/// texts.
std::unique_ptr<Tokenizer> train_tokenizer(std::span<const std::string> texts, const TrainingOptions& options = {});

/// Throws Error with the byte offset of the first malformed sequence.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace attn::text
#pragma GCC visibility pop
