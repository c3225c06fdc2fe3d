// text: tokenizers, which turn text into the token ids that a model reads, and token ids back into text.
//
// ```cpp
// #include <cstdio>
// #include "attn/text.h"
// int main() {
//   const std::vector<std::string> texts = {"the cat sat on the mat", "the cats sat on the mats"};
//   const auto tokenizer = attn::text::train_tokenizer(texts, {.kind = "wordpiece", .vocab_size = 40});
//   const attn::text::Encoding encoding = tokenizer->encode("The cats sat.");
//   for (const int64_t id : encoding.ids) std::printf("%s ", tokenizer->label(id).c_str());
//   std::printf("\n%s\n", tokenizer->decode(encoding.ids).c_str());
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

struct EncodeOptions {
  /// Adds the special tokens that the model was trained with, such as [CLS] text [SEP].
  bool add_special_tokens = true;
  /// The largest number of tokens in the result, special tokens included; 0 = no truncation. Truncation removes tokens
  /// of the text, never special tokens, on the side that batch_options() names; of two texts the longer loses first.
  int64_t max_length = 0;
};

/// The input of a model for one text or a pair of texts.
struct Encoding {
  std::vector<int64_t> ids = {};  ///< [L], each in [0, vocab_size())
  std::vector<int64_t> token_type_ids =
      {};                  ///< [L]: 0 for the first text, 1 for the second, unless the tokenizer differs
  bool truncated = false;  ///< tokens of the text are missing, because it has more than max_length
};

enum class Side { left, right };

/// How encode_batch() truncates and pads. The names are those of the package `tokenizers`.
struct BatchOptions {
  std::optional<int64_t> max_length = {};  ///< at least 1, as in EncodeOptions; absent: no truncation
  Side truncation_side = Side::right;      ///< where a tokenizer truncates: a caller cannot change it
  std::optional<int64_t> pad_id = {};      ///< the token that fills shorter sequences
  int64_t pad_type_id = 0;                 ///< its token type
  Side padding_side = Side::right;
  int64_t pad_to_length = 0;       ///< the length of every sequence; 0 = that of the longest in the batch
  int64_t pad_to_multiple_of = 0;  ///< rounds the length up to a multiple of this; 0 = no rounding
};

/// B sequences of one length L.
struct EncodedBatch {
  int64_t sequences = 0, length = 0;                   ///< B, L
  std::vector<int64_t> ids = {}, token_type_ids = {};  ///< [B, L]
  std::vector<int64_t> attention_mask = {};            ///< [B, L]: 1 for a token, 0 for padding
};

class [[gnu::visibility("hidden")]] TokenDecoding;

/// Converts text to token ids and token ids to text. All methods are const, and threads may call them at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "characters", "bytes", "words", "bpe", "wordpiece", "unigram" or "wordlevel".
  virtual std::string kind() const = 0;
  /// Ids are in [0, vocab_size()).
  virtual int64_t vocab_size() const = 0;

  /// Encodes one text. Throws Error if the text is not UTF-8 (the kind "bytes" takes any bytes), if the tokenizer has
  /// neither a token for a part of it nor a token for unknown text, and if max_length is negative or leaves no room
  /// for the special tokens.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Encodes two texts as one sequence, such as [CLS] first [SEP] second [SEP]. Throws Error as encode() does.
  Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;
  /// The ids of the text alone: no special tokens are added, and nothing is truncated. The content of a special token,
  /// such as "[MASK]", is that token where the text contains it. Throws Error as encode() does.
  virtual std::vector<int64_t> encode_ids(std::string_view text) const = 0;

  /// The text of these ids, without special tokens. Throws Error for an id outside [0, vocab_size()). The kind "bytes"
  /// gives the bytes as they are, which need not be UTF-8.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The id of the token with this content, such as "[MASK]" or "</s>"; absent if there is none.
  virtual std::optional<int64_t> token_to_id(std::string_view token) const;
  /// True for a token that is not text, such as [CLS].
  virtual bool is_special(int64_t id) const;
  /// What the tokenizer's files say about truncation and padding. Only encode_batch() applies them.
  virtual BatchOptions batch_options() const;
  /// One token for display, always valid UTF-8: whitespace and control characters are shown as visible characters.
  /// Throws Error for an id outside [0, vocab_size()).
  virtual std::string label(int64_t id) const = 0;
  /// The tokenizer as JSON, which load_tokenizer() reads.
  virtual std::string to_json() const = 0;

 private:
  friend class TextStream;
  /// Joins the ids of one text, or of two if `second` is not null, and adds special tokens if the caller wants them.
  virtual Encoding post_process(const std::vector<int64_t>& first, const std::vector<int64_t>* second,
                                bool add_special_tokens) const;
  virtual std::unique_ptr<TokenDecoding> decoding() const;
  Encoding truncate_and_join(std::vector<int64_t> first, std::vector<int64_t>* second,
                             const EncodeOptions& options) const;
};

/// Encodes each text with its special tokens, and truncates and pads all of them to one length. Absent `options` are
/// tokenizer.batch_options(). Throws Error if pad_id is absent or no token, if max_length is less than 1, if a text is
/// longer than pad_to_length, and as encode() does.
EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          const std::optional<BatchOptions>& options = {});

