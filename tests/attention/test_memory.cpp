// Memory: any strides, any alignment, 64-bit offsets, and not one byte outside.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "support/checks.h"

namespace attn::test {
namespace {

// ------------------------------------------------------------------------------------------------------------- strides

/// How a tensor is in memory: the order of its axes from outer to inner, gaps, signs, and what precedes it.
struct Layout {
  Shape<4> order = {0, 1, 2, 3};
  int64_t inner_stride = 1;  // of the innermost axis
  int64_t row_gap = 0;       // unused elements after each innermost row
  bool reversed = false;     // all strides negative
  int64_t misaligned = 0;    // elements before the first
};

/// An array copied into a layout. What is between its elements is NaN and has to stay so.
class Laid {
 public:
  Laid(const Array<4>& values, const Layout& layout) : size_(values.size()), first_(layout.misaligned) {
    if (!values.given()) return;
    int64_t next = layout.inner_stride;
    for (int axis = 3; axis >= 0; --axis) {
      const int64_t extent = size_[layout.order[axis]];
      stride_[layout.order[axis]] = layout.reversed ? -next : next;
      if (layout.reversed) first_ += next * (extent - 1);
      next = next * extent + (axis == 3 ? layout.row_gap : 0);
    }
    storage_ = Array<1>(values.dtype(), {layout.misaligned + next}).fill_with_nan();
    for (int64_t n = 0; n < values.count(); ++n) storage_.set(place_of(n), values.get(n));
  }

  View<4> view() {
    if (!storage_.given()) return {};
    return {part_of(storage_.view(), 0, first_, 1).data, storage_.dtype(), size_, stride_};
  }
  Array<4> read() const {
    if (!storage_.given()) return {};
    Array<4> values(storage_.dtype(), size_);
    for (int64_t n = 0; n < values.count(); ++n) values.set(n, storage_.get(place_of(n)));
    return values;
  }
  bool gaps_are_untouched() const {
    Array<1> gaps = storage_;
    if (!gaps.given()) return true;
    const Array<1> nan = Array<1>(storage_.dtype(), {1}).fill_with_nan();
    for (int64_t n = 0; n < size_[0] * size_[1] * size_[2] * size_[3]; ++n) gaps.set(place_of(n), nan.get(0));
    return std::all_of(gaps.bytes().begin(), gaps.bytes().end(),
                       [](std::byte byte) { return byte == std::byte{0xff}; });
  }

 private:
  int64_t place_of(int64_t n) const {
    int64_t place = first_;
    for (int axis = 3; axis >= 0; --axis) {
      place += n % size_[axis] * stride_[axis];
      n /= size_[axis];
    }
    return place;
  }

