// Calls a fuzz target with every file of a directory, as an ordinary test.
//
// usage: fuzz_TARGET DIRECTORY
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "target.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]), 2;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.insert(entry.path());
  for (const std::filesystem::path& path : files) {
    std::fprintf(stderr, "%s\n", path.filename().c_str());  // the last one is the one that crashed
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  if (files.empty()) return std::fprintf(stderr, "%s is empty\n", argv[1]), 1;
  return 0;
}
