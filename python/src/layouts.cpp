#include "layouts.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "attn/attention_layouts.h"

namespace nb = nanobind;

namespace bindings {
namespace {

/// (heads, offsets, indices): int64 in memory that NumPy reads in place.
template <class Make>
nb::tuple listed(const Make& make) {
  attn::BlockLists lists;
  {
    const nb::gil_scoped_release unlocked;
    lists = make();
  }
  const auto bytes = [](const int64_t* data, int64_t count) {
    return nb::bytearray(data ? static_cast<const void*>(data) : "", static_cast<size_t>(count) * sizeof(int64_t));
  };
  return nb::make_tuple(lists.offsets.size()[1], bytes(lists.offsets.data(), lists.offsets.count()),
                        bytes(lists.indices.data(), lists.indices.count()));
}

}  // namespace

void add_layouts(nb::module_& m) {
  namespace layouts = attn::layouts;
  m.def("layout_local", [](int64_t length, int64_t block, int64_t left, int64_t right) {
    return listed([&] { return layouts::local(length, block, {left, right}); });
  });
  m.def("layout_dilated", [](int64_t length, int64_t block, int64_t side, int64_t dilation) {
    return listed([&] { return layouts::dilated(length, block, side, dilation); });
  });
  m.def("layout_strided", [](int64_t length, int64_t block, int64_t stride) {
    return listed([&] { return layouts::strided(length, block, stride); });
  });
  m.def("layout_fixed", [](int64_t length, int64_t block, int64_t stride, int64_t summary) {
    return listed([&] { return layouts::fixed(length, block, stride, summary); });
  });
  m.def("layout_longformer", [](int64_t length, int64_t block, int64_t side, const std::vector<int64_t>& global) {
    return listed([&] { return layouts::longformer(length, block, side, global); });
  });
  m.def("layout_bigbird",
        [](int64_t length, int64_t block, int64_t side, int64_t global, int64_t random, uint64_t seed, int64_t heads) {
          return listed([&] { return layouts::bigbird(length, block, {side, global, random, seed, heads}); });
        });
  m.def("layout_block_diagonal",
        [](int64_t length, int64_t block) { return listed([&] { return layouts::block_diagonal(length, block); }); });
  m.def("layout_prefix", [](int64_t length, int64_t block, int64_t prefix) {
    return listed([&] { return layouts::prefix(length, block, prefix); });
  });
}

}  // namespace bindings
