// Bad input: attn::Error with every reason and the shapes, and nothing written.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

/// A valid call that each case below spoils.
struct Call {
  Array<4> q{DType::float32, {2, 4, 3, 8}}, k{DType::float32, {2, 2, 5, 8}}, v{DType::float32, {2, 2, 5, 6}};
  Array<4> out = Array<4>(DType::float32, {2, 4, 3, 6}).fill_with_nan(), dout{DType::float32, {2, 4, 3, 6}};
  Array<3> lse = Array<3>(DType::float32, {2, 4, 3}).fill_with_nan();
  ConstView<4> q_view = q.view(), k_view = k.view(), v_view = v.view(), dout_view = dout.view();
  View<4> out_view = out.view();
  View<3> lse_view = lse.view();
  ConstView<3> dlse_view;
  AttentionOptions options;
  std::vector<int64_t> numbers = {1, 2, 3, 4};
  std::vector<float> floats = {1, 2, 3, 4, 5};
  Array<4> extra4;
  Array<2> extra2;
  Array<3> offsets{DType::int64, {1, 1, 3}};  // of lists of key blocks, {0, 1} and {2}
  Array<1> indices{DType::int64, {3}};
  Array<4> dq = Array<4>(DType::float32, {2, 4, 3, 8}).fill_with_nan();
  AttentionGradients gradients;

  Call() {
    for (int64_t n = 0; n < 3; ++n) indices.set(n, static_cast<double>(n));
    offsets.set(1, 2);
    offsets.set(2, 3);
  }
  Call(const Call&) = delete;

  void list_blocks() { options.blocks = {{}, 2, 2, offsets.view(), indices.view()}; }

  void forward() { attention(q_view, k_view, v_view, out_view, lse_view, options); }
  void backward() {
    if (!gradients.dq && !gradients.dk && !gradients.dv && !gradients.dbias && !gradients.dsink)
      gradients.dq = dq.view();
    attention_backward(q_view, k_view, v_view, out_view, lse_view, dout_view, gradients, options, dlse_view);
  }
};

struct Bad {
  const char* name;
  void (*spoil)(Call&);
  std::vector<const char*> says;  // all of it must be in the message
};

/// Runs a call that must be refused; returns the message.
template <class Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_FALSE(error.reasons().empty());
    return error.what();
  }
  return "no error";
}

/// The message says all that it should, and the results are still as they were.
void expect_refused(const Bad& bad, void (Call::*run)(), const std::string& operation) {
  for_each_isa([&](const std::string& isa) {
    Call call;
    bad.spoil(call);
    const Array<4> out = call.out, dq = call.dq, q = call.q;
    const Array<3> lse = call.lse;
    const std::string message = refusal([&] { (call.*run)(); });
    EXPECT_EQ(message.rfind("[" + operation + "] ", 0), 0) << bad.name << " on " << isa << ": " << message;
    for (const char* part : bad.says)
      EXPECT_NE(message.find(part), std::string::npos)
          << bad.name << ": \"" << message << "\" lacks \"" << part << "\"";
    EXPECT_TRUE(same_bits(call.out, out) && same_bits(call.lse, lse) && same_bits(call.dq, dq) && same_bits(call.q, q))
        << bad.name << ": something was written";
  });
}

