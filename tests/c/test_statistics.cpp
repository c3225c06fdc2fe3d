// Statistics of attention in C: the bits of C++ in every field, and what is refused.
#include <gtest/gtest.h>

#include "attn/c_statistics.h"
#include "support/c_tensors.h"

namespace attn::test {
namespace {

constexpr int64_t B = 2, H = 4, Hk = 2, Lq = 6, Lk = 9, D = 8;

/// Results of every kind, and what the statistics of both languages point to.
struct Results {
  Array<3> sum{DType::float32, {B, H, Lq}}, entropy = sum, participation = sum, maximum = sum, distance = sum;
  Array<3> same_token = sum, position{DType::int64, {B, H, Lq}};
  Array<4> bands{DType::float32, {B, H, Lq, 2}}, labels{DType::float32, {B, H, Lq, 3}};
  Array<2> mean_entropy{DType::float32, {B, H}};
  Array<3> mean_bands{DType::float32, {B, H, 2}};
  Array<4> top_weight{DType::float32, {B, H, Lq, 3}}, top_key{DType::int64, {B, H, Lq, 3}};
  Array<3> column_mass{DType::float32, {B, H, Lk}}, column_position = column_mass;
  Array<4> cells{DType::float32, {B, H, 2, 3}};
  Array<4> dq{DType::float32, {B, H, Lq, D}}, dk{DType::float32, {B, Hk, Lk, D}};

  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all = {mean_entropy.bytes()};
    for (const Array<3>* x : {&sum, &entropy, &participation, &maximum, &distance, &same_token, &position, &mean_bands,
                              &column_mass, &column_position})
      all.push_back(x->bytes());
    for (const Array<4>* x : {&bands, &labels, &top_weight, &top_key, &cells, &dq, &dk}) all.push_back(x->bytes());
    return all;
  }
};

struct Inputs {
  Array<4> q{DType::float32, {B, H, Lq, D}}, k{DType::float32, {B, Hk, Lk, D}}, out = q;
  Array<3> lse{DType::float32, {B, H, Lq}}, factor{DType::float32, {1, Hk, Lk}};
  Array<2> key_label{DType::int32, {1, Lk}}, query_token_ids{DType::int32, {B, Lq}},
      key_token_ids{DType::int32, {B, Lk}};
  AttentionOptions options{.causal = true, .alignment = Alignment::bottom_right};
  attn_options c_options = defaults();

