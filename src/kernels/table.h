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

/// Storage types; the values are those of attn::DType. kInt8 rows are those of a quantized KV cache: n whole numbers,
/// and after them the row's scale, a float. Only kernels that say so take them.
enum Element : int { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3, kInt8 = 7 };

constexpr int kMaxWidth = 64;          // lanes in the widest panel: the bits of a lane mask
constexpr int kMaxBlockKeys = 512;     // in the longest block of any kernel set
constexpr int kMaxGradientPanels = 8;  // in the largest group of any kernel set's backward

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
  bool far;              // rows are taken to be beyond the second-level cache: they are prefetched
};

/// How one side of a product takes rows of user memory: in place, or packed. What a packed row looks like is
/// the kernels' own business.
struct Operand {
  int row_step;  // rows enter in groups of so many: what is handed over begins at a multiple of it
  /// True if rows of n elements serve as they are: `stride` elements apart inside a row, `row_stride` from row to row.
  bool (*in_place)(int type, int64_t n, int64_t stride, int64_t row_stride);
  void (*pack)(const RowsArgs&);              // dense_stride = stride(n)
  int64_t (*stride)(int64_t n);               // between packed rows, an argument of the products
  int64_t (*bytes)(int64_t rows, int64_t n);  // of packed rows, and where row `rows` begins, a multiple of row_step
};

struct ScoresArgs {
  const void* query;  // from pack_query
  int width, rows;
  const void* keys;  // operand `key_rows`
  int64_t key_stride;
  int64_t count, depth;
  double scale;      // the one pack_query was given: one of the two applies it
  double highest;    // larger scores become this; infinity = no limit
  void* scores;      // acc [count][width]
  void* maximum;     // acc [width], raised to the max over the keys; null = not wanted
  bool from_memory;  // keys are taken to be in no cache: kernels of few rows prefetch those
};

struct ValuesArgs {
  const void* weights;  // [count][width] in the weight format
  int width, rows;
  const void* values;  // operand `value_rows`
  int64_t value_stride;
  int64_t count, depth;
  void* out;         // the panel's accumulator
  bool from_memory;  // as in ScoresArgs
};

/// Where the sums of a dense product go: out = sums (+ bias) (+ addend).
struct ProductResult {
  void* out;  // user memory
  int64_t out_stride;
  int out_type;
  const void* bias;    // acc, one for each column; null = none
  const void* addend;  // rows of out_type, which may be those of `out`; null = none
  int64_t addend_stride;
};

/// Dense products on vectors, see products.kernel.h.
struct PanelProductArgs {
  const void* a;                    // of the kernels' `type`; `key_step` neighbours in the sum are one step
  int64_t row_stride, term_stride;  // between rows, and between steps
  int64_t rows, terms;
  const void* panel;  // as pack_query makes it; of float32 kernels also in a 16-bit type
  int panel_type;
  int width;
  void* sums;            // acc [rows][sums_stride]
  int64_t sums_stride;   // a multiple of `lanes`
  bool add;              // to what `sums` holds
  ProductResult result;  // [result_rows, columns]; without `out` the sums stay where they are
  int64_t result_rows, columns;
};