/// What forward and backward refuse alike.
const Bad kBadInputs[] = {
    {"batch sizes differ",
     [](Call& c) { c.k_view.size[0] = 1; },
     {"batch", "[2, 4, 3, 8]", "[1, 2, 5, 8]", "[2, 2, 5, 6]"}},
    {"head widths differ", [](Call& c) { c.k_view.size[3] = 7; }, {"head width D", "[2, 4, 3, 8]", "[2, 2, 5, 7]"}},
    {"value length differs", [](Call& c) { c.v_view.size[2] = 4; }, {"v must have k's heads Hk and length Lk"}},
    {"value heads differ", [](Call& c) { c.v_view.size[1] = 1; }, {"v must have k's heads Hk and length Lk"}},
    {"Hk does not divide H", [](Call& c) { c.k_view.size[1] = c.v_view.size[1] = 3; }, {"Hk = 3", "divide H = 4"}},
    {"Hk is 0", [](Call& c) { c.k_view.size[1] = c.v_view.size[1] = 0; }, {"Hk = 0", "divide H = 4"}},
    {"q is integer", [](Call& c) { c.q_view.dtype = DType::int32; }, {"q is int32"}},
    {"types differ", [](Call& c) { c.k_view.dtype = DType::float16; }, {"one type", "float32", "float16"}},
    {"a negative size", [](Call& c) { c.q_view.size[2] = -1; }, {"q has a negative size", "-1"}},
    {"strides beyond 64 bits",
     [](Call& c) { c.q_view.stride[2] = std::numeric_limits<int64_t>::max() / 2; },
     {"q has strides beyond 64-bit offsets"}},
    {"no data", [](Call& c) { c.q_view.data = nullptr; }, {"must have data"}},
    {"D over 1024",
     [](Call& c) { c.q_view.size[3] = c.k_view.size[3] = 1025, c.q_view.stride = c.k_view.stride = {}; },
     {"1025", "at most 1024"}},
    {"scale is NaN", [](Call& c) { c.options.scale = kNaN; }, {"scale is nan, must be finite"}},
    {"scale is infinite", [](Call& c) { c.options.scale = kInf; }, {"scale is inf, must be finite"}},
    {"softcap is negative", [](Call& c) { c.options.softcap = -1; }, {"softcap"}},
    {"float32_precision is none of the three",
     [](Call& c) { c.options.float32_precision = static_cast<Float32Precision>(3); },
     {"float32_precision is 3, must be full, high or fast"}},
    {"softcap is NaN", [](Call& c) { c.options.softcap = kNaN; }, {"softcap"}},
    {"dropout is 1", [](Call& c) { c.options.dropout = 1; }, {"dropout is 1", "[0, 1)"}},
    {"dropout is negative", [](Call& c) { c.options.dropout = -0.1; }, {"dropout is -0.1", "[0, 1)"}},
    {"dropout is NaN", [](Call& c) { c.options.dropout = kNaN; }, {"dropout", "[0, 1)"}},
    {"window below -1", [](Call& c) { c.options.window.left = -2; }, {"window is {-2, -1}"}},
    {"causal without alignment", [](Call& c) { c.options.causal = true; }, {"alignment", "Lq = 3", "Lk = 5"}},
    {"window without alignment",
     [](Call& c) {
       c.options.window = {1, 1};
     },
     {"alignment", "Lq = 3", "Lk = 5"}},
    {"ALiBi without alignment",
     [](Call& c) { c.options.alibi_slopes = std::span(c.floats).first(4); },
     {"alignment", "Lq = 3", "Lk = 5"}},
    {"offset without offsets", [](Call& c) { c.options.alignment = Alignment::offset; }, {"no offset is given"}},
    {"offsets without alignment",
     [](Call& c) { c.options.offset = std::span(c.numbers).first(2); },
     {"alignment is not offset"}},
    {"too many key lengths",
     [](Call& c) { c.options.key_length = std::span(c.numbers).first(3); },
     {"key_length has 3 entries", "B = 2"}},
    {"a key length beyond Lk",
     [](Call& c) {
       c.numbers = {5, 6};
       c.options.key_length = c.numbers;
     },
     {"key_length[1] is 6", "[0, 5]"}},
    {"a negative key length",
     [](Call& c) {
       c.numbers = {-1, 2};
       c.options.key_length = c.numbers;
     },
     {"key_length[0] is -1", "[0, 5]"}},
    {"a query length beyond Lq",
     [](Call& c) {
       c.numbers = {3, 4};
       c.options.query_length = c.numbers;
     },
     {"query_length[1] is 4", "[0, 3]"}},
    {"mask is float",
     [](Call& c) {
       c.extra4 = Array<4>(DType::float32, {2, 4, 3, 5});
       c.options.mask = c.extra4.view();
     },
     {"mask is float32", "boolean"}},
    {"mask does not fit",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {2, 4, 3, 4});
       c.options.mask = c.extra4.view();
     },
     {"mask has size [2, 4, 3, 4]", "[2, 4, 3, 5]"}},
    {"mask of key heads",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {2, 2, 3, 5});
       c.options.mask = c.extra4.view();
     },
     {"mask has size [2, 2, 3, 5]", "[2, 4, 3, 5]"}},
    {"bias is boolean",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {2, 4, 3, 5});
       c.options.bias = c.extra4.view();
     },
     {"bias is boolean", "mask"}},
    {"bias does not fit",
     [](Call& c) {
       c.extra4 = Array<4>(DType::float32, {3, 4, 3, 5});
       c.options.bias = c.extra4.view();
     },
     {"bias has size [3, 4, 3, 5]", "[2, 4, 3, 5]"}},
    {"slopes of key heads",
     [](Call& c) {
       c.options.alibi_slopes = std::span(c.floats).first(2);
       c.options.alignment = Alignment::top_left;
     },
     {"alibi_slopes has 2 entries", "H = 4"}},
    {"sink for too many heads", [](Call& c) { c.options.sink = c.floats; }, {"sink has 5 entries", "H = 4"}},
    {"documents of one side",
     [](Call& c) {
       c.extra2 = Array<2>(DType::int32, {2, 3});
       c.options.query_segment_ids = c.extra2.view();
     },
     {"query_segment_ids and key_segment_ids must be given together"}},
    {"documents are floats",
     [](Call& c) {
       c.extra2 = Array<2>(DType::float32, {2, 3});
       c.options.query_segment_ids = c.extra2.view();
       c.options.key_segment_ids = c.extra2.view();
     },
     {"query_segment_ids is float32", "key_segment_ids is float32", "key_segment_ids has size [2, 3]"}},
    {"blocks without sizes",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {1, 1, 3, 5});
       c.options.blocks.allowed = c.extra4.view();
     },
     {"blocks", "positive"}},
    {"blocks do not cover the matrix",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {1, 1, 1, 2});
       c.options.blocks = {c.extra4.view(), 2, 2};
     },
     {"blocks.allowed has size [1, 1, 1, 2]", "[2, 4, 2, 3]"}},
    {"blocks in two forms",
     [](Call& c) {
       c.extra4 = Array<4>(DType::boolean, {1, 1, 2, 3});
       c.options.blocks = {c.extra4.view(), 2, 2, c.offsets.view()};
     },
     {"blocks are given as allowed and as lists (offsets, indices), must be one of them"}},
    {"blocks of indices alone",
     [](Call& c) { c.options.blocks.indices = c.indices.view(); },
     {"blocks have sizes or indices, but neither blocks.allowed nor blocks.offsets is given"}},
    {"block lists of other types",
     [](Call& c) {
       c.offsets = Array<3>(DType::int32, {1, 1, 3});
       c.indices = Array<1>(DType::int32, {3});
       c.list_blocks();
     },
     {"blocks.offsets is int32, must be int64", "blocks.indices is int32, must be int64"}},
    {"block lists for too few queries",
     [](Call& c) {
       c.offsets = Array<3>(DType::int64, {1, 1, 2});
       c.list_blocks();
     },
     {"blocks.offsets has size [1, 1, 2], must be [2, 4, 3] (the first two axes may be 1)"}},
    {"block lists without sizes",
     [](Call& c) {
       c.list_blocks();
       c.options.blocks.key_block = 0;
     },
     {"blocks must have positive block sizes"}},
    {"block lists that fall",
     [](Call& c) {
       c.offsets.set(2, 1);
       c.list_blocks();
     },
     {"blocks.offsets[0, 0, 2] is 1, must be in [2, 3]"}},
    {"block lists that begin before the first index",
     [](Call& c) {
       c.offsets.set(0, -1);
       c.list_blocks();
     },
     {"blocks.offsets[0, 0, 0] is -1, must be in [0, 3]"}},
    {"block lists that end after the last index",
     [](Call& c) {
       c.offsets.set(2, 4);
       c.list_blocks();
     },
     {"blocks.offsets[0, 0, 2] is 4, must be in [2, 3]"}},
    {"block lists that do not rise",
     [](Call& c) {
       c.indices.set(1, 0);
       c.list_blocks();
     },
     {"blocks.indices[1] is 0, must be in [1, 2]: a list rises"}},
    {"block lists beyond the last block",
     [](Call& c) {
       c.indices.set(2, 3);
       c.list_blocks();
     },
     {"blocks.indices[2] is 3, must be in [0, 2]", "the last of the key blocks is 2"}},
    {"packed with a batch",
     [](Call& c) {
       c.numbers = {0, 3};
       c.options.cu_seqlens_q = c.options.cu_seqlens_k = c.numbers;
     },
     {"B is 2, must be 1"}},
    {"packed on one side", [](Call& c) { c.options.cu_seqlens_k = c.numbers; }, {"cu_seqlens_q", "cu_seqlens_k"}},
    {"starts that fall",
     [](Call& c) {
       c.numbers = {0, 3, 2, 3};
       c.options.cu_seqlens_q = c.options.cu_seqlens_k = c.numbers;
     },
     {"cu_seqlens_q must rise"}},
    {"starts beyond the end",
     [](Call& c) {
       c.numbers = {0, 2, 4};
       c.options.cu_seqlens_q = c.options.cu_seqlens_k = c.numbers;
     },
     {"cu_seqlens_q", "within 0 .. 3"}},
    {"out does not fit", [](Call& c) { c.out_view.size[3] = 8; }, {"out has size [2, 4, 3, 8]", "[2, 4, 3, 6]"}},
    {"out is of another type", [](Call& c) { c.out_view.dtype = DType::bfloat16; }, {"out", "type"}},
    {"out is integer", [](Call& c) { c.out_view.dtype = DType::int64; }, {"out is int64"}},
    {"lse does not fit", [](Call& c) { c.lse_view.size[2] = 2; }, {"lse has size [2, 4, 2]", "[2, 4, 3]"}},
    {"lse is float64", [](Call& c) { c.lse_view.dtype = DType::float64; }, {"lse is float64", "float32"}},
    {"several at once",
     [](Call& c) {
       c.k_view.size[1] = c.v_view.size[1] = 3;
       c.options.dropout = 2;
       c.options.softcap = -1;
       c.lse_view.size[0] = 7;
     },
     {"divide H = 4", "dropout is 2", "softcap", "lse has size [7, 4, 3]"}},
};

