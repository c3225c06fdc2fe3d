// The block types of GGUF. A block has 32 numbers, or 256 with scales of their own for parts of 32 or 16; all numbers
// of several bytes are little-endian. d and m are float16.
//
//   Q4_0  d, 16 bytes of two codes: first the low halves, then the high ones.   d (code - 8)
//   Q4_1  d, m, the same                                                        d code + m
//   Q5_0, Q5_1  d (, m), 4 bytes of fifth bits, the same                        d (code - 16), d code + m
//   Q8_0  d, 32 signed bytes                                                    d code
//   Q4_K  d, m, 12 bytes of 8 scales and 8 minima of 6 bits, 128 bytes          d scale code - m minimum
//   Q5_K  d, m, 12 bytes, 32 bytes of fifth bits, 128 bytes                     the same
//   Q6_K  128 bytes, 64 bytes of upper bits, 16 signed scales, d                d scale (code - 32)
#include "models/gguf_blocks.h"

#include <algorithm>
#include <cstring>

#include "attn/core.h"

namespace attn::models {
namespace {

using io::GgufType;

struct BlockType {
  GgufType type;
  int64_t numbers, bytes, group;
  int bits, zero;
  bool offsets;
  /// Codes, scales and offsets of a block.
  void (*read)(const uint8_t* block, uint8_t* codes, float* scales, float* offsets);
};

float float16_at(const uint8_t* bytes) {
  float16 value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void read_halves(const uint8_t* bytes, int count, uint8_t* codes) {
  for (int n = 0; n < count; ++n) {
    codes[n] = bytes[n] & 15;
    codes[count + n] = static_cast<uint8_t>(bytes[n] >> 4);
  }
}

void read_q4_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  *scales = float16_at(block);
  read_halves(block + 2, 16, codes);
}
void read_q4_1(const uint8_t* block, uint8_t* codes, float* scales, float* offsets) {
  *offsets = float16_at(block + 2);
  *scales = float16_at(block);
  read_halves(block + 4, 16, codes);
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int n = 0; n < 32; ++n)
    if (bits[n / 8] >> n % 8 & 1) codes[n] = static_cast<uint8_t>(codes[n] | 16);
}
void read_q5_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  *scales = float16_at(block);
  read_halves(block + 6, 16, codes);
  add_fifth_bits(block + 2, codes);
}
void read_q5_1(const uint8_t* block, uint8_t* codes, float* scales, float* offsets) {
  *scales = float16_at(block);
  *offsets = float16_at(block + 2);
  read_halves(block + 8, 16, codes);
  add_fifth_bits(block + 4, codes);
}

void read_q8_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  *scales = float16_at(block);
  for (int n = 0; n < 32; ++n) codes[n] = static_cast<uint8_t>(block[2 + n] ^ 0x80);
}

/// The eight scales and minima of Q4_K and Q5_K: four of each in the low six bits of a byte, the upper two bits of
/// which belong to the others.
void read_scales(const uint8_t* block, float* scales, float* offsets) {
  const float d = float16_at(block), least = float16_at(block + 2);
  const uint8_t* packed = block + 4;
  for (int n = 0; n < 8; ++n) {
    const int scale = n < 4 ? packed[n] & 63 : (packed[n + 4] & 15) | packed[n - 4] >> 6 << 4;
    const int minimum = n < 4 ? packed[n + 4] & 63 : packed[n + 4] >> 4 | packed[n] >> 6 << 4;
    scales[n] = d * static_cast<float>(scale);
    offsets[n] = -least * static_cast<float>(minimum);
  }
}
void read_q4_k(const uint8_t* block, uint8_t* codes, float* scales, float* offsets) {
  read_scales(block, scales, offsets);
  for (int part = 0; part < 4; ++part) read_halves(block + 16 + 32 * part, 32, codes + 64 * part);
}
void read_q5_k(const uint8_t* block, uint8_t* codes, float* scales, float* offsets) {
  read_scales(block, scales, offsets);
  for (int part = 0; part < 4; ++part) read_halves(block + 48 + 32 * part, 32, codes + 64 * part);
  for (int n = 0; n < 256; ++n)
    if (block[16 + n % 32] >> n / 32 & 1) codes[n] = static_cast<uint8_t>(codes[n] | 16);
}

void read_q6_k(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  const float d = float16_at(block + 208);
  for (int n = 0; n < 16; ++n) scales[n] = d * static_cast<float>(static_cast<int8_t>(block[192 + n]));
  for (int n = 0; n < 256; ++n) {
    const int half = n / 128, quarter = n % 128 / 32, lane = n % 32;
    const int low = block[64 * half + 32 * (quarter % 2) + lane] >> (quarter / 2 * 4) & 15;
    const int high = block[128 + 32 * half + lane] >> 2 * quarter & 3;
    codes[n] = static_cast<uint8_t>(low | high << 4);
  }
}

