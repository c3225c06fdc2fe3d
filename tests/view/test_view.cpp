// view: terminal and PNG pictures of one head and of all, and what they refuse.
#include <gtest/gtest.h>
#include <png.h>

#include "attn/view.h"
#include "support/checks.h"
#include "support/pages.h"
#include "support/pictures.h"
#include "view/colour.h"
#include "view/labels.h"
#include "view/picture.h"

namespace attn::test {
namespace {

using view::HeatmapOptions;
using view::Scale;
using Labels = std::vector<std::string>;

Array<4> matrix(int64_t rows, int64_t columns, const Values& values = {}) {
  Array<4> weights(DType::float32, {1, 1, rows, columns});
  for (size_t n = 0; n < values.size(); ++n) weights.set(static_cast<int64_t>(n), values[n]);
  return weights;
}

Labels numbered(int64_t count) {
  Labels labels;
  for (int64_t n = 0; n < count; ++n) labels.push_back("t" + std::to_string(n));
  return labels;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

/// The text without colours.
std::string plain(const std::string& text) {
  std::string result;
  for (size_t n = 0; n < text.size(); ++n)
    if (text[n] == '\x1b') n = text.find('m', n);
    else result += text[n];
  return result;
}

// -------------------------------------------------------------------------------------------------- the worked example

struct CatSat {
  Labels tokens = {"The", "cat", "sat"};
  Tensor<double, 4> q{{1, 1, 3, 2}}, k{{1, 1, 3, 2}}, v{{1, 1, 3, 2}}, out{{1, 1, 3, 2}};
  Tensor<double, 3> lse{{1, 1, 3}};
  Array<4> weights = matrix(3, 3);

  CatSat() {
    const double queries[] = {0.5, 0.5, 0.8, 0.2, 0.3, 0.9}, keys[] = {0.2, 0.8, 0.9, 0.3, 0.1, 0.7};
    std::copy_n(queries, 6, q.data());
    std::copy_n(keys, 6, k.data());
    attention(q, k, v, out, lse);
    Array<4> exact(DType::float64, {1, 1, 3, 3});
    attention_weights(q, k, lse, exact.view(), 0, 0);
    weights = exact.as(DType::float32);
  }
};

TEST(Terminal, WorkedExampleInAscii) {
  const CatSat example;
  EXPECT_EQ(view::terminal_heatmap(example.weights.view(), example.tokens, example.tokens, {.colour = false}),
            "rows: queries, columns: keys, linear scale 0   ..:::--===+++**###%%@@ 0.42\n"
            "            The       cat       sat\n"
            "0 The  ## 0.333  %% 0.357  ## 0.310\n"
            "1 cat  ** 0.302  @@ 0.417  ** 0.281\n"
            "2 sat  %% 0.362  ## 0.305  ## 0.333\n");
}

/// "\x1b[48;2;r;g;bm" of a weight on the linear scale that ends at `end`.
std::string ground(double weight, double end = 1) {
  const view::Colour c = view::palette(view::Ground::dark)[view::colour_index(weight / end)];
  return "\x1b[48;2;" + std::to_string(c.red) + ";" + std::to_string(c.green) + ";" + std::to_string(c.blue) + "m";
}

TEST(Terminal, WorkedExampleInColour) {
  const CatSat example;
  const auto lines = lines_of(view::terminal_heatmap(example.weights.view(), example.tokens, example.tokens));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[1], "         The    cat    sat");
  EXPECT_EQ(lines[3], "1 cat \x1b[38;2;0;0;0m" + ground(0.301556, 0.42) + " 0.302 " + ground(0.417475, 0.42) +
                          " 0.417 " + ground(0.280969, 0.42) + " 0.281 \x1b[0m");
  EXPECT_EQ(plain(lines[4]), "2 sat  0.362  0.305  0.333 ");
}

TEST(Terminal, ZeroAndNearlyZeroDiffer) {
  const Array<4> weights = matrix(1, 3, {0, 0.0001, 0.9999});
  const std::string text = view::terminal_heatmap(weights.view(), {"q"}, {"a", "b", "c"}, {.colour = false});
  EXPECT_EQ(lines_of(text)[2], "0 q         0     <.001  @@ 1.000");
  const std::string log =
      view::terminal_heatmap(weights.view(), {"q"}, {"a", "b", "c"}, {.scale = Scale::log, .colour = false});
  EXPECT_EQ(lines_of(log)[0], "rows: queries, columns: keys, logarithmic scale 1e-4   ..:::--===+++**###%%@@ 1");
  const view::ColourScale scale(Scale::log, {0.5});
  EXPECT_EQ(scale.position(0), 0);
  EXPECT_EQ(scale.position(1e-5), 0);
  EXPECT_EQ(scale.position(1e-2), 0.5);
  EXPECT_EQ(scale.position(1), 1);
}

TEST(Terminal, WideCellsUnderARuler) {
  Array<4> weights = matrix(12, 12);
  for (int64_t n = 0; n < 12; ++n) weights.set({0, 0, n, n}, 1);
  const auto lines = lines_of(view::terminal_heatmap(weights.view(), numbered(12), numbered(12), {.colour = false}));
  ASSERT_EQ(lines.size(), 14u);
  EXPECT_EQ(lines[1], "       0         5         10");
  EXPECT_EQ(lines[2], " 0 t0  @@");
  EXPECT_EQ(lines[13], "11 t11                       @@");
}

TEST(Terminal, LargeMatricesArePooledByTheirMaximum) {
  Array<4> weights = matrix(201, 300);
  weights.set({0, 0, 5, 297}, 1);  // in the last group of columns and the second group of rows
  weights.set({0, 0, 7, 299}, 0.25);
  const auto lines = lines_of(view::terminal_heatmap(weights.view(), numbered(201), numbered(300), {.colour = false}));
  ASSERT_EQ(lines.size(), 3u + 51);
  EXPECT_EQ(lines[1], "201 x 300 weights, pooled: a cell shows the largest of 4 x 5");
  EXPECT_EQ(lines[2], "         0         50        100       150       200       250");
  EXPECT_EQ(lines[3], "  0 t0");
  EXPECT_EQ(lines[4], "  4 t4   " + std::string(59, ' ') + "@");
  EXPECT_EQ(lines.back(), "200 t200");
  const auto few =
      lines_of(view::terminal_heatmap(weights.view(), numbered(201), numbered(300), {.max_rows = 2, .max_columns = 3}));
  EXPECT_EQ(few[1], "201 x 300 weights, pooled: a cell shows the largest of 101 x 100");
}

/// Rows of 600 equal weights are not blank, whichever way they are drawn, and the first rows of a causal head, which
/// see few keys, do not hide the others.
TEST(Terminal, ManySmallWeightsShow) {
  const Text flat("flat", 600, 1, 1, DType::float32, 3, {}, 8, 0),
      causal("causal", 600, 1, 1, DType::float32, 3, {.causal = true}, 8, 0);
  for (const Text* text : {&flat, &causal}) const_cast<Text*>(text)->attend();
  const auto lines = lines_of(view::terminal_heatmap(flat.layer(), 0, numbered(600), numbered(600), {.colour = false}));
  EXPECT_EQ(lines[0], "rows: queries, columns: keys, linear scale 0   ..:::--===+++**###%%@@ 0.0017");
  for (size_t n = 3; n < lines.size(); ++n) EXPECT_EQ(lines[n].substr(9), std::string(60, '@')) << n;
  const auto last =
      lines_of(view::terminal_heatmap(causal.layer(), 0, numbered(600), numbered(600), {.colour = false}));
  EXPECT_EQ(last[0].substr(last[0].rfind(' ')), " 0.0067+");
  EXPECT_EQ(last.back().substr(9), std::string(60, ':'));
}

/// Nothing is computed for heads that are not drawn: theirs may be no weights at all.
TEST(Terminal, OneHeadOfALayer) {
  for (const auto& text : texts_of_every_option(12)) {
    const Array<4> weights = text->weights();
    for (int64_t h = 0; h < text->heads(); ++h) {
      const Array<4> one = [&] {
        Array<4> part(DType::float32, {1, 1, 12, 12});
        for (int64_t n = 0; n < 144; ++n) part.set(n, weights.get(h * 144 + n));
        return part;
      }();
      EXPECT_EQ(view::terminal_heatmap(text->layer(), h, numbered(12), numbered(12)),
                view::terminal_heatmap(one.view(), numbered(12), numbered(12)))
          << text->name << ", head " << h;
      EXPECT_EQ(view::png_heatmap(text->layer(), h, {.cell = 2, .title = "t"}),
                view::png_heatmap(one.view(), {.cell = 2, .title = "t"}))
          << text->name << ", head " << h;
    }
  }
  Text broken("broken", 5, 2, 2, DType::float32, 4);
  broken.attend().lse.set({0, 1, 3}, -100);
  EXPECT_NO_THROW(view::terminal_heatmap(broken.layer(), 0, numbered(5), numbered(5)));
  EXPECT_THROW(view::terminal_heatmap(broken.layer(), 1, numbered(5), numbered(5)), Error);
}

/// Two rows a line: the upper half is the ink, the lower half the ground, and an odd last row is alone.
TEST(Terminal, HalfBlocks) {
  Array<4> weights = matrix(3, 40);
  for (int64_t column = 0; column < 40; ++column) weights.set({0, 0, 0, column}, 1);
  const auto lines = lines_of(view::terminal_heatmap(weights.view(), numbered(3), numbered(40)));
  ASSERT_EQ(lines.size(), 4u);
  std::string blocks;
  for (int n = 0; n < 40; ++n) blocks += "\u2580";
  std::string ink = ground(1);
  ink.replace(ink.find("48"), 2, "38");
  EXPECT_EQ(lines[2], "0 t0 " + ink + ground(0) + blocks + "\x1b[0m 1 t1");
  EXPECT_EQ(plain(lines[3]), "2 t2 " + blocks);
  EXPECT_EQ(lines[3].find("\x1b[48"), std::string::npos);
}

TEST(Terminal, EveryLineFits120Cells) {
  for (int64_t n : {1, 2, 6, 7, 9, 10, 32, 33, 64, 65, 1000}) {
    const Labels labels(static_cast<size_t>(n), std::string(50, 'w'));
    for (bool colour : {true, false}) {
      const std::string text = view::terminal_heatmap(matrix(n, n).view(), labels, labels, {.colour = colour});
      for (const std::string& line : lines_of(plain(text))) EXPECT_LE(view::display_width(line), 120) << n;
    }
  }
}

TEST(Terminal, LabelsAlignAndCannotHarm) {
  EXPECT_EQ(view::visible_label("cat", 16, "~"), "cat");
  EXPECT_EQ(view::visible_label(" cat ", 16, "~"), "\u2423cat\u2423");
  EXPECT_EQ(view::visible_label("  ", 16, "~"), "\u2423\u2423");
  EXPECT_EQ(view::visible_label("a\n\x1b[31m", 16, "~"), "a\u240a\u241b[31m");
  EXPECT_EQ(view::visible_label(std::string("\0", 1), 16, "~"), "\u2400");
  EXPECT_EQ(view::visible_label("\u202eabc", 16, "~"), "<U+202E>abc");
  EXPECT_EQ(view::visible_label("\x7f\u00a0", 16, "~"), "<U+007F><U+00A0>");
  EXPECT_EQ(view::visible_label("\xff", 16, "~"), "\ufffd");
  EXPECT_EQ(view::visible_label("0123456789", 10, "~"), "0123456789");
  EXPECT_EQ(view::visible_label("0123456789a", 10, "~"), "012345678~");
  EXPECT_EQ(view::visible_label("日本語", 6, "~"), "日本語");
  EXPECT_EQ(view::visible_label("日本語", 5, "~"), "日本~");
  EXPECT_EQ(view::display_width("日本~"), 5);
  std::string marks = "e";
  for (int n = 0; n < 100000; ++n) marks += "\u0301";
  EXPECT_LE(view::visible_label(marks, 16, "~").size(), 16u);
  EXPECT_EQ(view::display_width(view::visible_label(std::string(1 << 20, 'a'), 16, "~")), 16);

  const Labels rows = {"日本語", "ab", "\x1b[2J", "é"};
  const std::string text = view::terminal_heatmap(matrix(4, 2).view(), rows, {"x", "y"}, {.colour = false});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const auto lines = lines_of(text);
  EXPECT_EQ(lines[2], "0 日本語         0         0");
  EXPECT_EQ(lines[3], "1 ab             0         0");
  EXPECT_EQ(lines[4], "2 \u241b[2J           0         0");
}

// ------------------------------------------------------------------------------------------------------------- colours

/// Relative luminance of an sRGB colour.
double luminance(view::Colour c) {
  const auto linear = [](uint8_t byte) {
    const double x = byte / 255.0;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(c.red) + 0.7152 * linear(c.green) + 0.0722 * linear(c.blue);
}

TEST(Colours, RiseOnDarkAndFallOnLight) {
  const auto dark = view::palette(view::Ground::dark), light = view::palette(view::Ground::light);
  for (int n = 1; n < view::kColours; ++n) {
    EXPECT_LT(luminance(dark[n - 1]), luminance(dark[n])) << n;
    EXPECT_GT(luminance(light[n - 1]), luminance(light[n])) << n;
  }
  EXPECT_EQ(light[0], (view::Colour{255, 255, 255}));
}

TEST(Colours, LinearScaleEndsWhereWeightsDo) {
  const auto ends = [](const Values& peaks) { return view::ColourScale(Scale::linear, peaks).last_label(); };
  EXPECT_EQ(ends({1, 0.5, 0.6}), "1");
  EXPECT_EQ(ends({0.4175, 0.3569, 0.3624}), "0.42");
  EXPECT_EQ(ends({0.42}), "0.42") << "two digits are not rounded up further";
  EXPECT_EQ(ends(Values(600, 1.0 / 600)), "0.0017");
  EXPECT_EQ(ends({1, 0.01, 0.011, 0.02}), "0.04+") << "twice the upper median";
  EXPECT_EQ(ends({0, 0, 0, 0.3, 0.3}), "0.3") << "rows that see nothing do not count";
  EXPECT_EQ(ends({3e-6}), "3e-6");
  EXPECT_EQ(ends({}), "1");
  EXPECT_EQ(ends({1.0000002, 0.7, 0.8}), "1") << "what rounding adds to 1 is 1";
  EXPECT_EQ(ends({0.50000003, 0.5, 0.49999997}), "0.5") << "and to another end";
  EXPECT_EQ(view::ColourScale(Scale::log, {0.01}).last_label(), "1");
  const view::ColourScale scale(Scale::linear, {1, 0.01, 0.011, 0.02});
  EXPECT_EQ(scale.position(0.02), 0.5);
  EXPECT_EQ(scale.position(0.5), 1);
}

// ----------------------------------------------------------------------------------------------------------------- PNG

struct Picture {
  int64_t width = 0, height = 0;
  std::vector<view::Colour> pixels;

  explicit Picture(const std::string& bytes) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) return;
    image.format = PNG_FORMAT_RGB;
    pixels.resize(static_cast<size_t>(image.width) * image.height);
    if (!png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr)) return;
    width = image.width;
    height = image.height;
  }
  view::Colour at(int64_t x, int64_t y) const { return pixels.at(static_cast<size_t>(y * width + x)); }
};

