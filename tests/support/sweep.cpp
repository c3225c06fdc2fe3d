// The rows of the table, and what they put together.
#include "sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace attn::test {

AttentionOptions Case::options() const {
  AttentionOptions all = scalars;
  all.key_length = key_length;
  all.query_length = query_length;
  all.offset = offset;
  all.cu_seqlens_q = cu_seqlens_q;
  all.cu_seqlens_k = cu_seqlens_k;
  all.alibi_slopes = alibi_slopes;
  all.sink = sink;
  if (mask.given()) all.mask = mask.view();
  if (bias.given()) all.bias = bias.view();
  if (blocks.given()) all.blocks.allowed = blocks.view();
  if (block_offsets.given()) all.blocks.offsets = block_offsets.view();
  if (block_indices.given()) all.blocks.indices = block_indices.view();
  if (query_segment_ids.given()) all.query_segment_ids = query_segment_ids.view();
  if (key_segment_ids.given()) all.key_segment_ids = key_segment_ids.view();
  return all;
}

std::string Case::name() const {
  const Dims& d = dims;
  std::string text = feature + " " + std::string(name_of(dtype));
  text += " B" + std::to_string(d.B) + " H" + std::to_string(d.H) + "/" + std::to_string(d.Hk) + " Lq" +
          std::to_string(d.Lq) + " Lk" + std::to_string(d.Lk) + " D" + std::to_string(d.D);
  return d.Dv == d.D ? text : text + " Dv" + std::to_string(d.Dv);
}

// ----------------------------------------------------------------------------------------------------- option builders

namespace {

bool chance(Random& random, double probability) { return random.uniform() < probability; }

}  // namespace

Array<4> random_mask(Random& random, const Shape<4>& size, double allowed) {
  Array<4> mask(DType::boolean, size);
  for (int64_t n = 0; n < mask.count(); ++n) mask.set(n, chance(random, allowed));
  return mask;
}

void list_blocks(Case& c) {
  const auto [batch, heads, rows, columns] = c.blocks.size();
  c.block_offsets = Array<3>(DType::int64, {batch, heads, rows + 1});
  std::vector<int64_t> indices;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t n = 0; n <= rows; ++n) {
        c.block_offsets.set({b, h, n}, static_cast<double>(indices.size()));
        for (int64_t m = 0; n < rows && m < columns; ++m)
          if (c.blocks.get({b, h, n, m}) != 0) indices.push_back(m);
      }
  c.block_indices = Array<1>(DType::int64, {static_cast<int64_t>(indices.size())});
  for (size_t t = 0; t < indices.size(); ++t)
    c.block_indices.set(static_cast<int64_t>(t), static_cast<double>(indices[t]));
  c.blocks = {};
}

void add_bias(Case& c, Random& random, const Shape<4>& size) {
  const DType dtype = c.dtype == DType::float64 ? DType::float64 : DType::float32;
  c.bias = Array<4>(dtype, size).fill_normal(random);
}

namespace {

std::vector<int64_t> random_lengths(Random& random, int64_t count, int64_t limit) {
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) length = random.below(limit + 1);
  return lengths;
}

/// Names the alignment where it has to be named.
void align(Case& c, Alignment when_lengths_differ) {
  if (c.dims.Lq != c.dims.Lk || when_lengths_differ != Alignment::top_left) c.scalars.alignment = when_lengths_differ;
}

/// A few -infinity among the biases: those pairs are masked.
void forbid_some(Case& c, Random& random) {
  for (int64_t n = 0; n < c.bias.count(); ++n)
    if (chance(random, 0.3)) c.bias.set(n, -std::numeric_limits<double>::infinity());
}

void add_alibi(Case& c) {
  for (int64_t h = 0; h < c.dims.H; ++h) c.alibi_slopes.push_back(std::ldexp(1.0F, -static_cast<int>(h % 6) - 3));
}

void add_sink(Case& c, Random& random) {
  for (int64_t h = 0; h < c.dims.H; ++h) c.sink.push_back(static_cast<float>(random.normal()));
}

/// Runs of equal ids, as sequences packed one after another have them.
void add_documents(Case& c, Random& random, int64_t batch) {
  c.query_segment_ids = Array<2>(DType::int32, {batch, c.dims.Lq});
  c.key_segment_ids = Array<2>(DType::int32, {batch, c.dims.Lk});
  for (Array<2>* ids : {&c.query_segment_ids, &c.key_segment_ids})
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t n = 0, id = 0; n < ids->size()[1]; ++n)
        ids->set({b, n}, static_cast<double>(id += chance(random, 0.1)));
}

