// gguf_blocks: the numbers of GGUF's types.
#pragma once

#include <vector>

#include "attn/ops_quantized.h"
#include "io/gguf.h"

namespace attn::models {

/// True for types of blocks with scales.
bool is_quantized(io::GgufType type);
/// Rows of blocks, as whole numbers with scales. The values are those of the file; types of 5 and 6 bits take 8.
ops::QuantizedMatrix quantized_rows(const io::GgufTensor& tensor);
/// Row r of the new matrix is row order[r] of the old one.
void reorder_rows(ops::QuantizedMatrix& w, const std::vector<int64_t>& order);

/// Rows of float32 as blocks of a type, q8_0 or q4_0, or as numbers of f32, f16 or bf16. Rows of blocks are multiples
/// of 32 numbers.
std::vector<char> gguf_content(io::GgufType type, ConstView<2> rows);

}  // namespace attn::models