struct FusedArgs {
  ScoresArgs in;            // in.scores is not written
  const void* reference;    // acc [width]
  const uint64_t* allowed;  // [count] lane masks; null = all, as always where kernels do not go `by_sums`
  void* sum;                // acc [width], += weights
  void* weights;            // [count][width] in the weight format
  const ValuesArgs* late;   // a product to be done on the way, if the kernels have `late_values`; null = none
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

struct GradArgs {
  ScoresArgs in;            // dP: keys = values, query = dout; in.scores is not written
  const void* weights;      // acc [count][width]: P
  const void* delta;        // acc [width]
  const uint64_t* allowed;  // [count]; null = all
  const uint64_t* keep;     // [count]; null = none
  double keep_scale;
  const void* factor;   // acc [count][width]; null = none
  void* weights_outer;  // dropped P in the outer format; may be `weights` where there is one format
  void* ds;             // acc [count][width]: dS before the softcap factor; null = not wanted
  void* ds_values;      // dS in the weight format
  void* ds_outer;       // dS in the outer format; unused where there is one format
};

struct OuterPanel {
  const void* weights;  // outer format
  int width, rows;
  const void* x;  // operand `outer_rows`: rows x depth
};

struct OuterArgs {
  const OuterPanel* panels;  // added one after the other
  int panel_count;
  int64_t count;
  int64_t x_stride;  // of operand `outer_rows`
  void* out;         // acc [count][x_stride], +=
};

/// What the non-finite elements x of rows contribute, which the products met as 0: a masked pair must not meet them.
///   values_non_finite   the panel's accumulator[lane][d] += w[key][lane] x[key][d]
///   outer_non_finite    out[key][d] += w[key][lane] x[lane][d], out as in OuterArgs, w in the outer format
struct NonFiniteArgs {
  RowsArgs x;
  const void* weights;
  int width, rows;          // of the panel
  int64_t count;            // keys
  const uint64_t* allowed;  // [count]; null = all
  void* out;
  int64_t out_stride;  // of outer_non_finite
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

/// Sums over the keys of a tile, of each row.
struct RowSumsArgs {
  void* tile;  // acc [count][width]: scores, which become weights
  int width, rows;
  int64_t count;
  const void* lse;       // acc [width], in the unit of scores
  const void* position;  // acc [width]: p_i minus the tile's first key; null = no distances
  void* sums;            // acc [4][width]: of w, of w (s - lse), of w^2, of w |p_i - key|
  void* maximum;         // acc [width]: the largest w, 0 if none is above; null = not wanted
  void* place;           // acc [width]: its key in the tile
};

/// dS of what is a function of P: P (g - delta), where g = entropy (lse - s) + square w + other.
struct StatisticsGradArgs {
  const void* scores;  // acc [count][width]; -infinity where a pair is masked
  int width;
  int64_t count;
  const void* lse;      // acc [width], in the unit of scores
  const void* entropy;  // acc [width]
  const void* square;   // acc [width]
  const void* other;    // acc [count][width]; null = nothing
  const void* delta;    // acc [width]
  const void* factor;   // these as in GradArgs
  void *ds, *ds_values, *ds_outer;
};

/// Sums over the rows of a tile, of each key.
struct ColumnSumsArgs {
  const void* weights;  // acc [count][width]
  int width;
  int64_t count;
  const void* place;  // acc [width]: a number a row
  void* sum;          // acc [count]
  void* moment;       // acc [count]: of w times the row's number; null = not wanted
};

struct MaskedSumsArgs {
  const void* weights;  // acc [count][width]
  int width;
  int64_t count;
  const uint64_t* mask;  // [count] lane masks
  void* sum;             // acc [width]
};

struct LabelSumsArgs {
  const void* weights;  // acc [count][width]
  int width;
  int64_t count;
  const int32_t* label;  // [count]; negative = none
  int32_t first_label;
  const void* factor;  // acc [count], multiplies w; null = 1
  bool largest;        // in place of sums
  void* out;           // acc [labels][width], from first_label on: what is there takes part
};

struct AboveArgs {
  const void* weights;  // acc [count][width]
  int width;
  int64_t count;
  const void* threshold;  // acc [width]
  uint64_t* above;        // [count] lane masks
};

/// One arithmetic: f32, f64 or bf16 dot products, with rows in lanes or (few) row-major for decode. Decode gives a row
/// the bits that prefill gives it, so both have the same blocks and chunks.
struct TileKernels {
  const char* name;
  int lanes;  // of acc in a vector
  int panel;  // widest panel
  int acc_bytes;
  int type;                      // the Element in which keys and values enter the products
  int unit_type;                 // the Element that the multiply-add unit takes
  int score_products;            // of that unit, for one product of scores or dP,
  int sum_products;              // and for one of the others
  int least_rows;                // fewer are quicker with the float32 kernels, if they need not have the bits of these
  int least_gradient_rows;       // the same of the backward
  const TileKernels* any_order;  // of a decode variant: a quicker one for rows that need not have its bits, or null
  bool own_bits;                 // rows get other bits than from the decode variant of their type
  bool late_values;  // scores_softmax does a product with values, of another tile, on the way: matrix units would wait
  bool by_sums;      // scores_softmax takes lane masks, and too low a reference shows in its sums: see online_softmax.h
  bool bounded;      // products take numbers of a range alone: what is said of non-finite ones holds for all others

  // How a schedule should cut a call.
  int group_panels;       // panels that share one pass over the keys
  int wide_group_panels;  // the same where the pass packs keys and values first
  int gradient_panels;    // the same in the backward, which sums dK and dV of a pass
  int64_t block_keys;     // keys in a block of the forward,
  int64_t gradient_keys;  // and of the backward
  int64_t chunk_keys;     // keys that a thread takes on where rows are few
  int tile_step;          // a tile begins at a multiple of so many keys
  int key_step;           // and has a multiple of so many, where the block has

  // Layouts.
  Operand key_rows;     // of `scores`: keys, or values for dP
  Operand value_rows;   // of `values`: values, or keys for dQ
  Operand outer_rows;   // of `outer`: rows of q and dout
  bool one_row_format;  // key_rows and value_rows are one: rows packed for one can be used for the other
  bool one_format;      // scores, weights and the outer format are one: they may share their memory
  int64_t (*query_bytes)(int64_t n, int width);            // of a packed panel of queries
  int64_t (*weights_bytes)(int64_t keys, int width);       // in either format; also where key `keys` begins
  int64_t (*accumulator_bytes)(int64_t depth, int width);  // of a panel