void shuffle_documents(Case& c, Random& random) {
  for (Array<2>* ids : {&c.query_segment_ids, &c.key_segment_ids})
    for (int64_t n = 0; n < ids->count(); ++n) ids->set(n, static_cast<double>(random.below(4)) * 1e6);
}

/// Starts of `sequences` packed sequences that fill [0, total); some may be empty.
std::vector<int64_t> random_starts(Random& random, int64_t sequences, int64_t total) {
  std::vector<int64_t> starts = random_lengths(random, sequences - 1, total);
  starts.push_back(0);
  starts.push_back(total);
  std::sort(starts.begin(), starts.end());
  return starts;
}

/// Sequences packed along Lq and Lk; `same` gives queries and keys the same starts.
void pack(Case& c, Random& random, bool same) {
  c.dims.B = 1;
  if (same) c.dims.Lk = c.dims.Lq;
  c.cu_seqlens_q = random_starts(random, 4, c.dims.Lq);
  c.cu_seqlens_k = same ? c.cu_seqlens_q : random_starts(random, 4, c.dims.Lk);
}

void add_blocks(Case& c, Random& random, int64_t query_block, int64_t key_block, int64_t batch, int64_t heads) {
  const auto blocks = [](int64_t length, int64_t block) { return (length + block - 1) / block; };
  c.scalars.blocks.query_block = query_block;
  c.scalars.blocks.key_block = key_block;
  c.blocks = random_mask(random, {batch, heads, blocks(c.dims.Lq, query_block), blocks(c.dims.Lk, key_block)}, 0.6);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- the table

const std::vector<Feature>& features() {
  static const std::vector<Feature> table = {
      {"none", [](Case&, Random&) {}},
      {"scale", [](Case& c, Random&) { c.scalars.scale = 0.3; }},
      {"causal top_left",
       [](Case& c, Random&) {
         c.scalars.causal = true;
         align(c, Alignment::top_left);
       }},
      {"causal bottom_right",
       [](Case& c, Random&) {
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"causal offset",
       [](Case& c, Random& random) {
         c.scalars.causal = true;
         align(c, Alignment::offset);
         c.offset = random_lengths(random, c.dims.B, c.dims.Lk + 2);
         for (int64_t& offset : c.offset) offset -= 2;
       }},
      {"window left",
       [](Case& c, Random&) {
         c.scalars.window = {3, -1};
         align(c, Alignment::top_left);
       }},
      {"window both",
       [](Case& c, Random&) {
         c.scalars.window = {20, 2};
         align(c, Alignment::bottom_right);
       }},
      {"window self",
       [](Case& c, Random&) {
         c.scalars.window = {0, 0};
         align(c, Alignment::top_left);
       }},
      {"window causal",
       [](Case& c, Random&) {
         c.scalars.window = {70, 5};
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"key_length", [](Case& c, Random& random) { c.key_length = random_lengths(random, c.dims.B, c.dims.Lk); }},
      {"key_length bottom_right",
       [](Case& c, Random& random) {
         c.key_length = random_lengths(random, c.dims.B, c.dims.Lk);
         c.query_length = random_lengths(random, c.dims.B, c.dims.Lq);
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"mask",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk}, 0.7);
       }},
      {"mask rare",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk}, 0.02);
       }},
      {"mask padding",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {c.dims.B, 1, 1, c.dims.Lk}, 0.7);
       }},
      {"mask rows",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {1, c.dims.H, c.dims.Lq, 1}, 0.7);
       }},
      {"mask heads",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {c.dims.B, c.dims.H, 1, c.dims.Lk}, 0.7);
       }},
      {"mask shared causal",
       [](Case& c, Random& random) {
         c.mask = random_mask(random, {1, 1, c.dims.Lq, c.dims.Lk}, 0.7);
         c.scalars.causal = true;
         align(c, Alignment::top_left);
       }},
      {"documents", [](Case& c, Random& random) { add_documents(c, random, c.dims.B); }},
      {"documents shuffled",
       [](Case& c, Random& random) {
         add_documents(c, random, c.dims.B);
         shuffle_documents(c, random);
       }},
      {"documents causal",
       [](Case& c, Random& random) {
         add_documents(c, random, 1);
         c.scalars.causal = true;
         align(c, Alignment::top_left);
       }},
      {"packed", [](Case& c, Random& random) { pack(c, random, false); }},
      {"packed causal",
       [](Case& c, Random& random) {
         pack(c, random, true);
         c.scalars.causal = true;
       }},
      {"packed with gaps",
       [](Case& c, Random& random) {  // the first and last queries and keys belong to no sequence
         pack(c, random, false);
         c.cu_seqlens_q.front() = std::min<int64_t>(1, c.cu_seqlens_q[1]);
         c.cu_seqlens_q.back() = c.cu_seqlens_q[3];
         c.cu_seqlens_k.front() = c.cu_seqlens_k[1];
       }},
      {"packed key_length",
       [](Case& c, Random& random) {
         pack(c, random, true);
         c.scalars.causal = true;
         c.scalars.alignment = Alignment::bottom_right;
         for (size_t t = 0; t + 1 < c.cu_seqlens_k.size(); ++t)
           c.key_length.push_back(random.below(c.cu_seqlens_k[t + 1] - c.cu_seqlens_k[t] + 1));
       }},
      {"packed window bottom_right alibi",
       [](Case& c, Random& random) {
         pack(c, random, false);
         c.scalars.window = {9, 1};
         c.scalars.alignment = Alignment::bottom_right;
         add_alibi(c);
       }},
      {"packed mask bias",
       [](Case& c, Random& random) {
         pack(c, random, false);
         c.mask = random_mask(random, {1, 1, c.dims.Lq, c.dims.Lk}, 0.7);
         add_bias(c, random, {1, c.dims.H, c.dims.Lq, c.dims.Lk});
       }},
      {"blocks", [](Case& c, Random& random) { add_blocks(c, random, 16, 32, c.dims.B, c.dims.H); }},
      {"blocks odd causal",
       [](Case& c, Random& random) {
         add_blocks(c, random, 7, 5, 1, 1);
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"block lists",
       [](Case& c, Random& random) {
         add_blocks(c, random, 16, 32, c.dims.B, c.dims.H);
         list_blocks(c);
       }},
      {"block lists odd causal",
       [](Case& c, Random& random) {
         add_blocks(c, random, 7, 5, 1, 1);
         list_blocks(c);
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"bias full",
       [](Case& c, Random& random) {
         add_bias(c, random, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk});
       }},
      {"bias heads",
       [](Case& c, Random& random) {
         add_bias(c, random, {1, c.dims.H, c.dims.Lq, c.dims.Lk});
       }},
      {"bias batch",
       [](Case& c, Random& random) {
         add_bias(c, random, {c.dims.B, 1, c.dims.Lq, c.dims.Lk});
       }},
      {"bias shared",
       [](Case& c, Random& random) {
         add_bias(c, random, {1, 1, c.dims.Lq, c.dims.Lk});
       }},
      {"bias keys",
       [](Case& c, Random& random) {
         add_bias(c, random, {c.dims.B, 1, 1, c.dims.Lk});
       }},
      {"bias queries",
       [](Case& c, Random& random) {
         add_bias(c, random, {1, c.dims.H, c.dims.Lq, 1});
       }},
      {"bias one",
       [](Case& c, Random& random) {
         add_bias(c, random, {1, 1, 1, 1});
       }},
      {"bias -inf",
       [](Case& c, Random& random) {
         add_bias(c, random, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk});
         forbid_some(c, random);
       }},
      {"alibi",
       [](Case& c, Random&) {
         add_alibi(c);
         align(c, Alignment::bottom_right);
       }},
      {"softcap", [](Case& c, Random&) { c.scalars.softcap = 2; }},
      {"softcap bias mask",
       [](Case& c, Random& random) {
         c.scalars.softcap = 1.5;
         add_bias(c, random, {1, c.dims.H, c.dims.Lq, c.dims.Lk});
         c.mask = random_mask(random, {c.dims.B, 1, c.dims.Lq, c.dims.Lk}, 0.7);
       }},
      {"sink", [](Case& c, Random& random) { add_sink(c, random); }},
      {"sink window",
       [](Case& c, Random& random) {
         add_sink(c, random);
         c.scalars.window = {2, 0};
         align(c, Alignment::bottom_right);
       }},
      {"dropout",
       [](Case& c, Random& random) {
         c.scalars.dropout = 0.1;
         c.scalars.seed = random.next();
       }},
      {"dropout causal",
       [](Case& c, Random& random) {
         c.scalars.dropout = 0.5;
         c.scalars.seed = random.next();
         c.scalars.causal = true;
         align(c, Alignment::bottom_right);
       }},
      {"everything",
       [](Case& c, Random& random) {
         c.scalars.scale = 0.4;
         c.scalars.softcap = 3;
         c.scalars.causal = true;
         c.scalars.window = {100, -1};
         c.scalars.dropout = 0.2;
         c.scalars.seed = random.next();
         align(c, Alignment::bottom_right);
         c.key_length = random_lengths(random, c.dims.B, c.dims.Lk);
         c.mask = random_mask(random, {c.dims.B, 1, 1, c.dims.Lk}, 0.8);
         add_bias(c, random, {1, c.dims.H, c.dims.Lq, c.dims.Lk});
         forbid_some(c, random);
         add_alibi(c);
         add_documents(c, random, c.dims.B);
         add_blocks(c, random, 8, 16, 1, c.dims.H);
         add_sink(c, random);
       }},
  };
  return table;
}

