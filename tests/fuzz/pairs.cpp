// Rows of two columns, pairs or sentences with classes: the first byte says in which format.
#include "attn/train_pairs.h"

#include "support/folder.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  static const test::Folder folder;
  if (size == 0) return 0;
  const std::string name = data[0] == 'c' ? "rows.csv" : data[0] == 'j' ? "rows.jsonl" : "rows.tsv";
  folder.put(name, fuzz::bytes_of(data + 1, size - 1));
  fuzz::read_or_refuse([&] {
    for (const train::PairText& row : train::read_pairs(folder / name)) fuzz::require(row.line >= 1);
  });
  fuzz::read_or_refuse([&] {
    const std::vector<train::LabelledText> rows = train::read_labelled(folder / name);
    fuzz::require(train::classes_of(rows).size() <= rows.size() + 1);
  });
  return 0;
}
