// classes: the tokenizer classes of transformers that the families use. A class has a pipeline of its own around the
// vocabulary that a folder's files give it; that of tokenizer.json counts where the class is the general one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "text/said.h"

namespace attn::text {

/// What a class is given of a vocabulary's file.
struct Source {
  io::Json vocab = {}, merges = io::Json::array();
  std::string charsmap = {};  ///< in base64; "" without one
};

/// The id of a token that was added.
using IdOf = std::function<int64_t(const std::string& content)>;

struct TokenizerClass {
  const char* names;  ///< in transformers, separated by spaces
  const char* file;   ///< its vocabulary's; of "vocab.json" the merges are beside it
  bool has_types;     ///< token types are given to the model unless the folder says otherwise
  bool pads_left;
  /// Changes what a SentencePiece model gave; null where it stays.
  void (*from_pieces)(Source& source, Said& said);
  /// The fields of a tokenizer.json but for those of added tokens and of the post-processor, null of the general class.
  /// Sets the defaults of `said`.
  io::Json (*build)(Said& said, Source source);
  /// The post-processor, null where it is the file's.
  io::Json (*surround)(const Said& said, const IdOf& id_of);

  bool is_general() const { return build == nullptr; }
};

/// Of a name, with or without "Fast"; names that transformers does not know are of the general class. Throws Error
/// "SOURCE: tokenizer_class is ..." for classes that are not supported.
const TokenizerClass& class_of_name(const std::string& name, const std::string& source);
const TokenizerClass& general_class();
/// By the rules of transformers' AutoTokenizer; null where neither a class nor a family is named. `name` is
/// tokenizer_class of tokenizer_config.json, else of config.json, `family` is config.json's model_type, and `bytes`
/// says whether tokenizer.json is byte-level.
const TokenizerClass* choose_class(const std::string& name, const std::string& family, bool bytes,
                                   const std::string& source);

/// With the tokens of the roles bos_token and eos_token around each text, where asked for.
io::Json begin_and_end(const Said& said, bool begin, bool end, const IdOf& id_of);

}  // namespace attn::text