const Feature& feature_named(const std::string& name) {
  for (const Feature& feature : features())
    if (name == feature.name) return feature;
  throw std::invalid_argument("no feature is called " + name);
}

Case make_case(const Feature& feature, const Dims& dims, DType dtype, uint64_t seed, double q_scale) {
  Random random(seed);
  Case c;
  c.feature = feature.name;
  c.dtype = dtype;
  c.dims = dims;
  feature.apply(c, random);  // may change the sizes
  const Dims& d = c.dims;
  c.q = Array<4>(dtype, {d.B, d.H, d.Lq, d.D}).fill_normal(random, q_scale);
  c.k = Array<4>(dtype, {d.B, d.Hk, d.Lk, d.D}).fill_normal(random);
  c.v = Array<4>(dtype, {d.B, d.Hk, d.Lk, d.Dv}).fill_normal(random);
  c.dout = Array<4>(dtype, {d.B, d.H, d.Lq, d.Dv}).fill_normal(random);
  c.dlse = Array<3>(dtype == DType::float64 ? DType::float64 : DType::float32, {d.B, d.H, d.Lq}).fill_normal(random);
  return c;
}

// -------------------------------------------------------------------------------------------------------------- shapes

namespace {

constexpr int64_t kHeadDims[] = {1, 3, 8, 16, 21, 32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 203, 256};
constexpr int64_t kLengths[] = {1, 2, 5, 17, 63, 64, 65, 97, 127, 128, 129, 203, 257, 799, 1023, 1024, 1025, 8192};

template <size_t Count>
int64_t pick(Random& random, const int64_t (&values)[Count]) {
  return values[random.below(Count)];
}

}  // namespace

