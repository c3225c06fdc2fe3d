// text: from text to token ids and back.
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

/// What a model is given for one text or two.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> types;  ///< token types: 0 for the first text, 1 for the second, as the tokenizer has it
};

/// What a tokenizer's files say of lengths. Nothing is cut or filled up unless the caller asks for it.
struct Lengths {
  std::optional<int64_t> longest;  ///< tokens with those that stand around a text; the rest is cut off
  bool cuts_left = false;          ///< the beginning is cut off, not the end
  std::optional<int64_t> padding;  ///< the id that fills shorter texts up
  int64_t padding_type = 0;
  bool pads_left = false;
  int64_t padded = 0;    ///< every text to so many tokens; 0 = to the longest of a batch
  int64_t multiple = 0;  ///< that length rounded up to a multiple; 0 = as it is
};

/// Texts of one length.
struct EncodedBatch {
  int64_t sequences = 0, length = 0;  ///< B, L
  std::vector<int64_t> ids, types;    ///< [B, L]
  std::vector<int64_t> mask;          ///< [B, L]: 1 for a token, 0 for what fills up
};

/// Text <-> ids in [0, size()). All methods are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "characters", "bytes", "words"; "bpe", "wordpiece", "unigram", "wordlevel".
  virtual std::string kind() const = 0;
  virtual int64_t size() const = 0;
  /// The text alone, without the special tokens that a model wants around it; those that are spelt out in the text are
  /// recognised. Throws Error that names the byte offset, for text that is not UTF-8 (not for bytes) or, where there is
  /// no token for the unknown, the first character that is not in the vocabulary.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// With what stands around a text, or around and between two, such as [CLS] and [SEP]: what a model was trained on.
  virtual Encoding encode_marked(std::string_view text) const;
  virtual Encoding encode_marked(std::string_view first, std::string_view second) const;
  /// encode_marked() cut to `longest` tokens: of the text, never of what stands around it; of two texts the longer is
  /// cut first. Throws Error where `longest` has no room for what stands around.
  virtual Encoding encode_within(int64_t longest, std::string_view text) const;
  virtual Encoding encode_within(int64_t longest, std::string_view first, std::string_view second) const;
  /// Ids outside the vocabulary are an Error. Special tokens are left out. Bytes may be cut inside a character: the
  /// pieces of a TextStream add up.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The id of a token by its content, such as "[MASK]" or "</s>".
  virtual std::optional<int64_t> find(std::string_view token) const;
  /// True for tokens that are no text, such as [CLS].
  virtual bool is_special(int64_t id) const;
  virtual Lengths lengths() const;
  /// One token as a person reads it, for labels: whitespace and control characters made visible, always valid UTF-8.
  virtual std::string label(int64_t id) const = 0;
  /// JSON that load_tokenizer() takes.
  virtual std::string to_json() const = 0;

  /// A decode() that is given its ids one at a time. The tokenizer must outlive it.
  class Decoding {
   public:
    virtual ~Decoding() = default;
    /// What is certain by now; all pieces and finish() add up to decode() of all ids.
    virtual std::string push(int64_t id) = 0;
    virtual std::string finish() = 0;
  };
  virtual std::unique_ptr<Decoding> decoding() const;
};

/// encode_marked() of each text, cut and filled up to one length as the tokenizer's file says, or, but for the side
/// that is cut, `lengths`. Throws Error where nothing says what fills up, and as encode_within() does.
EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          const std::optional<Lengths>& lengths = {});

/// Text that appears token by token. The tokenizer must outlive it.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer);
  /// What is added to the text, in whole characters; "" while one is incomplete. All pieces and finish() add up to
  /// decode() of all ids. Bytes that no character begins with pass as they are, which only the kind "bytes" can give.
  std::string push(int64_t id);
  /// What was held back. The stream begins anew.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::unique_ptr<Tokenizer::Decoding> decoding_;
  std::string held_;
};

/// One token a Unicode character that occurs in `text`, in order of code point. Throws Error for empty or non-UTF-8
/// text.
std::unique_ptr<Tokenizer> characters_of(std::string_view text);
/// 256 tokens, any input.
std::unique_ptr<Tokenizer> bytes();

struct WordOptions {
  int64_t min_count = 2;      ///< rarer words are <unk>
  int64_t max_words = 50000;  ///< the most frequent ones
  bool lower_case = true;     ///< Unicode case folding
};
/// Words and single punctuation marks; 0 is <pad>, 1 is <unk>, then by falling frequency, ties by bytes. A word is a
/// run of letters, digits and their accents, with apostrophes inside; each other character but spaces is a token.
/// decode() puts spaces between words. Throws Error for text that is not UTF-8, and if no word is frequent enough.
std::unique_ptr<Tokenizer> words_of(std::span<const std::string> texts, const WordOptions& options = {});

/// From what to_json() gave, or from a tokenizer.json of Hugging Face's tokenizers, with the ids that those give;
/// `source` is the name that errors use. Hostile input is an Error.
std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& source);
/// From a SentencePiece model (tokenizer.model, spiece.model), unigram or bpe.
std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const std::string& source);
/// GPT-2's two files: tokens and ids in JSON, and a merge a line (vocab.json or encoder.json, merges.txt or vocab.bpe).
std::unique_ptr<Tokenizer> load_gpt2(std::string_view encoder_json, std::string_view merges, const std::string& source);
/// BERT's vocab.txt, a token a line.
std::unique_ptr<Tokenizer> load_wordpiece(std::string_view vocab_txt, bool lower_case, const std::string& source);

/// The tokenizer of a model's folder, as transformers' AutoTokenizer makes it of tokenizer.json or the older files, of
/// tokenizer_config.json, special_tokens_map.json and added_tokens.json, and of the class or family that the folder
/// names (docs/tokenizers.md); or of one file, a tokenizer.json or a SentencePiece model. Throws Error that names file,
/// field and value of what is not read or contradicts itself, what was looked for, or what the path is instead.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);
/// That of a folder; null where there is none of these files.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& folder);

struct TrainingOptions {
  std::string kind = "bpe";   ///< byte-level as GPT-2's; "wordpiece" as BERT's; "unigram" as T5's
  int64_t vocab_size = 8000;  ///< at most, with special tokens and characters
  int64_t min_count = 2;      ///< neighbours that are rarer never merge; not for unigram
  bool lower_case = true;     ///< of wordpiece
};
/// Learns a vocabulary; to_json() is then a tokenizer.json that Hugging Face's tokenizers load too. Throws Error for
/// text that is not UTF-8, for texts without words, and where `vocab_size` has no room for the characters of the texts.
std::unique_ptr<Tokenizer> train_tokenizer(std::span<const std::string> texts, const TrainingOptions& options = {});

/// Throws Error with the byte offset of the first malformed sequence.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace attn::text
#pragma GCC visibility pop
