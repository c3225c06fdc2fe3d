// classes: transformers' tokenizer classes of the supported model families. A class builds its own pipeline around the
// vocabulary of a folder. The general class takes the pipeline of tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "text/tokenizer_config.h"

namespace attn::text {

/// The contents of a vocabulary file, as in a tokenizer.json.
struct VocabularyFile {
  io::Json vocab = {}, merges = io::Json::array();
  std::string charsmap = {};  ///< in base64; "" if the file has none
};

/// The id of the token with this content. Throws Error if there is none.
using IdOf = std::function<int64_t(const std::string& content)>;

struct TokenizerClass {
  const char* names;  ///< the names in transformers, separated by spaces
  const char* file;   ///< the vocabulary file; "vocab.json" comes with a file of merges
  bool has_types;     ///< the model reads token types unless the folder overrides it
  bool pads_left;
  /// Changes the vocabulary of a SentencePiece model; null if the class does not.
  void (*from_pieces)(VocabularyFile& source, TokenizerConfig& config);
  /// Builds a tokenizer.json without added tokens and post-processor, and sets the defaults of `config`. Null for the
  /// general class.
  io::Json (*build)(TokenizerConfig& config, VocabularyFile source);
  /// Builds the post-processor; null if it is that of tokenizer.json.
  io::Json (*build_post_processor)(const TokenizerConfig& config, const IdOf& id_of);

  bool is_general() const { return build == nullptr; }
};

/// The class with this name, with or without the suffix "Fast". Names that transformers does not know give the general
/// class. Throws Error "SOURCE: tokenizer_class is ..." for classes of transformers that are not supported.
const TokenizerClass& class_of_name(const std::string& name, const std::string& source);
const TokenizerClass& general_class();
/// The class that transformers' AutoTokenizer chooses; null if both names are empty. `name` is the tokenizer_class of
/// tokenizer_config.json or, without it, of config.json. `family` is the model_type of config.json. `is_byte_level` is
/// about tokenizer.json.
const TokenizerClass* choose_class(const std::string& name, const std::string& family, bool is_byte_level,
                                   const std::string& source);

/// A post-processor that puts bos_token before each text if `begin`, and eos_token after it if `end`.
io::Json bos_eos_template(const TokenizerConfig& config, bool begin, bool end, const IdOf& id_of);

}  // namespace attn::text