Dims random_dims(Random& random, double work) {
  for (;;) {
    Dims d;
    d.B = 1 + random.below(2);
    d.Hk = 1 + random.below(3);
    d.H = d.Hk * (1 + random.below(4));
    d.Lq = pick(random, kLengths);
    d.Lk = chance(random, 0.3) ? d.Lq : pick(random, kLengths);
    d.D = pick(random, kHeadDims);
    d.Dv = chance(random, 0.7) ? d.D : pick(random, kHeadDims);
    if (static_cast<double>(d.B * d.H * d.Lq * d.Lk) * static_cast<double>(d.D + d.Dv) <= work) return d;
  }
}

std::vector<Dims> small_dims() {
  return {
      {.B = 2, .H = 4, .Hk = 2, .Lq = 33, .Lk = 33, .D = 16, .Dv = 16},
      {.B = 2, .H = 3, .Hk = 1, .Lq = 19, .Lk = 70, .D = 21, .Dv = 9},
      {.B = 1, .H = 2, .Hk = 2, .Lq = 61, .Lk = 13, .D = 8, .Dv = 24},
      {.B = 1, .H = 1, .Hk = 1, .Lq = 50, .Lk = 300, .D = 64, .Dv = 64},
      {.B = 3, .H = 4, .Hk = 4, .Lq = 1, .Lk = 40, .D = 32, .Dv = 32},
  };
}

}  // namespace attn::test