/// On the logarithmic scale, or on the linear one from 0 to 1.
view::Colour colour_of(double weight, Scale scale = Scale::linear) {
  return view::palette(view::Ground::dark)[view::colour_index(view::ColourScale(scale, {1}).position(weight))];
}

TEST(Png, OneHead) {
  const Array<4> weights = matrix(2, 3, {0, 0.5, 1, 1e-4, 0.01, 0.1});
  for (Scale scale : {Scale::linear, Scale::log}) {
    const Picture picture(view::png_heatmap(weights.view(), {.scale = scale, .cell = 50}));
    EXPECT_EQ(picture.width, 3 * 50 + 2 * view::kMargin + view::kBarSpace);
    ASSERT_EQ(picture.height, 2 * 50 + 2 * view::kMargin);
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t column = 0; column < 3; ++column)
        for (int64_t edge : {0, 25, 49}) {  // crisp: the first and the last pixel of a cell have its colour
          const view::Colour colour = picture.at(view::kMargin + column * 50 + edge, view::kMargin + row * 50 + edge);
          EXPECT_EQ(colour, colour_of(weights.get({0, 0, row, column}), scale)) << row << " " << column;
        }
    EXPECT_NE(picture.at(view::kMargin - 1, view::kMargin), picture.at(0, 0)) << "no frame";
    const int64_t bar = 2 * view::kMargin + 3 * 50 + view::kBarWidth / 2;
    EXPECT_EQ(picture.at(bar, view::kMargin), colour_of(1));
    EXPECT_EQ(picture.at(bar, view::kMargin + 99), colour_of(0));
    EXPECT_EQ(picture.at(0, 0), colour_of(0));
  }
  const Picture picture(view::png_heatmap(weights.view()));
  const auto brightness = [&](int64_t column) {
    return luminance(picture.at(view::kMargin + 266 * column + 133, view::kMargin + 133));
  };
  EXPECT_EQ(picture.width, 3 * 266 + 2 * view::kMargin + view::kBarSpace) << "the longer side is about 800";
  EXPECT_LT(brightness(0), brightness(1));
  EXPECT_LT(brightness(1), brightness(2));
}