TEST(Errors, BothDirectionsRefuse) {
  for (const Bad& bad : kBadInputs) {
    expect_refused(bad, &Call::forward, "attention");
    expect_refused(bad, &Call::backward, "attention_backward");
  }
}

const Bad kBadForward[] = {
    {"out overlaps q", [](Call& c) { c.out_view.data = c.q.view().data; }, {"out overlaps q"}},
    {"out overlaps v by one element",
     [](Call& c) { c.out_view.data = static_cast<float*>(c.v.view().data) + c.v.count() - 1; },
     {"out overlaps v"}},
    {"out overlaps itself", [](Call& c) { c.out_view.stride[1] = 0; }, {"out overlaps itself"}},
    {"lse is in out", [](Call& c) { c.lse_view.data = c.out.view().data; }, {"out overlaps lse"}},
    {"no out", [](Call& c) { c.out_view.data = nullptr; }, {"out must have data"}},
};

TEST(Errors, TheForwardRefuses) {
  for (const Bad& bad : kBadForward) expect_refused(bad, &Call::forward, "attention");
}

const Bad kBadBackward[] = {
    {"dout does not fit", [](Call& c) { c.dout_view.size[2] = 2; }, {"dout has size [2, 4, 2, 6]", "[2, 4, 3, 6]"}},
    {"dout is of another type", [](Call& c) { c.dout_view.dtype = DType::bfloat16; }, {"dout", "type"}},
    {"no lse", [](Call& c) { c.lse_view = {}; }, {"lse"}},
    {"dq does not fit",
     [](Call& c) {
       c.gradients.dq = c.dq.view();
       c.gradients.dq.size[3] = 6;
     },
     {"dq has size [2, 4, 3, 6]", "[2, 4, 3, 8]"}},
    {"dbias without a bias",
     [](Call& c) { c.gradients.dbias = c.dq.view(); },
     {"dbias is requested, but there is no bias"}},
    {"dsink without a sink",
     [](Call& c) { c.gradients.dsink = View<1>(c.dq.view().data, DType::float32, {4}); },
     {"dsink is requested, but there is no sink"}},
    {"dsink for too many heads",
     [](Call& c) {
       c.options.sink = std::span(c.floats).first(4);
       c.gradients.dsink = View<1>(c.dq.view().data, DType::float32, {5});
     },
     {"dsink", "[4]"}},
    {"dlse does not fit",
     [](Call& c) {
       c.dlse_view = ConstView<3>(c.q.view().data, DType::float32, {2, 4, 2});
     },
     {"dlse has size [2, 4, 2]"}},
    {"dq overlaps k",
     [](Call& c) {
       c.gradients.dq = {c.k.view().data, DType::float32, c.q.size()};
     },
     {"dq overlaps k"}},
    {"dq is dk",
     [](Call& c) {
       c.gradients.dq = c.dq.view();
       c.gradients.dk = {c.dq.view().data, DType::float32, c.k.size()};
     },
     {"dq overlaps dk"}},
};