  Inputs() {
    Random random(4);
    q.fill_normal(random), k.fill_normal(random);
    for (int64_t n = 0; n < factor.count(); ++n) factor.set(n, random.uniform());
    for (int64_t n = 0; n < Lk; ++n) key_label.set(n, static_cast<double>(n % 4 - 1));
    for (int64_t n = 0; n < query_token_ids.count(); ++n) query_token_ids.set(n, static_cast<double>(n % 3));
    for (int64_t n = 0; n < key_token_ids.count(); ++n) key_token_ids.set(n, static_cast<double>(n % 3));
    attention(q.view(), k.view(), k.view(), out.view(), lse.view(), options);
    c_options.causal = 1, c_options.alignment = ATTN_ALIGNMENT_BOTTOM_RIGHT;
  }
};

constexpr KeyBand kBands[] = {{-1, 0}, {0, 1, false}};

Results run_cpp(const Inputs& in) {
  Results r;
  AttentionStatistics s;
  s.rows = {.sum = r.sum.view(),
            .entropy = r.entropy.view(),
            .participation = r.participation.view(),
            .maximum = r.maximum.view(),
            .distance = r.distance.view(),
            .same_token = r.same_token.view(),
            .bands = r.bands.view(),
            .labels = r.labels.view()};
  s.means = {.entropy = r.mean_entropy.view(), .bands = r.mean_bands.view()};
  s.argmax_key = r.position.view(), s.top_weight = r.top_weight.view(), s.top_key = r.top_key.view();
  s.column_mass = r.column_mass.view(), s.column_position = r.column_position.view();
  s.picture = {.cells = r.cells.view(), .maximum = true, .first_query = 1, .queries = 4, .first_key = 2};
  s.sets = {kBands, in.key_label.view(), in.query_token_ids.view(), in.key_token_ids.view()};
  s.key_factor = in.factor.view();
  attention_statistics(in.q.view(), in.k.view(), in.lse.view(), s, in.options);
  RowStatisticsGradients drows;
  drows.entropy = r.entropy.view(), drows.bands = r.bands.view();
  attention_statistics_backward(in.q.view(), in.k.view(), in.lse.view(), s, drows,
                                {.dq = r.dq.view(), .dk = r.dk.view()}, in.options);
  return r;
}

/// The statistics of C that point into `r` and `in`, with the tensors that they point to.
struct CStatistics {
  CStatistics(Results& r, Inputs& in)
      : rows{sizeof rows,      keep(r.sum),        keep(r.entropy), keep(r.participation), keep(r.maximum),
             keep(r.distance), keep(r.same_token), keep(r.bands),   keep(r.labels)} {
    means.struct_size = sizeof means, means.entropy = keep(r.mean_entropy), means.bands = keep(r.mean_bands);
    picture = {sizeof picture, keep(r.cells), 1, 0, 1, 4, 2, 0};
    all = {sizeof all,
           &rows,
           &means,
           keep(r.position),
           keep(r.top_weight),
           keep(r.top_key),
           keep(r.column_mass),
           keep(r.column_position),
           &picture,
           bands,
           2,
           keep(in.key_label),
           keep(in.query_token_ids),
           keep(in.key_token_ids),
           keep(in.factor)};
  }
  template <int Rank>
  const attn_tensor* keep(Array<Rank>& array) {
    return &(kept.emplace_back(std::make_unique<attn_tensor>(tensor(array))), *kept.back());
  }