/// Of a layer's head: its name, which rows and columns are, a label each, on dark and on light ground.
TEST(Png, OneHeadWithLabels) {
  Text text("layer 7", 3, 2, 1, DType::float32, 5);
  const RecordedAttention layer = text.attend().layer();
  const Labels labels = {"a", "WWWW", "\u65e5"};
  for (const bool light : {false, true}) {
    const auto drawn = [&](const HeatmapOptions& options) { return Picture(view::png_heatmap(layer, 1, options)); };
    const HeatmapOptions bare = {.cell = 50, .light = light, .title = "t"};
    HeatmapOptions named = bare, labelled = bare;
    named.title = "";
    labelled.rows = labelled.columns = labels;
    const Picture picture = drawn(bare), other = drawn(named), whole = drawn(labelled);
    const view::Colour ground = picture.at(0, 0);
    EXPECT_EQ(ground, view::palette(light ? view::Ground::light : view::Ground::dark)[0]);
    /// Pixels of a rectangle that are not the ground.
    const auto inked = [&](const Picture& one, int64_t x, int64_t y, int64_t width, int64_t height) {
      int64_t count = 0;
      for (int64_t row = y; row < y + height; ++row)
        for (int64_t column = x; column < x + width; ++column) count += one.at(column, row) != ground;
      return count;
    };
    EXPECT_EQ(picture.width, other.width);
    EXPECT_GT(inked(other, view::kMargin, view::kMargin, 120, 10),
              3 * inked(picture, view::kMargin, view::kMargin, 120, 10))
        << "the layer and the head";
    const int64_t left = whole.width - picture.width, top = whole.height - picture.height;  // for the labels
    EXPECT_TRUE(left == top && left > 4 * 7 && left < 5 * 8 + 8) << left << " x " << top;
    const int64_t first = whole.height - view::kMargin - 150;
    for (int64_t n = 0; n < 3; ++n) {
      EXPECT_GT(inked(whole, view::kMargin, first + 50 * n, left - 2, 50), 8) << "row " << n;
      EXPECT_GT(inked(whole, view::kMargin + left + 50 * n, first - left, 50, left - 2), 8) << "column " << n;
    }
    EXPECT_GT(inked(whole, view::kMargin, first + 50, left - 2, 50),
              2 * inked(whole, view::kMargin, first, left - 2, 50));
    EXPECT_EQ(inked(whole, view::kMargin, first + 20 + 50, left - 2, 1) > 0, true) << "a label is at its row's middle";
    labelled.cell = 8;
    EXPECT_EQ(drawn(labelled).height, view::kBarHeight + picture.height - 150) << "no room for labels";
    labelled.rows.pop_back();
    EXPECT_EQ(reasons_of([&] { drawn(labelled); }),
              (Labels{"2 and 3 labels, must be 3 of rows and 3 of columns, or none"}));
  }
}