TEST(Errors, TheBackwardRefuses) {
  for (const Bad& bad : kBadBackward) expect_refused(bad, &Call::backward, "attention_backward");
}

// ------------------------------------------------------------------------------------------------------ exact messages

TEST(Errors, ExactMessages) {
  Call call;
  call.k_view.size[1] = call.v_view.size[1] = 3;
  EXPECT_EQ(refusal([&] { call.forward(); }), "[attention] k has Hk = 3 heads, which must divide H = 4");
  Call two;
  two.options.causal = true;
  two.options.dropout = 1.5;
  EXPECT_EQ(refusal([&] { two.backward(); }),
            "[attention_backward] dropout is 1.500000, must be in [0, 1); alignment must be given (top_left, "
            "bottom_right or offset): Lq = 3 differs from Lk = 5");
  Call widths;
  widths.k_view.size[3] = 7;
  EXPECT_EQ(refusal([&] { widths.forward(); }),
            "[attention] k must have q's head width D: q is [2, 4, 3, 8], k is [2, 2, 5, 7], v is [2, 2, 5, 6]");
}

TEST(Errors, UnknownInstructionSetListsTheChoices) {
  const std::string before = active_isa();
  const std::string message = refusal([] { set_isa("quantum"); });
  EXPECT_NE(message.find("quantum"), std::string::npos);
  for (const std::string& isa : available_isas()) EXPECT_NE(message.find(isa), std::string::npos) << message;
  EXPECT_EQ(active_isa(), before) << "and the one in use stays";
}

