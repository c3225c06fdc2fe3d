#include "layouts.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "arguments.h"
#include "attn/attention_selection.h"

namespace nb = nanobind;

namespace bindings {
namespace {

/// (B|1, H|1, offsets, indices): int64 in memory that NumPy reads in place.
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
  return nb::make_tuple(lists.offsets.size()[0], lists.offsets.size()[1],
                        bytes(lists.offsets.data(), lists.offsets.count()),
                        bytes(lists.indices.data(), lists.indices.count()));
}

nb::tuple select_blocks(nb::handle q, nb::handle k, int64_t query_block, int64_t key_block, int64_t count,
                        bool causal) {
  Arguments in("select_blocks");
  const auto q_view = in.input<4>("q", q), k_view = in.input<4>("k", k);
  in.done();
  return listed([&] { return attn::select_blocks(q_view, k_view, {query_block, key_block, count, causal}); });
}

nb::tuple select_keys(nb::handle scores, int64_t count, bool causal) {
  Arguments in("select_keys");
  const auto view = in.input<4>("scores", scores);
  in.done();
  return listed([&] { return attn::select_keys(view, count, causal); });
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
  m.def("select_blocks", &select_blocks, nb::arg("q").none(), nb::arg("k").none(), nb::arg("query_block"),
        nb::arg("key_block"), nb::arg("count"), nb::arg("causal"));
  m.def("select_keys", &select_keys, nb::arg("scores").none(), nb::arg("count"), nb::arg("causal"));
}

}  // namespace bindings