TEST(Png, Overview) {
  Text a("a", 130, 3, 1, DType::float32, 5, {.causal = true}), b("b", 130, 2, 2, DType::float64, 6);
  const HeatmapOptions options = {.scale = Scale::log, .max_rows = 13, .max_columns = 26, .cell = 4};
  const Picture picture(view::png_overview({a.attend().layer(), b.attend().layer()}, options));
  const int64_t left = view::kMargin + 24, top = view::kMargin + 16;  // the indices are before and above the tiles
  const int64_t tile_width = 26 * 4 + view::kTileGap, tile_height = 13 * 4 + view::kTileGap;
  EXPECT_EQ(picture.width, left + 3 * tile_width - view::kTileGap + view::kMargin + view::kBarSpace);
  ASSERT_EQ(picture.height, top + 2 * tile_height - view::kTileGap + view::kMargin);
  for (int64_t l = 0; l < 2; ++l) {
    const Array<4> weights = (l ? b : a).weights();
    for (int64_t h = 0; h < weights.size()[1]; ++h)
      for (int64_t row = 0; row < 13; ++row)
        for (int64_t column = 0; column < 26; ++column) {
          double largest = 0;
          for (int64_t i = 10 * row; i < 10 * row + 10; ++i)
            for (int64_t j = 5 * column; j < 5 * column + 5; ++j)
              largest = std::max(largest, rounded(weights.get({0, h, i, j}), DType::float32));
          ASSERT_EQ(picture.at(left + h * tile_width + 4 * column + 1, top + l * tile_height + 4 * row + 1),
                    colour_of(largest, Scale::log))
              << l << " " << h << " " << row << " " << column;
        }
  }
}