/// One that is built in and that this CPU lacks is refused like one that does not exist.
TEST(Errors, AnInstructionSetThatTheCpuLacks) {
  const std::vector<std::string> isas = available_isas();
  for (const char* isa : {"amx_fp16", "amx", "avx512_bf16", "neon"}) {
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) continue;
    const std::string message = refusal([&] { set_isa(isa); });
    EXPECT_NE(message.find(std::string("'") + isa + "', which this CPU or build does not have; choices: "),
              std::string::npos)
        << message;
  }
}

/// What looks like an overlap and is none: slices of one array, in and out.
TEST(Errors, InterleavedSlicesAreFine) {
  Array<4> packed(DType::float32, {2, 3, 4, 40});  // [B, Lq, H, q | k | v | out]
  const auto slice = [&](int64_t first, int64_t width) {
    View<4> view = part_of(packed.view(), 3, first, width);
    return View<4>(view.data, view.dtype, {2, 4, 3, width}, {view.stride[0], view.stride[2], view.stride[1], 1});
  };
  EXPECT_NO_THROW(attention(slice(0, 10), slice(10, 10), slice(20, 10), slice(30, 10)));
  EXPECT_THROW(attention(slice(0, 10), slice(10, 10), slice(20, 10), slice(29, 10)), Error);
}