  Shape<4> size_, stride_{};
  int64_t first_;  // where element (0, 0, 0, 0) is in the storage
  Array<1> storage_;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  Shape<4> order = {0, 1, 2, 3};
  do all.push_back({.order = order});
  while (std::next_permutation(order.begin(), order.end()));  // all 24
  all.push_back({.row_gap = 3});
  all.push_back({.inner_stride = 2});
  all.push_back({.order = {0, 2, 1, 3}, .inner_stride = 3, .row_gap = 1, .misaligned = 1});
  all.push_back({.reversed = true});
  all.push_back({.order = {1, 3, 0, 2}, .row_gap = 5, .reversed = true});
  for (int64_t misaligned : {1, 2, 3, 5, 7}) all.push_back({.misaligned = misaligned});
  return all;
}

/// The call with every tensor in the given layout, results included.
Results run_laid(const Case& c, const Layout& layout, bool& gaps_are_untouched) {
  Results r = empty_results(c, c.dtype, true);
  Laid q(c.q, layout), k(c.k, layout), v(c.v, layout), dout(c.dout, layout), mask(c.mask, layout), bias(c.bias, layout);
  Laid out(r.out, layout), dq(r.dq, layout), dk(r.dk, layout), dv(r.dv, layout), dbias(r.dbias, layout);
  AttentionOptions options = c.options();
  options.mask = mask.view();
  options.bias = bias.view();
  attention(q.view(), k.view(), v.view(), out.view(), r.lse.view(), options);
  AttentionGradients gradients = {.dq = dq.view(), .dk = dk.view(), .dv = dv.view(), .dbias = dbias.view()};
  attention_backward(q.view(), k.view(), v.view(), out.view(), r.lse.view(), dout.view(), gradients, options,
                     c.dlse.view());
  for (Laid* laid : {&out, &dq, &dk, &dv, &dbias}) gaps_are_untouched &= laid->gaps_are_untouched();
  r.out = out.read();
  r.dq = dq.read();
  r.dk = dk.read();
  r.dv = dv.read();
  r.dbias = dbias.read();
  return r;
}

TEST(Strides, EveryLayoutGivesTheSameBits) {
  const Dims shapes[] = {
      {.B = 2, .H = 4, .Hk = 2, .Lq = 37, .Lk = 53, .D = 19, .Dv = 24},
      {.B = 2, .H = 2, .Hk = 2, .Lq = 3, .Lk = 300, .D = 32, .Dv = 32},
      {.B = 3, .H = 8, .Hk = 2, .Lq = 1, .Lk = 40, .D = 16, .Dv = 8},
  };
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  const std::vector<Layout> all = layouts();
  const int64_t layouts = static_cast<int64_t>(all.size()), cases = 3 * 2 * 4;
  sample(cases * layouts, {4 * layouts, cases * layouts, 120}, [&](int64_t number) {
    const Layout& layout = all[number % layouts];
    const int64_t which = number / layouts;
    const char* feature = which % 2 ? "softcap bias mask" : "none";
    const Case c = make_case(feature_named(feature), shapes[which / 2 % 3], dtypes[which / 6], 21);
    for_each_isa([&](const std::string& isa) {
      bool gaps_are_untouched = true;
      EXPECT_TRUE(same_results(run_laid(c, layout, gaps_are_untouched), run(c)))
          << "layout " << number % layouts << " of " << c.name() << " on " << isa;
      EXPECT_TRUE(gaps_are_untouched) << "layout " << number % layouts << " of " << c.name() << " on " << isa;
    });
  });
}

/// Strides of 0: one query, key or value row that means all.
TEST(Strides, BroadcastInputs) {
  for_each_isa([](const std::string& isa) {
    for (int axis = 0; axis < 4; ++axis)
      for (Array<4> Case::*input : {&Case::q, &Case::k, &Case::v, &Case::dout}) {
        Case c = make_case(feature_named("mask"), small_dims()[0], DType::float32, 22);
        Array<4>& expanded = c.*input;
        for (int64_t n = 0; n < expanded.count(); ++n) {
          int64_t inner = 1;
          for (int a = 3; a > axis; --a) inner *= expanded.size()[a];
          expanded.set(n, expanded.get(n - n / inner % expanded.size()[axis] * inner));
        }
        const Results expected = run(c);
        const auto broadcast = [&](const Array<4>& array) {
          ConstView<4> view = array.view();
          if (&array == &expanded) view.stride[axis] = 0;
          return view;
        };
        Results r = empty_results(c, c.dtype, true);
        attention(broadcast(c.q), broadcast(c.k), broadcast(c.v), r.out.view(), r.lse.view(), c.options());
        attention_backward(broadcast(c.q), broadcast(c.k), broadcast(c.v), r.out.view(), r.lse.view(),
                           broadcast(c.dout), gradients_of(r), c.options(), c.dlse.view());
        EXPECT_TRUE(same_results(r, expected)) << "axis " << axis << " on " << isa;
      }
  });
}

// ------------------------------------------------------------------------------------------------------ 64-bit offsets

constexpr int64_t kFarRow = int64_t{1} << 28;  // elements between rows: row 9 is beyond 2^31
constexpr int64_t kRows = 10;

/// Address space without memory after it until it is touched.
class SparseMapping {
 public:
  explicit SparseMapping(int64_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  SparseMapping(const SparseMapping&) = delete;
  ~SparseMapping() { munmap(data_, bytes_); }
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  int64_t bytes_;
  void* data_;
};

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

enum class Far { q, k, v, out, dout, dq, dk, dv, mask, bias, nothing };

/// The call with the rows of one tensor 2^28 elements apart.
Results run_far(const Case& c, Far far, void* memory) {
  Results r = empty_results(c, c.dtype, true);
  const auto place = [&](Far which, View<4> near) {
    if (far != which) return near;
    View<4> view = near;
    view.data = memory;
    view.stride = {0, 0, kFarRow, 1};
    return view;
  };
  const auto copy = [](const View<4>& from, const View<4>& to) {
    for (int64_t row = 0; row < from.size[2]; ++row)
      for (int64_t n = 0; n < from.size[3]; ++n)
        store_element(to.data, to.dtype, row * to.stride[2] + n,
                      load_element(from.data, from.dtype, row * from.stride[2] + n));
  };
  Case inputs = c;
  const auto place_input = [&](Far which, Array<4>& array) {
    const View<4> view = place(which, array.view());
    if (far == which) copy(array.view(), view);
    return view;
  };
  const View<4> q = place_input(Far::q, inputs.q), k = place_input(Far::k, inputs.k), v = place_input(Far::v, inputs.v);
  const View<4> dout = place_input(Far::dout, inputs.dout);
  AttentionOptions options = inputs.options();
  options.mask = place_input(Far::mask, inputs.mask);
  options.bias = place_input(Far::bias, inputs.bias);
  const View<4> out = place(Far::out, r.out.view()), dq = place(Far::dq, r.dq.view()), dk = place(Far::dk, r.dk.view()),
                dv = place(Far::dv, r.dv.view());
  attention(q, k, v, out, r.lse.view(), options);
  attention_backward(q, k, v, out, r.lse.view(), dout, {.dq = dq, .dk = dk, .dv = dv, .dbias = r.dbias.view()}, options,
                     c.dlse.view());
  copy(out, r.out.view());
  copy(dq, r.dq.view());
  copy(dk, r.dk.view());
  copy(dv, r.dv.view());
  return r;
}

TEST(Index64, RowsBeyond32Bits) {
  const int64_t before = resident_bytes();
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16})
      for (int64_t heads : {1, 4}) {  // several query heads of one key head take another path
        Case c = make_case(feature_named("none"), {.H = heads, .Hk = 1, .Lq = kRows, .Lk = kRows, .D = 8, .Dv = 8},
                           dtype, 23);
        Random random(24);
        c.mask = random_mask(random, {1, 1, kRows, kRows}, 0.8);
        add_bias(c, random, {1, 1, kRows, kRows});
        const Results expected = run(c);
        for (Far far : {Far::q, Far::k, Far::v, Far::out, Far::dout, Far::dq, Far::dk, Far::dv, Far::mask, Far::bias}) {
          const bool has_heads = far != Far::k && far != Far::v && far != Far::dk && far != Far::dv &&
                                 far != Far::mask && far != Far::bias;
          if (heads > 1 && has_heads) continue;
          const SparseMapping memory(kFarRow * kRows * int64_t{sizeof(double)});
          ASSERT_TRUE(memory.ok()) << "no address space";
          EXPECT_TRUE(same_results(run_far(c, far, memory.data()), expected))
              << "tensor " << static_cast<int>(far) << " of " << c.name() << " on " << isa;
        }
      }
  });
  EXPECT_LE(resident_bytes() - before, 64 << 20);
}