/// A text of words, and where they are among its tokens.
struct EncodedWords {
  std::vector<int64_t> ids = {};      ///< [L]
  std::vector<int64_t> word_of = {};  ///< [L]: the word of each token, from 0; -1 for special tokens
  bool is_whole = false;   ///< without special tokens these are the ids of the words with spaces between them
  bool truncated = false;  ///< the last tokens are missing, because the text has more than max_length
};
/// Encodes a text that is given word by word, for labels of words. Each word is encoded alone, after a space where the
/// tokenizer keeps spaces in tokens; truncation removes the last tokens. Throws Error for no words and as encode()
/// does.
EncodedWords encode_words(const Tokenizer& tokenizer, std::span<const std::string> words,
                          const EncodeOptions& options = {});

/// Decodes token by token, for text that is printed while a model generates it. The pieces of push() and finish()
/// together are equal to decode() of all ids. The tokenizer must outlive the stream.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer);
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();
  /// The text that this token adds, in whole characters. The stream holds back what a later token can still change,
  /// such as the first bytes of a character; it is then part of a later piece. Only the kind "bytes" can give bytes
  /// that are not UTF-8. Throws Error for an id outside [0, vocab_size()).
  std::string push(int64_t id);
  /// The text that the stream held back. Afterwards the stream is empty, and can decode another text.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::unique_ptr<TokenDecoding> decoding_;
  std::string held_;
};

/// A tokenizer with one token for every Unicode character of `text`, in the order of the code points. Throws Error if
/// the text is empty or not UTF-8.
std::unique_ptr<Tokenizer> characters_of(std::string_view text);
/// A tokenizer with 256 tokens, one for each byte, which encodes any input.
std::unique_ptr<Tokenizer> bytes();

struct WordOptions {
  int64_t min_count = 2;      ///< a word that occurs less often is <unk>
  int64_t max_words = 50000;  ///< the vocabulary holds the most frequent words
  bool lower_case = true;     ///< applies Unicode case folding
};
/// A tokenizer whose tokens are words and single punctuation marks. Id 0 is <pad>, id 1 is <unk>; the others follow by
/// falling frequency, and by their bytes where frequencies are equal. A word is a run of letters, digits and their
/// accents, which may contain apostrophes; each other character except spaces is a token. decode() writes spaces
/// between words. Throws Error if a text is not UTF-8, and if no word occurs min_count times.
std::unique_ptr<Tokenizer> words_of(std::span<const std::string> texts, const WordOptions& options = {});

/// Reads what to_json() returned, or a tokenizer.json of the package `tokenizers`, and gives the same ids as that
/// package. Error messages name `source`. Throws Error for malformed, contradictory and oversized input.
std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& source);
/// Reads a SentencePiece model (tokenizer.model, spiece.model) of type unigram or bpe. Throws Error as
/// load_tokenizer().
std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const std::string& source);
/// Reads GPT-2's two files: tokens with their ids in JSON (vocab.json or encoder.json), and one merge per line
/// (merges.txt or vocab.bpe). Throws Error as load_tokenizer().
std::unique_ptr<Tokenizer> load_gpt2(std::string_view encoder_json, std::string_view merges, const std::string& source);
/// Reads BERT's vocab.txt, which has one token per line. Throws Error as load_tokenizer().
std::unique_ptr<Tokenizer> load_wordpiece(std::string_view vocab_txt, bool lower_case, const std::string& source);

/// Opens the tokenizer of a model folder as transformers' AutoTokenizer does: from tokenizer.json or the older
/// vocabulary files, tokenizer_config.json, special_tokens_map.json and added_tokens.json, for the tokenizer class or
/// model family that the folder names (docs/tokenizers.md). `path` may also be a single tokenizer.json, SentencePiece
/// model or GGUF file. Throws Error with file, field and value for what is not supported or contradicts itself; if
/// `path` holds no tokenizer, Error names the files that are missing, or the format that the path has instead.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);
/// As open_tokenizer() of a folder, but returns null if the folder has no file of a tokenizer.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& folder);

struct TokenizerTrainingOptions {
  std::string kind = "bpe";   ///< "bpe" (byte-level, as GPT-2), "wordpiece" (as BERT) or "unigram" (as T5)
  int64_t vocab_size = 8000;  ///< the largest number of tokens, special tokens and single characters included
  int64_t min_count = 2;      ///< pairs of tokens that occur less often do not merge; "unigram" ignores it
  bool lower_case = true;     ///< for "wordpiece" alone
};
/// Learns a vocabulary from texts. to_json() of the result is a tokenizer.json that the package `tokenizers` reads too.
/// Throws Error if a text is not UTF-8, if the texts contain no word, and if vocab_size is too small for the special
/// tokens and the characters of the texts.
std::unique_ptr<Tokenizer> train_tokenizer(std::span<const std::string> texts,
                                           const TokenizerTrainingOptions& options = {});

/// Throws Error with the byte offset of the first sequence that is not UTF-8. The message names `source`.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace attn::text
#pragma GCC visibility pop