/// Heads of one array [B, L, heads, D], grouped queries beside their keys and values: every place of out, one by one.
TEST(Errors, OverlapOfGroupedHeadsIsExact) {
  constexpr int64_t kHeads = 14, kWidth = 3;
  Array<4> packed(DType::float32, {2, 5, kHeads, kWidth});
  const auto slice = [&](int64_t first, int64_t heads) {
    View<4> view = part_of(packed.view(), 2, first, heads);
    return View<4>(view.data, view.dtype, {2, heads, 5, kWidth}, {view.stride[0], view.stride[2], view.stride[1], 1});
  };
  for (int64_t first = 0; first + 4 <= kHeads; ++first) {  // q in 5 .. 8, k in 9 and 10, v in 11 and 12
    const bool apart = first + 4 <= 5 || first >= 13;
    const auto call = [&] { attention(slice(5, 4), slice(9, 2), slice(11, 2), slice(first, 4)); };
    if (apart) EXPECT_NO_THROW(call()) << first;
    else EXPECT_THROW(call(), Error) << first;
  }
  const auto mirrored = [](View<4> view) {  // from the last row to the first
    view.data = static_cast<float*>(view.data) + (view.size[2] - 1) * view.stride[2];
    view.stride[2] = -view.stride[2];
    return view;
  };
  EXPECT_NO_THROW(
      attention(mirrored(slice(4, 4)), mirrored(slice(8, 2)), mirrored(slice(10, 2)), mirrored(slice(0, 4))));
  EXPECT_THROW(attention(mirrored(slice(4, 4)), mirrored(slice(8, 2)), mirrored(slice(10, 2)), mirrored(slice(1, 4))),
               Error);
}

TEST(Errors, WeightsRefuse) {
  Call c;
  Array<4> weights(DType::float32, {2, 4, 3, 5});
  const auto attempt = [&](const View<4>& view, int64_t first_query, int64_t first_key) {
    return refusal([&] { attention_weights(c.q_view, c.k_view, c.lse_view, view, first_query, first_key); });
  };
  EXPECT_NE(attempt(weights.view(), 1, 0).find("exceed Lq = 3"), std::string::npos);
  EXPECT_NE(attempt(weights.view(), 0, 1).find("exceed Lk = 5"), std::string::npos);
  EXPECT_NE(attempt(weights.view(), -1, 0).find("exceed Lq = 3"), std::string::npos);
  EXPECT_NE(attempt(weights.view(), 0, std::numeric_limits<int64_t>::max()).find("exceed Lk"), std::string::npos);
  View<4> wrong = weights.view();
  wrong.dtype = DType::int32;
  EXPECT_NE(attempt(wrong, 0, 0).find("weights is int32"), std::string::npos);
}