/// The selected heads are the tiles, in their order; the linear scale is that of what is drawn.
TEST(Png, OverviewOfASelection) {
  Text a("a", 9, 4, 2, DType::float32, 5), b("b", 9, 4, 4, DType::float32, 6), c("c", 9, 4, 1, DType::float32, 7);
  const std::vector<RecordedAttention> layers = {a.attend().layer(), b.attend().layer(), c.attend().layer()};
  const Picture picture(view::png_overview(layers, {.cell = 4}, {.layers = {2, 0}, .heads = {3, 1}}));
  const int64_t left = view::kMargin + 24, top = view::kMargin + 16, tile = 9 * 4 + view::kTileGap;
  EXPECT_EQ(picture.width, left + 2 * tile - view::kTileGap + view::kMargin + view::kBarSpace);
  Values peaks;
  for (const Text* text : {&c, &a})
    for (int64_t h : {3, 1})
      for (int64_t i = 0; i < 9; ++i) {
        peaks.push_back(0);
        for (int64_t j = 0; j < 9; ++j) peaks.back() = std::max(peaks.back(), text->weights().get({0, h, i, j}));
      }
  const view::ColourScale scale(Scale::linear, peaks);
  for (int64_t l = 0; l < 2; ++l)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 9; ++i)
        for (int64_t j = 0; j < 9; ++j) {
          const double weight = std::min((l ? a : c).weights().get({0, h ? 1 : 3, i, j}), 1.0);
          ASSERT_EQ(picture.at(left + h * tile + 4 * j + 1, top + l * tile + 4 * i + 1),
                    view::palette(view::Ground::dark)[view::colour_index(scale.position(weight))])
              << l << " " << h << " " << i << " " << j;
        }
}

