// view under calls that nobody should make: each is an Error that says what is wrong.
#include <limits>

#include "attn/view.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

using namespace view;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
const std::vector<std::string> kTwo = {"a", "b"};

/// One head of uniform attention over two tokens.
struct Picture {
  Tensor<float, 4> weights{{1, 1, 2, 2}}, q{{1, 1, 2, 4}}, k{{1, 1, 2, 4}}, v{{1, 1, 2, 4}}, out{{1, 1, 2, 4}};
  Tensor<float, 3> lse{{1, 1, 2}};
  RecordedAttention layer = {.name = "layer 0"};

  Picture() {
    attention(q, k, v, out, lse.view());
    layer.q = q;
    layer.k = k;
    layer.lse = lse;
  }
};

TEST(HostileView, Terminal) {
  expect_refused({
      {"nothing", [] { terminal_heatmap({}, {}, {}); }, {"[terminal_heatmap]", "weights have size [0, 0, 0, 0]"}},
      {"no data",
       [] {
         terminal_heatmap({nullptr, DType::float32, {1, 1, 2, 2}}, kTwo, kTwo);
       },
       {"[terminal_heatmap]", "weights must have data"}},
      {"no labels",
       [] {
         Picture p;
         terminal_heatmap(p.weights, {}, {});
       },
       {"[terminal_heatmap]", "0 row labels, must be one for each of 2 rows", "0 column labels"}},
      {"NaN",
       [] {
         Picture p;
         p.weights[3] = kNaN;
         terminal_heatmap(p.weights, kTwo, kTwo);
       },
       {"[terminal_heatmap]", "query 1, key 1", "nan"}},
      {"negative limits",
       [] {
         Picture p;
         terminal_heatmap(p.weights, kTwo, kTwo, {.max_rows = -1, .max_columns = 0});
       },
       {"[terminal_heatmap]", "max_rows"}},
      {"no such scale",
       [] {
         Picture p;
         terminal_heatmap(p.weights, kTwo, kTwo, {.scale = static_cast<Scale>(9)});
       },
       {"[terminal_heatmap]", "scale"}},
      {"strides beyond 64 bits",
       [] {
         Picture p;
         View<4> far = p.weights;
         far.stride[2] = kLargest;
         terminal_heatmap(far, kTwo, kTwo);
       },
       {"[terminal_heatmap]", "strides beyond"}},
      {"a negative size",
       [] {
         Picture p;
         View<4> bad = p.weights;
         bad.size[2] = -2;
         terminal_heatmap(bad, kTwo, kTwo);
       },
       {"[terminal_heatmap]", "[1, 1, -2, 2]"}},
  });
}

TEST(HostileView, Png) {
  expect_refused({
      {"nothing", [] { png_heatmap({}); }, {"[png_heatmap]", "weights have size"}},
      {"doubles",
       [] {
         png_heatmap(Tensor<double, 4>({1, 1, 2, 2}).view());
       },
       {"[png_heatmap]", "float64"}},
      {"cells of -1 pixels",
       [] {
         Picture p;
         png_heatmap(p.weights, {.cell = -1});
       },
       {"[png_heatmap]", "cell"}},
      {"cells of all pixels",
       [] {
         Picture p;
         png_heatmap(p.weights, {.cell = kLargest});
       },
       {"[png_heatmap]", "pixels"}},
      {"no such scale",
       [] {
         Picture p;
         png_heatmap(p.weights, {.scale = static_cast<Scale>(9)});
       },
       {"[png_heatmap]", "scale"}},
      {"no layers", [] { png_overview({}); }, {"[png_overview]", "there must be at least one layer"}},
      {"an empty layer",
       [] { png_overview({RecordedAttention()}); },
       {"[png_overview]", "layers[0]", "must have data"}},
      {"layers without data and of hostile sizes",
       [] {
         RecordedAttention layer;
         layer.q.size = {1, -1, int64_t{1} << 40, 4};
         png_overview({layer});
       },
       {"[png_overview]", "layers[0]", "negative"}},
      {"cells of all pixels, all layers",
       [] {
         Picture p;
         png_overview({p.layer}, {.cell = kLargest});
       },
       {"[png_overview]", "pixels"}},
      {"a layer whose lse is another's",
       [] {
         Picture p;
         p.lse[0] = -1000;
         png_overview({p.layer});
       },
       {"[png_overview]", "layers[0], head 0", "must be in [0, 1]"}},
      {"a layer of NaN",
       [] {
         Picture p;
         p.q[0] = kNaN;
         png_overview({p.layer});
       },
       {"[png_overview]", "layers[0], head 0"}},
  });
}

TEST(HostileView, Page) {
  expect_refused({
      {"nothing", [] { html_page("", {}, {}); }, {"[html_page]", "a token", "at least one layer"}},
      {"an empty layer", [] { html_page("", {"a"}, {RecordedAttention()}); }, {"[html_page]", "layers[0]"}},
      {"a token too few",
       [] {
         Picture p;
         html_page("", {"a"}, {p.layer});
       },
       {"[html_page]", "2 queries and 2 keys, must be as many as 1 tokens"}},
      {"options that attention refuses",
       [] {
         Picture p;
         p.layer.options.window = {-5, -5};
         html_page("", kTwo, {p.layer});
       },
       {"[html_page]", "layers[0]", "window"}},
      {"an lse of another shape",
       [] {
         Picture p;
         p.layer.lse.size[2] = 1;
         html_page("", kTwo, {p.layer});
       },
       {"[html_page]", "layers[0]", "lse has size"}},
  });
}

}  // namespace
}  // namespace attn::test
