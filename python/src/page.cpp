#include "page.h"

#include <nanobind/stl/string.h>

#include "attn/view_page.h"
#include "recorded.h"

namespace bindings {
namespace {

/// By Python's zlib: the extension module links no compressor.
std::string deflate(std::string_view bytes) {
  const nb::gil_scoped_acquire locked;
  const auto packed =
      nb::cast<nb::bytes>(nb::module_::import_("zlib").attr("compress")(nb::bytes(bytes.data(), bytes.size())));
  return {packed.c_str(), packed.size()};
}

/// The page of one text. `names` has one name for each layer, `tokens` one for each key or none; `second` is -1 unless
/// the text is a pair of sentences.
nb::bytes html_page(const std::string& title, const std::vector<std::string>& names,
                    const std::vector<GivenLayer>& given, const std::vector<std::string>& tokens, int64_t second) {
  Arguments in("html_page");
  attn::view::SavedAttention attention{.tokens = tokens, .second = second, .layers = layers_of(in, given)};
  in.done();
  if (names.empty() || names.size() != given.size())
    throw attn::Error("html_page", {"there must be at least one layer, and a name for each layer"});
  for (size_t n = 0; n < names.size(); ++n) attention.layers[n].name = names[n];
  std::string page;
  {
    const nb::gil_scoped_release unlocked;
    page = attn::view::html_page(attn::view::page_texts(title, attention), attention.layers, {}, deflate);
  }
  return nb::bytes(page.data(), page.size());
}

}  // namespace

void add_page(nb::module_& m) {
  m.def("html_page", &html_page, nb::arg("title"), nb::arg("names"), nb::arg("layers"), nb::arg("tokens"),
        nb::arg("second"));
}

}  // namespace bindings