TEST(Errors, MergeRefuses) {
  Call a, b;
  const auto attempt = [&](const View<4>& out, const View<3>& lse, const ConstView<4>& out_b,
                           const ConstView<3>& lse_b) { return refusal([&] { merge(out, lse, out_b, lse_b); }); };
  ConstView<4> short_out = b.out.view();
  short_out.size[2] = 2;
  EXPECT_NE(attempt(a.out.view(), a.lse.view(), short_out, b.lse.view()).find("out_b has size [2, 4, 2, 6]"),
            std::string::npos);
  EXPECT_NE(attempt(a.out.view(), a.lse.view(), a.out.view(), b.lse.view()).find("out overlaps out_b"),
            std::string::npos);
  ConstView<3> missing;
  missing.size = b.lse.size();
  EXPECT_NE(attempt(a.out.view(), a.lse.view(), b.out.view(), missing).find("must have data"), std::string::npos);
}

TEST(Errors, CacheRefuses) {
  const auto make = [](const KVCacheConfig& config) { return refusal([&] { KVCache cache(config); }); };
  EXPECT_NE(make({.kv_heads = 0, .head_dim = 8}).find("kv_heads is 0"), std::string::npos);
  EXPECT_NE(make({.kv_heads = 1, .head_dim = 1025}).find("1025"), std::string::npos);
  EXPECT_NE(make({.kv_heads = 1, .head_dim = 8, .page_size = 0}).find("page_size is 0"), std::string::npos);
  EXPECT_NE(make({.kv_heads = 1, .head_dim = 8, .dtype = DType::int32}).find("int32"), std::string::npos);

  KVCache cache({.kv_heads = 2, .head_dim = 8, .value_dim = 6});
  const int64_t sequence = cache.add();
  const std::vector<int64_t> known = {sequence}, unknown = {sequence + 7}, starts = {0, 3};
  const Array<4> q(DType::float32, {1, 4, 3, 8});
  Array<4> out(DType::float32, {1, 4, 3, 6});
  const auto attempt = [&](const std::vector<int64_t>& sequences, const std::vector<int64_t>& cu_seqlens_q,
                           const AttentionOptions& options) {
    return refusal([&] { cache.attend(sequences, cu_seqlens_q, q.view(), out.view(), options); });
  };
  EXPECT_EQ(attempt(known, starts, {}), "no error");
  EXPECT_NE(attempt(unknown, starts, {}).find("the cache has no sequence 7"), std::string::npos);
  EXPECT_NE(attempt(known, {0, 1, 3}, {}).find("cu_seqlens_q has 3 entries"), std::string::npos);
  EXPECT_NE(attempt(known, {0, 4}, {}).find("cu_seqlens_q"), std::string::npos);
  const bool allowed = true;
  EXPECT_NE(attempt(known, starts, {.mask = {&allowed, {1, 1, 1, 1}}}).find("do not apply to a cache"),
            std::string::npos);
  EXPECT_NE(attempt(known, starts, {.bias = q.view()}).find("bias has size [1, 4, 3, 8], must be [1, 4, 3, 0]"),
            std::string::npos);
  EXPECT_NE(refusal([&] { cache.truncate(sequence, 1); }).find("length is 1"), std::string::npos);
  EXPECT_NE(refusal([&] { cache.fork(sequence, 1); }).find("length is 1"), std::string::npos);
  EXPECT_NE(refusal([&] { cache.remove(sequence + 1); }).find("the cache has no sequence"), std::string::npos);
}

TEST(Errors, ExplainRefuses) {
  Call c;
  c.k_view.size[3] = 7;
  EXPECT_NE(refusal([&] { explain(c.q_view, c.k_view, c.v_view); }).find("[explain] k must have q's head width D"),
            std::string::npos);
  EXPECT_NE(refusal([&] { explain_backward(c.q_view, c.k_view, c.v_view); }).find("[explain_backward]"),
            std::string::npos);
}

}  // namespace
}  // namespace attn::test
