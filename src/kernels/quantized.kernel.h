// Products with weights of 8 or 4 bits. quantized_table.h has the meaning of the numbers.
//
// A Code says how an instruction set multiplies codes: W lanes of int32 (Int), each the sum of 4 products a step;
// Codes, the codes of W columns and 4 terms, which load<bits>(p, half) brings, of 4 bits those of either half of the
// bytes; broadcast() of 4 codes of a packed row, which has kBytes for them.
//
// Packed, [..] from the outside in:
//   panel of columns   factors [panel] float; then for each group scales [panel] float16, offsets [panel] float16 if
//                      there are any, codes [terms / 4][panel][4] bytes. Of 4 bits, the low halves of the bytes are of
//                      the first four terms, the high halves of the next four.
//   tile of rows       for each group: what the integer sums begin with [rows] int32, scales [rows] float, scales x sum
//                      of codes [rows] float, codes [terms / 4][rows][kBytes]. The last tile has the rows that are
//                      left.
// Loops of a product: panels, tiles of rows, groups, fours of terms. Integer sums and float sums of tile x panel are in
// registers.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/finish.kernel.h"
#include "kernels/prefetch.h"
#include "kernels/quantized_table.h"

namespace attn::kernels {
namespace {

constexpr int kCodeVectors = 2;  // of a panel: a line of float16 scales on AVX-512
constexpr int kRowNumbers = 3;   // of a row and group, beside its codes
constexpr int64_t kCodesAheadBytes = 8192;

template <class V>
constexpr int kCodePanel = kCodeVectors* V::W;

inline int64_t groups_of(const QuantizedFormat& format) { return format.terms / format.group; }

/// Of a panel's group.
template <class V>
int64_t scale_bytes(const QuantizedFormat& format) {
  return kCodePanel<V> * (format.offsets ? 4 : 2);
}
template <class V>
int64_t code_bytes(const QuantizedFormat& format) {
  return format.group * format.bits / 8 * kCodePanel<V>;
}

template <class V>
int64_t quantized_panel_bytes(const QuantizedFormat& format) {
  return kCodePanel<V> * int64_t{sizeof(float)} + groups_of(format) * (scale_bytes<V>(format) + code_bytes<V>(format));
}

template <class Code>
int64_t quantized_row_bytes(const QuantizedFormat& format) {
  return groups_of(format) * kRowNumbers * 4 + format.terms / 4 * Code::kBytes;
}

// ------------------------------------------------------------------------------------------------------ the columns

/// Where the code of a term and column is in its group, and by how many bits it is shifted.
template <class V>
struct CodePlace {
  CodePlace(int bits, int64_t term, int64_t column)
      : byte((bits == 8 ? term / 4 : term / 8) * kCodePanel<V> * 4 + column * 4 + term % 4),
        shift(bits == 4 && term % 8 >= 4 ? 4 : 0) {}
  int64_t byte;
  int shift;
};

template <class V>
void pack_columns(const PackColumnsArgs& args) {
  const QuantizedFormat& format = args.format;
  const int64_t groups = groups_of(format);
  __builtin_memset(args.packed, 0, static_cast<size_t>(quantized_panel_bytes<V>(format)));
  float* factors = static_cast<float*>(args.packed);
  for (int64_t n = 0; n < args.columns; ++n) factors[n] = args.factors[n];
  auto* at = reinterpret_cast<uint8_t*>(factors + kCodePanel<V>);
  for (int64_t g = 0; g < groups; ++g) {
    uint16_t* scales = reinterpret_cast<uint16_t*>(at);
    uint8_t* codes = at + scale_bytes<V>(format);
    const int64_t first = g * format.group, left = args.terms - first;
    for (int64_t n = 0; n < args.columns; ++n) {
      scales[n] = to_f16(args.scales[n * groups + g]);
      if (format.offsets) scales[kCodePanel<V> + n] = to_f16(args.offsets[n * groups + g]);
      const uint8_t* theirs = args.codes + n * args.terms + first;
      for (int64_t k = 0; k < format.group; ++k) {
        const CodePlace<V> place(format.bits, k, n);
        const int code = k < left ? theirs[k] : format.zero;
        codes[place.byte] = static_cast<uint8_t>(codes[place.byte] | code << place.shift);
      }
    }
    at = codes + code_bytes<V>(format);
  }
}

template <class V>
void unpack_column(const UnpackColumnArgs& args) {
  const QuantizedFormat& format = args.format;
  const float factor = static_cast<const float*>(args.packed)[args.column];
  const auto* at = static_cast<const uint8_t*>(args.packed) + kCodePanel<V> * sizeof(float);
  for (int64_t first = 0; first < args.terms; first += format.group) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(at);
    const uint8_t* codes = at + scale_bytes<V>(format);
    const float scale = from_f16(scales[args.column]);
    const float offset = format.offsets ? from_f16(scales[kCodePanel<V> + args.column]) : 0;
    for (int64_t k = 0; k < format.group && first + k < args.terms; ++k) {
      const CodePlace<V> place(format.bits, k, args.column);
      const int code = codes[place.byte] >> place.shift & (format.bits == 4 ? 15 : 255);
      args.out[first + k] = factor * (scale * static_cast<float>(code - format.zero) + offset);
    }
    at = codes + code_bytes<V>(format);
  }
}

// --------------------------------------------------------------------------------------------------------- the rows

/// Quantizes the terms first .. end - 1 of a row, `group` with padding, whose codes begin at `out`, a block of 4 every
/// `stride` bytes. Returns the scale and the sum of the codes.
template <class V, class Code>
inline void quantize_group(const ConstRow& row, int64_t first, int64_t end, int64_t group, char* out, int64_t stride,
                           float& scale, float& sum) {
  using Reg = typename V::Reg;
  constexpr float kMost = 127, kLeast = 0x1p-118f;  // so that kMost / kLeast is finite
  Reg largest = V::zero(), check = V::zero(), total = V::zero();
  for_columns<V>(first, end, [&](int64_t k, auto lanes) {
    const Reg x = lanes.load(row, k);
    largest = V::max(V::abs(x), largest);
    check = V::fma(x, V::zero(), check);  // NaN after a number that is not finite
  });
  const float most = V::largest(largest), unit = V::sum(check) == 0 && most >= kLeast ? kMost / most : 0;
  const Reg inverse = V::set1(unit);
  scale = V::sum(check) == 0 ? most / kMost : bit_cast<float>(0x7fc00000u);
  int64_t done = first;
  if (unit > 0)
    for_columns<V>(first, end, [&](int64_t k, auto lanes) {
      const Reg code = V::round(V::mul(lanes.load(row, k), inverse));
      total = V::add(total, code);
      Code::store(code, out + (k - first) / 4 * stride, stride);
      done = k + V::W;
    });
  for (; done < first + group; done += V::W) Code::store(V::zero(), out + (done - first) / 4 * stride, stride);
  sum = V::sum(total);
}

template <class V, class Code>
void quantize_rows(const QuantizeRowsArgs& args) {
  const QuantizedFormat& format = args.format;
  char* at = static_cast<char*>(args.packed);
  for (int64_t first = 0; first < args.rows; first += Code::kRows) {
    const int64_t rows = args.rows - first < Code::kRows ? args.rows - first : Code::kRows;
    for (int64_t begin = 0; begin < format.terms; begin += format.group) {
      auto* starts = reinterpret_cast<int32_t*>(at);
      auto* scales = reinterpret_cast<float*>(starts + rows);
      auto* sums = scales + rows;
      char* codes = reinterpret_cast<char*>(sums + rows);
      const int64_t end = begin + format.group < args.terms ? begin + format.group : args.terms;
      for (int64_t r = 0; r < rows; ++r) {
        float sum;
        quantize_group<V, Code>(row_of(args.x, first + r), begin, end, format.group, codes + r * Code::kBytes,
                                rows * Code::kBytes, scales[r], sum);
        starts[r] = -format.zero * static_cast<int32_t>(sum);
        sums[r] = scales[r] * sum;
      }
      at = codes + format.group / 4 * rows * Code::kBytes;
    }
  }
}

// ------------------------------------------------------------------------------------------------------ the product

/// Adds the products of a group of terms to integer sums. Moves `rows` and `panel` past the group's codes.
template <class V, class Code, int RT, int kBits>
inline __attribute__((always_inline)) void add_group(int64_t group, const char*& rows, const uint8_t*& panel,
                                                     typename Code::Int (&acc)[RT][kCodeVectors]) {
  constexpr int NV = kCodeVectors, kVector = 4 * V::W;  // bytes of a vector of codes
  ATTN_KEEP_LOOP
  for (int64_t k = group; k > 0; k -= 32 / kBits) {
    if constexpr (RT <= 4)  // more rows take longer than the memory
      prefetch_rows(reinterpret_cast<uintptr_t>(panel) + kCodesAheadBytes, NV * kVector, 0, 0, 1);
    ATTN_UNROLL
    for (int half = 0; half < 8 / kBits; ++half) {
      typename Code::Codes codes[NV];
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) codes[v] = Code::template load<kBits>(panel + v * kVector, half);
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) {
        const auto x = Code::broadcast(rows + r * Code::kBytes);
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = Code::step(codes[v], x, acc[r][v]);
      }
      rows += RT * Code::kBytes;
    }
    panel += NV * kVector;
  }
}

