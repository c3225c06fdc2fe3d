// The whole contract between ordinary C++ and SIMD code: argument structs and a table of function pointers.
//
// Words. A *panel* is up to `panel` rows (a row is one query of one head) that sit in SIMD lanes; `width` is the number
// of lanes in use, a multiple of `lanes`. A *tile* is panel x keys, stored [key][width]. `acc` is the type of
// arithmetic: float, or double for float64 inputs. Scores come as s = log2(e) / 2 * score, and a weight is 2^(2 (s -
// reference)). Bit r of a lane mask is row r. Kernels check nothing. All scratch they are given is 64-byte aligned;
// user memory is aligned to its element only.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace attn::kernels {

/// Storage types; the values are those of attn::DType.
enum Element : int { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

constexpr int kMaxWidth = 64;    // lanes in the widest panel: the bits of a lane mask
constexpr int kMaxDepth = 1024;  // D and Dv

/// Rows in user memory <-> dense scratch. Element j of row r is at row[r] + j * stride elements of `type`.
struct RowsArgs {
  void* const* row;
  int64_t rows;
  int64_t stride;
  int type;
  int64_t n;               // elements a row
  double scale;            // every element is multiplied by it
  const void* lane_scale;  // acc [rows], multiplied as well; null = none
  void* dense;
  int64_t dense_stride;  // layout of `dense`: see each function
  bool finite_only;      // non-finite elements become 0
};

struct ScoresArgs {
  const void* query;  // from pack_query
  int width, rows;
  const void* keys;    // operand rows: see key_operand
  int64_t key_stride;  // elements
  int64_t count, depth;
  double scale;    // applied here exactly if not applied by pack_query (scale_in_scores)
  double highest;  // larger scores become this; infinity = no limit
  void* scores;    // acc [count][width]
  void* maximum;   // acc [width], raised to the max over the keys; null = not wanted
};

struct FusedArgs {
  ScoresArgs in;          // in.scores is not written
  const void* reference;  // acc [width]
  void* sum;              // acc [width], += weights
  void* weights;          // [count][width] in the weight format
};

struct TransformArgs {
  void* scores;  // acc [count][width], in place
  int width;
  int64_t count;
  double softcap;        // in the unit of scores; 0 = none
  const void* bias;      // acc [count][width] in the unit of scores; null = none
  const void* slope;     // acc [width], in the unit of scores; null = none
  const void* position;  // acc [width]: p_i minus the key of row 0 of the tile
  uint64_t* allowed;     // [count] lane masks, narrowed by bias = -infinity; null = all
  void* factor;          // acc [count][width]: d softcap / d score; null = not wanted
  void* maximum;         // acc [width], raised to the max over the keys; null = not wanted
};

struct SoftmaxArgs {
  const void* scores;  // acc [count][width]
  int width;
  int64_t count;
  const void* reference;  // acc [width]; -infinity counts as 0
  void* sum;              // acc [width], += weights before dropout; null = not wanted
  const uint64_t* keep;   // [count] lane masks of dropout; null = none
  double keep_scale;
  void* weights;  // [count][width] in the weight format; may be `scores` where that is acc
};

struct ValuesArgs {
  const void* weights;  // [count][width] in the weight format
  int width, rows;
  const void* values;    // operand rows: see value_operand
  int64_t value_stride;  // elements
  int64_t count, depth;
  void* out;  // accumulator: acc [depth][width], or [rows][depth_padded] for row-major kernels
};

struct GradArgs {
  ScoresArgs in;            // dP: keys = values, query = dout; in.scores is not written
  const void* weights;      // acc [count][width]: P
  const void* delta;        // acc [width]
  const uint64_t* allowed;  // [count]; null = all
  const uint64_t* keep;     // [count]; null = none
  double keep_scale;
  const void* factor;   // acc [count][width]; null = none
  void* weights_outer;  // dropped P in the outer format [count][width]; may be `weights` where that is acc
  void* ds;             // acc [count][width]: dS before the softcap factor; null = not wanted
  void* ds_values;      // dS in the weight format
  void* ds_outer;       // dS in the outer format; unused where the weight format serves
};

struct OuterPanel {
  const void* weights;  // outer format [count][width]
  int width, rows;
  const void* x;  // from pack_outer: rows x depth
};

struct OuterArgs {
  const OuterPanel* panels;  // added one after the other
  int panel_count;
  int64_t count;
  int64_t x_stride;  // padded depth
  void* out;         // acc [count][x_stride], +=
};

/// Two states of `rows` rows over disjoint keys. A state is the normalised output, and the sum of 2^(2 s) as
/// sum * 2^(2 reference); sum = 0 is the empty state. The pair keeps what a rounded lse of large scores would lose.
struct MergeArgs {
  void* out;          // acc [rows][stride]: becomes the output of the union
  double* reference;  // [rows], in the unit of scores
  double* sum;
  const void* out_b;
  const double* reference_b;
  const double* sum_b;
  int64_t rows, depth;
  int64_t stride;  // a multiple of `lanes`
};

struct MaskArgs {
  const void* const* row;  // bytes of a boolean mask, one pointer a row
  int rows;
  int64_t keys;       // at most 64
  uint64_t* allowed;  // [keys] lane masks: bit r is set where row[r][key] != 0
};

struct DropoutArgs {
  uint64_t seed;
  const int64_t* query;  // [width] i
  const int64_t* head;   // [width] h
  int64_t batch;
  int64_t first_key, count;
  uint64_t threshold;  // a word below it drops the weight
  int width;
  uint64_t* keep;  // [count]
};

/// One arithmetic: f32, f64 or bf16 dot products, with rows in lanes or (few) row-major for decode.
struct TileKernels {
  const char* name;
  int lanes;  // of acc in a vector
  int panel;  // widest panel
  int acc_bytes;
  int operand;  // Element in which keys and values are consumed
  int operand_bytes;
  int query_bytes;       // of an element of the packed query
  int key_pair;          // 2: weights and values are interleaved by pairs of keys
  int depth_multiple;    // keys are consumed in steps of so many d; pack_keys pads with zeros
  bool row_major;        // accumulators are [rows][depth]
  bool scale_in_scores;  // pack_query leaves the query unscaled
  bool values_in_place;  // values may be rows of user memory of type `operand`, stride 1
  int weight_bytes;      // of one weight

