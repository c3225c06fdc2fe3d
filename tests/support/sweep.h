// sweep: the table of options and shapes that every check iterates over. A new option is one row in sweep.cpp.
#pragma once

#include <string>
#include <vector>

#include "arrays.h"

namespace attn::test {

struct Dims {
  int64_t B = 1, H = 1, Hk = 1, Lq = 1, Lk = 1, D = 1, Dv = 1;
};

/// One call: inputs, upstream gradients, options and the storage that the options borrow.
struct Case {
  std::string feature;
  DType dtype = DType::float32;
  Dims dims;
  Array<4> q, k, v, dout;
  Array<3> dlse;

  AttentionOptions scalars;  // the options that borrow nothing
  std::vector<int64_t> key_length, query_length, offset, cu_seqlens_q, cu_seqlens_k;
  std::vector<float> alibi_slopes, sink;
  Array<4> mask, bias, blocks;
  Array<3> block_offsets;
  Array<1> block_indices;
  Array<2> query_segment_ids, key_segment_ids;

  AttentionOptions options() const;
  std::string name() const;
};

// ----------------------------------------------------------------------------------------------------------- the table

struct Feature {
  const char* name;
  void (*apply)(Case&, Random&);
};

const std::vector<Feature>& features();
inline int64_t feature_count() { return static_cast<int64_t>(features().size()); }
const Feature& feature_named(const std::string& name);

/// A call with random normal tensors; `q_scale` stretches the logits.
Case make_case(const Feature& feature, const Dims& dims, DType dtype, uint64_t seed, double q_scale = 1);

Array<4> random_mask(Random& random, const Shape<4>& size, double allowed);
/// Gives the blocks as lists in place of a boolean array.
void list_blocks(Case& c);
void add_bias(Case& c, Random& random, const Shape<4>& size);

// -------------------------------------------------------------------------------------------------------------- shapes

/// A shape from the grid: any head width, any lengths, and MHA, GQA or MQA; at most `work` multiply-adds a product.
Dims random_dims(Random& random, double work);

/// Small shapes that put every feature across a tile edge: more than one key block, ragged heads, D != Dv.
std::vector<Dims> small_dims();

}  // namespace attn::test
