// attn_bits: a hash of every result of some thousand calls, a line each. Two builds whose lines agree give the same
// bits; a change of structure is checked so, and a change of arithmetic shows where it reaches.
//
//   attn_bits > before.txt;  ... change, build ...;  attn_bits | diff before.txt -
//
// The calls: every option x shape x element type x instruction set, forward and backward, from dense [B, H, L, D] and
// from [B, L, H, D] memory; with infinities and NaN among the inputs; rectangles of weights; a cache in pages.
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>

#include "naive.h"

namespace attn::test {
namespace {

int64_t calls = 0;

class Hash {
 public:
  template <int Rank>
  void add(const Array<Rank>& array) {
    for (const std::byte byte : array.bytes())
      value_ = (value_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;  // FNV-1a
  }
  void print(const std::string& name, const std::string& isa) const {
    std::printf("%016" PRIx64 "  %s, %s\n", value_, name.c_str(), isa.c_str());
    ++calls;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

/// [B, H, L, n] elements that are in memory as [B, L, H, n].
class Interleaved {
 public:
  Interleaved(DType dtype, const Shape<4>& size) : memory_(dtype, {size[0], size[2], size[1], size[3]}) {}
  explicit Interleaved(const Array<4>& x) : Interleaved(x.dtype(), x.size()) {
    const Shape<4> n = x.size();
    for (int64_t at = 0; at < x.count(); ++at) {
      const int64_t d = at % n[3], l = at / n[3] % n[2], h = at / (n[3] * n[2]) % n[1], b = at / (n[3] * n[2] * n[1]);
      memory_.set({b, l, h, d}, x.get(at));
    }
  }
  View<4> view() { return swapped(memory_.view()); }
  const Array<4>& memory() const { return memory_; }

 private:
  static View<4> swapped(View<4> x) {
    std::swap(x.size[1], x.size[2]);
    std::swap(x.stride[1], x.stride[2]);
    return x;
  }
  Array<4> memory_;
};

void hash_dense(const Case& c, const std::string& isa) {
  const Results r = run(c);
  Hash hash;
  hash.add(r.out);
  hash.add(r.lse);
  for (const Array<4>* gradient : {&r.dq, &r.dk, &r.dv, &r.dbias}) hash.add(*gradient);
  hash.add(r.dsink);
  hash.print(c.name(), isa);
}

void hash_interleaved(const Case& c, const std::string& isa) {
  Interleaved q(c.q), k(c.k), v(c.v), dout(c.dout), out(c.dtype, c.dout.size());
  Interleaved dq(c.dtype, c.q.size()), dk(c.dtype, c.k.size()), dv(c.dtype, c.v.size());
  Array<3> lse(lse_type(c.dtype), {c.dims.B, c.dims.H, c.dims.Lq});
  attention(q.view(), k.view(), v.view(), out.view(), lse.view(), c.options());
  const AttentionGradients gradients{.dq = dq.view(), .dk = dk.view(), .dv = dv.view()};
  attention_backward(q.view(), k.view(), v.view(), out.view(), lse.view(), dout.view(), gradients, c.options());
  Hash hash;
  for (const Interleaved* x : {&out, &dq, &dk, &dv}) hash.add(x->memory());
  hash.add(lse);
  hash.print(c.name() + " interleaved", isa);
}

void hash_weights(const Case& c, const std::string& isa) {
  const Results r = run(c, false);
  const int64_t rows = (c.dims.Lq + 1) / 2, columns = (c.dims.Lk + 1) / 2;
  Array<4> weights(c.dtype, {c.dims.B, c.dims.H, rows, columns});
  attention_weights(c.q.view(), c.k.view(), r.lse.view(), weights.view(), c.dims.Lq - rows, (c.dims.Lk - columns) / 2,
                    c.options());
  Hash hash;
  hash.add(weights);
  hash.print(c.name() + " weights", isa);
}

/// Not a number and infinities here and there in one of the inputs.
Case spoiled(Case c, Array<4> Case::*input, double value) {
  Array<4>& x = c.*input;
  for (int64_t n = 5; n < x.count(); n += 1009) x.set(n, value);
  c.feature += std::string(std::isnan(value) ? " nan"
                           : value > 0       ? " inf"
                                             : " -inf") +
               (input == &Case::k   ? " in k"
                : input == &Case::v ? " in v"
                : input == &Case::q ? " in q"
                                    : " in dout");
  return c;
}

void hash_cache(DType dtype, int64_t page_size, int64_t length, int64_t queries, const std::string& isa) {
  const Case c = make_case(feature_named("none"), {.H = 6, .Hk = 2, .Lq = length, .Lk = length, .D = 72, .Dv = 40},
                           dtype, static_cast<uint64_t>(length));
  KVCache cache({.kv_heads = 2, .head_dim = 72, .value_dim = 40, .dtype = dtype, .page_size = page_size});
  const std::vector<int64_t> sequences = {cache.add()}, starts = {0, queries};
  cache.append(sequences[0], c.k.view(), c.v.view());
  Array<4> out(dtype, {1, 6, queries, 40});
  Array<3> lse(lse_type(dtype), {1, 6, queries});
  cache.attend(sequences, starts, part_of(c.q.view(), 2, length - queries, queries), out.view(), lse.view());
  Hash hash;
  hash.add(out);
  hash.add(lse);
  hash.print("cache " + std::string(name_of(dtype)) + " pages of " + std::to_string(page_size) + " Lk" +
                 std::to_string(length) + " Lq" + std::to_string(queries),
             isa);
}

std::vector<Dims> all_dims() {
  std::vector<Dims> dims = small_dims();
  dims.push_back({.B = 1, .H = 4, .Hk = 2, .Lq = 130, .Lk = 520, .D = 64, .Dv = 64});
  dims.push_back({.B = 1, .H = 2, .Hk = 1, .Lq = 3, .Lk = 4400, .D = 40, .Dv = 72});
  dims.push_back({.B = 1, .H = 1, .Hk = 1, .Lq = 1100, .Lk = 300, .D = 33, .Dv = 32});
  return dims;
}

int run_all() {
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  const double odd_values[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()};
  for_each_isa([&](const std::string& isa) {
    uint64_t seed = 1;
    for (DType dtype : dtypes) {
      for (const Dims& dims : all_dims()) {
        for (const Feature& feature : features()) {
          ++seed;
          const Case c = make_case(feature, dims, dtype, seed, seed % 3 == 0 ? 4 : 1);
          hash_dense(c, isa);
          hash_interleaved(c, isa);
          hash_weights(c, isa);
        }
        for (const char* feature : {"none", "causal bottom_right", "mask", "everything"})
          for (double value : odd_values)
            for (Array<4> Case::*input : {&Case::q, &Case::k, &Case::v, &Case::dout})
              hash_dense(spoiled(make_case(feature_named(feature), dims, dtype, ++seed), input, value), isa);
      }
      for (int64_t page_size : {1, 7, 16, 64})
        for (int64_t length : {40, 300, 2500})
          for (int64_t queries : {1, 2, 5, 33}) hash_cache(dtype, page_size, length, queries, isa);
    }
  });
  std::fprintf(stderr, "%" PRId64 " calls\n", calls);
  return 0;
}

}  // namespace
}  // namespace attn::test

int main() { return attn::test::run_all(); }