/// RT rows times a panel, into sums [RT][panel]. Not inline: of one function with all forms g++ keeps sums on the
/// stack.
template <class V, class Code, int RT, int kBits, bool kOffsets>
__attribute__((noinline)) void multiply_tile(const QuantizedFormat& format, const char* rows, const uint8_t* panel,
                                             float* out) {
  using Reg = typename V::Reg;
  constexpr int NV = kCodeVectors;
  const float* factors = reinterpret_cast<const float*>(panel);
  panel += kCodePanel<V> * sizeof(float);
  Reg sum[RT][NV];
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sum[r][v] = V::zero();
  }
  for (int64_t left = groups_of(format); left > 0; --left) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel);
    panel += scale_bytes<V>(format);
    const auto* starts = reinterpret_cast<const int32_t*>(rows);
    const auto* row_scales = reinterpret_cast<const float*>(starts + RT);
    rows += RT * kRowNumbers * 4;
    typename Code::Int acc[RT][NV];
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) acc[r][v] = Code::set1(starts[r]);
    }
    add_group<V, Code, RT, kBits>(format.group, rows, panel, acc);
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      const Reg scale = V::load_f16(scales + v * V::W);
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r)
        sum[r][v] = V::fma(V::mul(scale, V::set1(row_scales[r])), Code::to_float(acc[r][v]), sum[r][v]);
      if constexpr (kOffsets) {
        const Reg offset = V::load_f16(scales + kCodePanel<V> + v * V::W);
        ATTN_UNROLL
        for (int r = 0; r < RT; ++r) sum[r][v] = V::fma(offset, V::set1(row_scales[RT + r]), sum[r][v]);
      }
    }
  }
  ATTN_UNROLL
  for (int v = 0; v < NV; ++v) {
    const Reg factor = V::load(factors + v * V::W);
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) V::store(out + r * kCodePanel<V> + v * V::W, V::mul(factor, sum[r][v]));
  }
}