  // Around the products of a task, which use a state of the processor that its thread's other code may use too; null =
  // they do not. `before` keeps what was there, 64 bytes at a multiple of 64.
  void (*enter)(void* before);
  void (*leave)(const void* before);

  // Rows in and out. dense_stride is the panel's width where nothing else is said.
  void (*pack_query)(const RowsArgs&);    // -> the layout that `scores` wants
  void (*pack_panel)(const RowsArgs&);    // -> acc [n][width]: transposed, lanes >= rows are 0
  void (*unpack_panel)(const RowsArgs&);  // acc [n][width] -> rows
  void (*unpack_out)(const RowsArgs&);    // accumulator -> rows
  void (*load_rows)(const RowsArgs&);     // -> acc [rows][dense_stride], columns from n on are 0
  void (*store_rows)(const RowsArgs&);    // acc [rows][dense_stride] -> rows
  bool (*all_finite)(const RowsArgs&);
  void (*decode_rows)(const RowsArgs&, int type);                        // rows of kInt8 -> `type` [rows][dense_stride]
  void (*dot_rows)(const RowsArgs& a, const RowsArgs& b, double* sums);  // sums[r] = <a_r, b_r>, rows of one type

  void (*multiply_panel)(const PanelProductArgs&);  // of Isa::f32_dense, bf16_dense and f64
  void (*scores)(const ScoresArgs&);
  // false: some maximum exceeds reference + limit, or, `by_sums`, some sum exceeds limit: redo
  bool (*scores_softmax)(const FusedArgs&, double limit);
  void (*transform)(const TransformArgs&);
  void (*softmax)(const SoftmaxArgs&);
  void (*values)(const ValuesArgs&);
  void (*values_non_finite)(const NonFiniteArgs&);
  // `scores` and `values` of heads whose rows are between each other, a panel of each, in the order of memory; null =
  // head by head. All have the same count, depth and strides.
  void (*scores_of_heads)(const ScoresArgs* heads, int count);
  void (*values_of_heads)(const ValuesArgs* heads, int count);
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
  void (*outer_non_finite)(const NonFiniteArgs&);
  void (*dropout)(const DropoutArgs&);
  void (*mask)(const MaskArgs&);

  void (*row_sums)(const RowSumsArgs&);
  void (*column_sums)(const ColumnSumsArgs&);
  void (*masked_sums)(const MaskedSumsArgs&);
  void (*label_sums)(const LabelSumsArgs&);
  void (*above)(const AboveArgs&);
  void (*statistics_grad)(const StatisticsGradArgs&);
};

struct ElementKernels;    // elements_table.h
struct ProductKernels;    // products_table.h
struct LinearKernels;     // linear_table.h
struct QuantizedKernels;  // quantized_table.h

/// What one instruction set offers; null where it has no such kernels.
struct Isa {
  const char* name;
  const TileKernels* f32 = nullptr;
  const TileKernels* f32_few = nullptr;
  const TileKernels* f32_few_bf16 = nullptr;  // the same on 16-bit keys and values, widened on the way
  const TileKernels* f32_few_f16 = nullptr;
  const TileKernels* f32_few_int8 = nullptr;
  const TileKernels* f32_single = nullptr;  // one row that no option touches
  const TileKernels* f32_single_bf16 = nullptr;
  const TileKernels* f32_single_f16 = nullptr;
  const TileKernels* f32_single_int8 = nullptr;
  const TileKernels* f64 = nullptr;
  const TileKernels* bf16 = nullptr;
  const TileKernels* bf16_few = nullptr;
  const TileKernels* f16 = nullptr;
  const TileKernels* f16_forward = nullptr;  // of the forward instead, where weights stay in float16's range
  const TileKernels* f32_parts[3] = {};      // float32 as one, two and three bfloat16 parts
  const TileKernels* f32_dense = nullptr;    // with multiply_panel: dense products on vectors
  const TileKernels* bf16_dense = nullptr;
  const ElementKernels* f32_elements = nullptr;
  const ElementKernels* f64_elements = nullptr;
  const LinearKernels* f32_linear = nullptr;
  const LinearKernels* f64_linear = nullptr;
  const QuantizedKernels* quantized = nullptr;  // weights of 8 and 4 bits
  const ProductKernels* products = nullptr;
};

extern const Isa isa_baseline;
extern const Isa isa_avx2;
extern const Isa isa_avx512;
extern const Isa isa_avx512_bf16;
extern const Isa isa_avx512_vnni;
extern const Isa isa_amx;
extern const Isa isa_neon;

}  // namespace attn::kernels
