// A picture, a page that needs zlib, and a file of recorded attention.
#include <attn/view_page.h>

int main() {
  attn::Tensor<float, 4> x({1, 1, 3, 2}), out({1, 1, 3, 2});
  attn::Tensor<float, 3> lse({1, 1, 3});
  attn::attention(x, x, x, out, lse);
  const attn::RecordedAttention layer = {"layer 0", x, x, lse, {}};
  if (attn::view::png_heatmap(layer, 0).substr(1, 3) != "PNG") return 1;
  if (attn::view::terminal_heatmap(layer, 0, {"a", "b", "c"}, {"a", "b", "c"}).empty()) return 2;
  if (attn::view::html_page("page", {"a", "b", "c"}, {layer}).find("<script") == std::string::npos) return 3;
  if (attn::view::saved_attention({"a", "b", "c"}, {layer}).find("layer 0.lse") == std::string::npos) return 4;
  try {
    attn::view::html_page("page", {"a"}, {layer});
  } catch (const attn::Error&) {
    return 0;
  }
  return 5;
}