TEST(Png, ManySmallWeightsShow) {
  const Array<4> weights = matrix(600, 600, Values(360000, 1.0 / 600));
  const Picture picture(view::png_heatmap(weights.view()));
  EXPECT_GT(luminance(picture.at(view::kMargin + 300, view::kMargin + 300)), luminance(colour_of(0.9)));
}

// -------------------------------------------------------------------------------------------------------------- errors

TEST(ViewErrors, OneHead) {
  EXPECT_EQ(reasons_of([] {
              view::terminal_heatmap(Array<4>(DType::float64, {1, 2, 3, 3}).view(), numbered(2), numbered(4),
                                     {.max_rows = 0});
            }),
            (Labels{"there are 2 row labels, must be one for each of 3 rows",
                    "there are 4 column labels, must be one for each of 3 columns",
                    "max_rows is 0 and max_columns 64, must be at least 1", "weights are float64, must be float32",
                    "weights have size [1, 2, 3, 3], must be [1, 1, Lq, Lk], not empty"}));
  EXPECT_EQ(reasons_of([] {
              view::png_heatmap(ConstView<4>(nullptr, DType::float32, {1, 1, 2, 2}), {.cell = -1});
            }),
            (Labels{"weights must have data", "cell must not be negative"}));
  EXPECT_EQ(reasons_of([] { view::png_heatmap(matrix(100, 100).view(), {.cell = 1000}); }).size(), 1u);
  for (double bad : {kNaN, -0.5, 1.5, kInf}) {
    const auto reasons = reasons_of([&] { view::png_heatmap(matrix(2, 2, {0, 0, 0, bad}).view()); });
    ASSERT_EQ(reasons.size(), 1u) << bad;
    EXPECT_EQ(reasons[0].rfind("query 1, key 1 has weight ", 0), 0u) << reasons[0];
  }
  EXPECT_TRUE(reasons_of([] { view::png_heatmap(matrix(1, 1, {1 + 1e-5}).view()); }).empty()) << "rounding is no error";
}