  std::vector<std::unique_ptr<attn_tensor>> kept;
  attn_key_band bands[2] = {{-1, 0, 0, 0}, {0, 1, 1, 0}};
  attn_row_statistics rows{}, means{};
  attn_picture picture{};
  attn_statistics all{};
};

TEST(CStatistics, EveryFieldHasTheBitsOfCpp) {
  Inputs in;
  const Results expected = run_cpp(in);
  Results r;
  CStatistics c(r, in);
  const attn_tensor q = tensor(in.q), k = tensor(in.k), lse = tensor(in.lse), dq = tensor(r.dq), dk = tensor(r.dk);
  ASSERT_EQ(attn_attention_statistics(&q, &k, &lse, &c.all, &in.c_options), ATTN_OK) << attn_last_error();
  attn_row_statistics drows{};
  drows.struct_size = sizeof drows, drows.entropy = c.rows.entropy, drows.bands = c.rows.bands;
  attn_gradients gradients{};
  gradients.struct_size = sizeof gradients, gradients.dq = &dq, gradients.dk = &dk;
  ASSERT_EQ(attn_attention_statistics_backward(&q, &k, &lse, &c.all, &drows, &gradients, &in.c_options), ATTN_OK)
      << attn_last_error();
  EXPECT_TRUE(r.bytes() == expected.bytes());
  // Fields of an older header's struct: what comes later is not computed.
  Results less;
  CStatistics shorter(less, in);
  shorter.all.struct_size = offsetof(attn_statistics, top_weight);
  shorter.rows.struct_size = offsetof(attn_row_statistics, distance);
  shorter.means.bands = nullptr;
  ASSERT_EQ(attn_attention_statistics(&q, &k, &lse, &shorter.all, &in.c_options), ATTN_OK) << attn_last_error();
  EXPECT_EQ(less.entropy.bytes(), expected.entropy.bytes());
  EXPECT_NE(less.distance.bytes(), expected.distance.bytes());
  EXPECT_NE(less.column_mass.bytes(), expected.column_mass.bytes());
}

TEST(CStatistics, OfACache) {
  Random random(6);
  Array<4> q(DType::float32, {1, H, 3, D}), keys(DType::float32, {1, Hk, 7, D}), out = q;
  q.fill_normal(random), keys.fill_normal(random);
  Array<3> lse(DType::float32, {1, H, 3}), entropy = lse, expected = lse;
  KVCache cpp({.kv_heads = Hk, .head_dim = D});
  const attn_kv_cache_config config{sizeof config, Hk, D, 0, 0, 0, ATTN_FLOAT32, 0, 0, 0};
  attn_kv_cache* cache = nullptr;
  ASSERT_EQ(attn_kv_cache_create(&config, &cache), ATTN_OK);
  const std::vector<int64_t> ids = {cpp.add()}, starts = {0, 3};
  cpp.append(ids[0], keys.view(), keys.view());
  cpp.attend(ids, starts, q.view(), out.view(), lse.view());
  AttentionStatistics s;
  s.rows.entropy = expected.view();
  cpp.statistics(ids, starts, q.view(), lse.view(), s);

  int64_t id = -1;
  const attn_tensor ck = tensor(keys), cq = tensor(q), clse = tensor(lse), centropy = tensor(entropy);
  ASSERT_EQ(attn_kv_cache_add(cache, &id), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_append(cache, id, &ck, &ck), ATTN_OK);
  attn_row_statistics rows{};
  rows.struct_size = sizeof rows, rows.entropy = &centropy;
  attn_statistics wanted{};
  wanted.struct_size = sizeof wanted, wanted.rows = &rows;
  ASSERT_EQ(attn_kv_cache_statistics(cache, {&id, 1}, list(starts), &cq, &clse, &wanted, nullptr), ATTN_OK)
      << attn_last_error();
  EXPECT_EQ(entropy.bytes(), expected.bytes());
  EXPECT_EQ(attn_kv_cache_statistics(nullptr, {&id, 1}, list(starts), &cq, &clse, nullptr, nullptr),
            ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[attn_kv_cache_statistics] cache is a null pointer; statistics is a null pointer");
  attn_kv_cache_destroy(cache);
}

TEST(CStatistics, SayAllThatIsWrong) {
  Inputs in;
  Results r;
  CStatistics c(r, in);
  const attn_tensor q = tensor(in.q), k = tensor(in.k), lse = tensor(in.lse);
  attn_tensor flat = tensor(r.entropy), few = tensor(r.maximum);
  flat.rank = 2, few.size[2] = 5;
  c.rows.entropy = &flat, c.rows.maximum = &few;
  c.picture.maximum = 7;
  c.bands[1].from_start = -1, c.bands[0].low = 3;
  in.c_options.alignment = 8;
  EXPECT_EQ(attn_attention_statistics(&q, &k, &lse, &c.all, &in.c_options), ATTN_INVALID_ARGUMENT);
  const std::string said = attn_last_error();
  for (const char* reason :
       {"[attn_attention_statistics] rows.entropy has rank 2, must be 3", "picture.maximum is 7, must be 0 or 1",
        "bands.from_start is -1, must be 0 or 1", "options.alignment is 8", "rows.maximum has size [2, 4, 5], must be",
        "sets.bands[0] is 3 to 0"})
    EXPECT_NE(said.find(reason), std::string::npos) << reason << " in " << said;
  EXPECT_EQ(r.sum.bytes(), Results().sum.bytes()) << "nothing is written";
  EXPECT_EQ(attn_attention_statistics_backward(&q, &k, &lse, nullptr, nullptr, nullptr, nullptr),
            ATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attn_last_error())
                .find("statistics is a null pointer; drows is a null pointer; gradients is a "
                      "null pointer"),
            std::string::npos)
      << attn_last_error();
}

}  // namespace
}  // namespace attn::test
