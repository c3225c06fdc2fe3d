// gguf_blocks: the numbers of GGUF's types.
#pragma once

#include "attn/ops_quantized.h"
#include "io/gguf.h"

namespace attn::models {

/// True for types of blocks with scales.
bool is_quantized(io::GgufType type);
/// Rows of blocks, as whole numbers with scales. The values are those of the file; types of 5 and 6 bits take 8.
ops::QuantizedMatrix quantized_rows(const io::GgufTensor& tensor);
/// Row r of the new matrix is row order[r] of the old one.
void reorder_rows(ops::QuantizedMatrix& w, const std::vector<int64_t>& order);

}  // namespace attn::models
