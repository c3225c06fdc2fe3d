// sentencepiece: what a SentencePiece model holds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace attn::text {

struct SentencePieces {
  struct Piece {
    enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
    std::string text;
    double score = 0;
    int type = kNormal;
  };
  std::vector<Piece> pieces;  ///< by id
  bool is_unigram, falls_back;
  std::string charsmap;  ///< in base64; "" without one
  /// Of the unknown, the beginning and the end; ids of -1 where there is no such token.
  std::array<int64_t, 3> ids;
  std::array<std::string, 3> names;
};

/// Throws Error as load_sentencepiece() does.
SentencePieces read_sentencepiece(std::string_view bytes, const std::string& source);
/// The tokenizer.json that says what SentencePiece's own library makes of the model.
io::Json sentencepiece_json(std::string_view bytes, const std::string& source);

}  // namespace attn::text
