// sentencepiece: reads the files of SentencePiece models.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace attn::text {

struct SentencePiece {
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  double score = 0;
  int type = kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  ///< by id
  bool is_unigram, byte_fallback;
  std::string charsmap;  ///< in base64; "" if the model has none
  /// The unknown token, the beginning and the end of a sentence. The id is -1 if there is no such token.
  std::array<int64_t, 3> ids;
  std::array<std::string, 3> names;
};

/// Throws Error as load_sentencepiece() does.
SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& source);
/// The tokenizer.json that encodes as SentencePiece's own library does.
io::Json sentencepiece_json(std::string_view bytes, const std::string& source);

/// The same of a vocabulary that another file holds: byte-pair encoding by scores, with bytes for unknown characters.
io::Json sentencepiece_json(std::vector<SentencePiece> pieces, bool adds_prefix, bool removes_spaces,
                            const std::string& source);

}  // namespace attn::text