// --------------------------------------------------------------------------------------------------------- guard pages

/// Memory between two pages that must not be touched; an array is against the first or the last byte.
class Guarded {
 public:
  Guarded(const Array<4>& values, bool at_end) : size_(values.size()), dtype_(values.dtype()) {
    if (!values.given()) return;
    const int64_t page = sysconf(_SC_PAGESIZE), bytes = static_cast<int64_t>(values.bytes().size());
    const int64_t inner = (bytes + page - 1) / page * page;
    bytes_ = inner + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, inner, PROT_READ | PROT_WRITE);
    data_ = at_end ? base_ + page + inner - bytes : base_ + page;
    std::memcpy(data_, values.bytes().data(), bytes);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  View<4> view() { return {data_, dtype_, size_}; }

 private:
  Shape<4> size_;
  DType dtype_;
  int64_t bytes_ = 0;
  std::byte *base_ = nullptr, *data_ = nullptr;
};

/// A touch outside is a SIGSEGV, which fails the test without any sanitizer.
void run_guarded(const Case& c, bool at_end) {
  Results r = empty_results(c, c.dtype, true);
  Guarded q(c.q, at_end), k(c.k, at_end), v(c.v, at_end), dout(c.dout, at_end), mask(c.mask, at_end),
      bias(c.bias, at_end);
  Guarded out(r.out, at_end), dq(r.dq, at_end), dk(r.dk, at_end), dv(r.dv, at_end), dbias(r.dbias, at_end);
  AttentionOptions options = c.options();
  options.mask = mask.view();
  options.bias = bias.view();
  attention(q.view(), k.view(), v.view(), out.view(), r.lse.view(), options);
  AttentionGradients gradients = {.dq = dq.view(), .dk = dk.view(), .dv = dv.view(), .dbias = dbias.view()};
  attention_backward(q.view(), k.view(), v.view(), out.view(), r.lse.view(), dout.view(), gradients, options);
}