TEST(ViewErrors, Layers) {
  EXPECT_EQ(reasons_of([] { view::html_page("", {}, {}); }),
            (Labels{"there must be a token", "there must be at least one layer"}));
  EXPECT_EQ(reasons_of([] { view::png_overview({}, {.max_columns = 0, .cell = -1}); }).size(), 3u);

  Text sample("text", 5, 2, 2, DType::float32, 8);
  const RecordedAttention good = sample.attend().layer();
  RecordedAttention no_data = good, short_lse = good, two_texts = good;
  no_data.k = {};
  short_lse.lse.size = {1, 2, 4};
  two_texts.q.size[0] = 2;
  const auto reasons = reasons_of([&] { view::html_page("", numbered(4), {good, no_data, short_lse, two_texts}); });
  const auto says = [&](const std::string& text) {
    return std::any_of(reasons.begin(), reasons.end(),
                       [&](const std::string& reason) { return reason.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says("layers[0]: 5 queries and 5 keys, must be as many as 4 tokens"));
  EXPECT_TRUE(says("layers[1]: q, k and lse must have data"));
  EXPECT_TRUE(says("layers[2]: lse has size [1, 2, 4], must be [B, H, Lq] = [1, 2, 5]"));
  EXPECT_TRUE(says("layers[3]: q has size [2, 2, 5, 8], must be one text"));

  Text other("other", 6, 2, 2, DType::float32, 9);
  EXPECT_EQ(reasons_of([&] {
              view::png_overview({good, other.attend().layer()});
            }),
            (Labels{"layers[1]: must have as many queries and keys as layers[0]"}));

  Text narrow("narrow", 5, 1, 1, DType::float32, 10);
  RecordedAttention huge = narrow.attend().layer();
  huge.q.size[1] = 1 << 25;  // heads that are on top of one another
  huge.q.stride[1] = huge.lse.stride[1] = 0;
  huge.lse.size[1] = 1 << 25;
  const Labels said = reasons_of([&] { view::html_page("", numbered(5), {huge}); });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].rfind("33554432 heads of 5 x 5 weights need a page of 45679", 0), 0u) << said[0];
}

/// What is not there is refused with what is, everything at once.
TEST(ViewErrors, Selection) {
  Text a("a", 5, 2, 2, DType::float32, 8), b("b", 5, 3, 1, DType::float32, 9);
  const std::vector<RecordedAttention> layers = {a.attend().layer(), b.attend().layer()};
  EXPECT_EQ(
      reasons_of([&] {
        view::html_page("", numbered(5), layers, {.layers = {0, 2, 0}, .heads = {2, -1}});
      }),
      (Labels{"the layer is 2, must be from 0 to 1", "layer 0 is selected twice",
              "layers[0]: the head is 2, must be from 0 to 1", "layers[0]: the head is -1, must be from 0 to 1",
              "layers[0]: the head is 2, must be from 0 to 1", "layers[0]: the head is -1, must be from 0 to 1"}));
  EXPECT_EQ(reasons_of([&] { view::png_overview(layers, {}, {.heads = {2}}); }),
            (Labels{"layers[0]: the head is 2, must be from 0 to 1"}));
  EXPECT_EQ(reasons_of([&] { view::png_heatmap(layers[1], 3); }),
            (Labels{"layers[0]: the head is 3, must be from 0 to 2"}));
  EXPECT_EQ(reasons_of([&] { view::terminal_heatmap(layers[1], -1, numbered(5), numbered(5)); }),
            (Labels{"layers[0]: the head is -1, must be from 0 to 2"}));
}

/// Queries, keys and lse that do not belong together show in the weights.
TEST(ViewErrors, AnLseOfOtherKeysIsRefused) {
  Text text("text", 70, 2, 1, DType::float32, 11);
  text.attend().lse.set({0, 1, 69}, -100);
  const auto reasons = reasons_of([&] { view::html_page("", numbered(70), {text.layer()}); });
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("layers[0], head 1: query 69, key ", 0), 0u) << reasons[0];
}

}  // namespace
}  // namespace attn::test