constexpr BlockType kBlocks[] = {
    {GgufType::q4_0, 32, 18, 32, 4, 8, false, read_q4_0},   {GgufType::q4_1, 32, 20, 32, 4, 0, true, read_q4_1},
    {GgufType::q5_0, 32, 22, 32, 8, 16, false, read_q5_0},  {GgufType::q5_1, 32, 24, 32, 8, 0, true, read_q5_1},
    {GgufType::q8_0, 32, 34, 32, 8, 128, false, read_q8_0}, {GgufType::q4_k, 256, 144, 32, 4, 0, true, read_q4_k},
    {GgufType::q5_k, 256, 176, 32, 8, 0, true, read_q5_k},  {GgufType::q6_k, 256, 210, 16, 8, 32, false, read_q6_k}};

const BlockType* find_block(GgufType type) {
  for (const BlockType& block : kBlocks)
    if (block.type == type) return &block;
  return nullptr;
}

template <class T>
std::vector<T> rows_in_order(const std::vector<T>& rows, const std::vector<int64_t>& order, int64_t width) {
  std::vector<T> all;
  for (const int64_t row : order) all.insert(all.end(), rows.begin() + row * width, rows.begin() + (row + 1) * width);
  return all;
}

}  // namespace

bool is_quantized(GgufType type) { return find_block(type) != nullptr; }

ops::QuantizedMatrix quantized_rows(const io::GgufTensor& tensor) {
  const BlockType& type = *find_block(tensor.type);
  ops::QuantizedMatrix w{.terms = tensor.shape.back(), .bits = type.bits, .zero = type.zero, .group = type.group};
  w.rows = 1;
  for (size_t axis = 0; axis + 1 < tensor.shape.size(); ++axis) w.rows *= tensor.shape[axis];
  w.codes.resize(static_cast<size_t>(w.rows * w.terms));
  w.scales.resize(static_cast<size_t>(w.rows * w.groups()));
  if (type.offsets) w.offsets.resize(w.scales.size());
  const int64_t blocks = w.terms / type.numbers, groups = type.numbers / type.group;
  parallel_for(w.rows, [&](int64_t row) {
    for (int64_t n = row * blocks; n < (row + 1) * blocks; ++n)
      type.read(tensor.data + n * type.bytes, w.codes.data() + n * type.numbers, w.scales.data() + n * groups,
                type.offsets ? w.offsets.data() + n * groups : nullptr);
  });
  return w;
}

void reorder_rows(ops::QuantizedMatrix& w, const std::vector<int64_t>& order) {
  w.codes = rows_in_order(w.codes, order, w.terms);
  w.scales = rows_in_order(w.scales, order, w.groups());
  if (!w.offsets.empty()) w.offsets = rows_in_order(w.offsets, order, w.groups());
}

namespace {

constexpr int64_t kBlockNumbers = 32;  // of Q8_0 and Q4_0, and a float16 before them

/// -127 .. 127 times the scale.
void put_q8(const float* x, char* to) {
  float largest = 0;
  for (int64_t n = 0; n < kBlockNumbers; ++n) largest = std::max(largest, std::abs(x[n]));
  const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
  const float16 stored(scale);
  std::memcpy(to, &stored, sizeof stored);
  for (int64_t n = 0; n < kBlockNumbers; ++n)
    to[2 + n] = static_cast<char>(static_cast<int8_t>(std::lround(x[n] * inverse)));
}

/// 0 .. 15, less 8, times the scale, whose sign is such that the number of largest size is -8 scales.
void put_q4(const float* x, char* to) {
  float extreme = 0;
  for (int64_t n = 0; n < kBlockNumbers; ++n)
    if (std::abs(x[n]) > std::abs(extreme)) extreme = x[n];
  const float scale = extreme / -8, inverse = scale != 0 ? 1 / scale : 0;
  const float16 stored(scale);
  std::memcpy(to, &stored, sizeof stored);
  const auto level = [&](float number) { return std::clamp(static_cast<int>(number * inverse + 8.5f), 0, 15); };
  for (int64_t n = 0; n < kBlockNumbers / 2; ++n)
    to[2 + n] = static_cast<char>(level(x[n]) | level(x[n + kBlockNumbers / 2]) << 4);
}

}  // namespace

std::vector<char> gguf_content(io::GgufType type, ConstView<2> rows) {
  const int64_t count = rows.size[0] * rows.size[1];
  std::vector<char> bytes(static_cast<size_t>(io::gguf_bytes(type, {rows.size[0], rows.size[1]})));
  const bool in_blocks = type == io::GgufType::q8_0 || type == io::GgufType::q4_0;
  const DType dtype = type == io::GgufType::f16    ? DType::float16
                      : type == io::GgufType::bf16 ? DType::bfloat16
                                                   : DType::float32;
  if (!in_blocks) {
    ops::convert(rows, View<2>(bytes.data(), dtype, {rows.size[0], rows.size[1]}));
    return bytes;
  }
  const Array wide(DType::float32, {rows.size[0], rows.size[1]}, false);
  ops::convert(rows, wide.rows());
  const auto* x = static_cast<const float*>(wide.data());
  const int64_t blocks = count / kBlockNumbers, size = std::ssize(bytes) / std::max<int64_t>(blocks, 1);
  for (int64_t b = 0; b < blocks; ++b) {
    char* to = bytes.data() + b * size;
    if (type == io::GgufType::q8_0) put_q8(x + b * kBlockNumbers, to);
    else put_q4(x + b * kBlockNumbers, to);
  }
  return bytes;
}

}  // namespace attn::models
