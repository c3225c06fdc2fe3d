#include "view/deflate.h"

#include <zlib.h>

#include "attn/view_page.h"

namespace attn::view {

std::string zlib_deflate(std::string_view bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string packed(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()),
                static_cast<uLong>(bytes.size()), Z_DEFAULT_COMPRESSION) != Z_OK)
    throw Error("html_page", {"zlib cannot compress a picture"});
  packed.resize(size);
  return packed;
}

std::string html_page(const PageTexts& texts, const std::vector<RecordedAttention>& layers,
                      const PageOptions& options) {
  return html_page(texts, layers, options, zlib_deflate);
}

std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<RecordedAttention>& layers, const Selection& selection) {
  return html_page({.title = title, .queries = tokens}, layers, {.selection = selection});
}

}  // namespace attn::view