template <class V, class Code, int RT>
void multiply_tile(const QuantizedFormat& format, const char* rows, const uint8_t* panel, float* out) {
  if (format.bits == 8 && !format.offsets) multiply_tile<V, Code, RT, 8, false>(format, rows, panel, out);
  else if (format.bits == 8) multiply_tile<V, Code, RT, 8, true>(format, rows, panel, out);
  else if (!format.offsets) multiply_tile<V, Code, RT, 4, false>(format, rows, panel, out);
  else multiply_tile<V, Code, RT, 4, true>(format, rows, panel, out);
}

/// The tile of so many rows.
template <class V, class Code, int RT>
void multiply_rows(int64_t count, const QuantizedFormat& format, const char* rows, const uint8_t* panel, float* out) {
  if constexpr (RT > 1)
    if (count < RT) return multiply_rows<V, Code, RT - 1>(count, format, rows, panel, out);
  multiply_tile<V, Code, RT>(format, rows, panel, out);
}

template <class V, class Code>
void multiply_quantized(const QuantizedProductArgs& args) {
  const int64_t tile_bytes = Code::kRows * quantized_row_bytes<Code>(args.format);
  const int64_t panel_bytes = quantized_panel_bytes<V>(args.format);
  const auto* panel = static_cast<const uint8_t*>(args.panels);
  alignas(64) float sums[Code::kRows * kCodePanel<V>];
  for (int64_t n = 0; n < args.columns; n += kCodePanel<V>, panel += panel_bytes) {
    const int64_t columns = args.columns - n < kCodePanel<V> ? args.columns - n : kCodePanel<V>;
    const char* rows = static_cast<const char*>(args.packed_rows);
    for (int64_t m = 0; m < args.rows; m += Code::kRows, rows += tile_bytes) {
      const int64_t count = args.rows - m < Code::kRows ? args.rows - m : Code::kRows;
      multiply_rows<V, Code, Code::kRows>(count, args.format, rows, panel, sums);
      finish_rows<V>(args.result, sums, kCodePanel<V>, m, count, n, columns);
    }
  }
}

template <class V, class Code>
constexpr QuantizedKernels quantized_kernels() {
  return {.panel = kCodePanel<V>,
          .tile = Code::kRows,
          .panel_bytes = quantized_panel_bytes<V>,
          .row_bytes = quantized_row_bytes<Code>,
          .pack_columns = pack_columns<V>,
          .unpack_column = unpack_column<V>,
          .quantize_rows = quantize_rows<V, Code>,
          .multiply = multiply_quantized<V, Code>};
}

}  // namespace
}  // namespace attn::kernels