  void (*pack_query)(const RowsArgs&);    // -> the layout that `scores` wants
  void (*pack_panel)(const RowsArgs&);    // -> acc [n][dense_stride]: transposed, lanes >= rows are 0
  void (*unpack_panel)(const RowsArgs&);  // acc [n][dense_stride] -> rows
  void (*unpack_out)(const RowsArgs&);    // accumulator -> rows
  void (*load_rows)(const RowsArgs&);     // -> acc [rows][dense_stride], columns from n on are 0
  void (*store_rows)(const RowsArgs&);    // acc [rows][dense_stride] -> rows
  void (*pack_keys)(const RowsArgs&);     // -> operand rows for `scores`
  void (*pack_values)(const RowsArgs&);   // -> operand rows for `values`
  void (*pack_outer)(const RowsArgs&);    // -> x of `outer`
  int64_t (*out_index)(int64_t d, int64_t row, int64_t depth, int64_t stride);  // of an element of the accumulator
  bool (*all_finite)(const RowsArgs&);
  void (*dot_rows)(const RowsArgs& a, const RowsArgs& b, double* sums);  // sums[r] = <a_r, b_r>, rows of one type

  void (*scores)(const ScoresArgs&);
  bool (*scores_softmax)(const FusedArgs&, double limit);  // false: some maximum exceeds reference + limit: redo
  void (*transform)(const TransformArgs&);
  void (*softmax)(const SoftmaxArgs&);
  void (*values)(const ValuesArgs&);
  bool (*update)(void* reference, const void* maximum, void* sum, void* alpha, int width, double limit);
  bool (*exceeds)(const void* reference, const void* maximum, int rows,
                  double limit);  // some maximum > reference + limit
  void (*rescale)(void* out, const void* alpha, int width, int rows, int64_t depth);
  void (*inverse)(const void* sum, void* inverse, int width);  // 1 / sum, 0 for an empty row
  void (*merge)(const MergeArgs&);

  void (*scores_probabilities)(const ScoresArgs&, const void* lse,
                               void* weights);  // acc weights, lse in the unit of scores
  void (*probabilities)(const SoftmaxArgs&);    // reference = lse
  void (*grad)(const GradArgs&);
  void (*outer)(const OuterArgs&);
  void (*dropout)(const DropoutArgs&);
  void (*mask)(const MaskArgs&);
};

struct ElementKernels;  // elements_table.h

/// What one instruction set offers; null where it has no such kernels.
struct Isa {
  const char* name;
  const TileKernels* f32;
  const TileKernels* f32_few;
  const TileKernels* f32_few_bf16;  // the same on 16-bit keys and values, widened on the way
  const TileKernels* f32_few_f16;
  const TileKernels* f64;
  const TileKernels* bf16;
  const TileKernels* bf16_few;
  const ElementKernels* f32_elements;
  const ElementKernels* f64_elements;
};

extern const Isa isa_baseline;
extern const Isa isa_avx2;
extern const Isa isa_avx512;
extern const Isa isa_avx512_bf16;
extern const Isa isa_neon;

}  // namespace attn::kernels
