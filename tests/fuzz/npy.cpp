// A file of NumPy as queries and keys, which are drawn if it can be read.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "attn/io.h"
#include "attn/view.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  static const std::string path =
      std::filesystem::temp_directory_path() / ("attn_fuzz_npy." + std::to_string(getpid()));
  io::write_file(path, fuzz::bytes_of(data, size));
  fuzz::read_or_refuse([&] {
    const view::SavedAttention saved = view::read_arrays(path, path);
    const std::vector<std::string> labels(static_cast<size_t>(saved.layers[0].q.size[2]), "t");
    fuzz::require(!view::terminal_heatmap(saved.layers[0], 0, labels, labels).empty());
  });
  std::remove(path.c_str());
  return 0;
}