TEST(Guard, NothingOutsideIsTouched) {
  sample(288 * 260, {.quick = 450, .normal = 1300, .seconds = 60}, [](int64_t number) {
    const int64_t D = 1 + number / 260, Lk = 1 + number % 260;
    const Dims dims = {
        .H = 1 + Lk % 3, .Hk = 1, .Lq = 1 + (D * 7 + Lk) % 21, .Lk = Lk, .D = D, .Dv = 1 + (D + Lk) % 288};
    const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64};
    const char* names[] = {"none", "softcap bias mask", "causal bottom_right", "bias full"};
    const Case c = make_case(feature_named(names[Lk % 4]), dims, dtypes[(D + Lk / 4) % 4], D);
    for_each_isa([&](const std::string&) { run_guarded(c, (D + Lk) % 5 != 0); });
  });
}

/// More rows than 64 bits can count the bytes of, all of them the same one.
TEST(Index64, RepeatedRowsBeyondAllCounting) {
  float row[8] = {};
  const View<4> keys = {row, DType::float32, {4, 4, int64_t{1} << 61, 8}, {0, 0, 0, 1}};
  const View<4> no_rows = {row, DType::float32, {4, 4, 0, 8}, {0, 0, 0, 1}};
  attention(no_rows, keys, keys, no_rows);
  EXPECT_GE(explain(no_rows, keys, keys).scratch_bytes, 0);
}

/// One row a head: keys that follow each other, and those of three heads that are between each other.
TEST(Guard, KeysOfARowAloneAreReadToTheirEnd) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (int64_t D : {16, 32, 64, 96, 128})
      for (int64_t keys : {1, 3, 6, 15, 17, 31, 34})
        for (int64_t heads : {1, 3}) {
          Random random(static_cast<uint64_t>(D + keys));
          Array<4> x(dtype, {1, keys, heads, D}), query(dtype, {1, heads, 1, D});
          x.fill_normal(random);
          query.fill_normal(random);
          Guarded k(x, true), v(x, true), q(query, true);
          Array<4> out(dtype, query.size());
          const auto as_heads = [](View<4> y) {
            std::swap(y.size[1], y.size[2]);
            std::swap(y.stride[1], y.stride[2]);
            return y;
          };
          for_each_isa([&](const std::string&) {
            attention(q.view(), as_heads(k.view()), as_heads(v.view()), out.fill_with_nan().view());
          });
        }
  }
}

}  // namespace
}  // namespace attn::test
