// Rows of columns, pairs, sentences with classes, or words with labels: the first byte says in which format.
#include "attn/train_pairs.h"
#include "attn/train_similarity.h"

#include "support/folder.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  static const test::Folder folder;
  if (size == 0) return 0;
  const char format = static_cast<char>(data[0]);
  const std::string name = format == 'c'   ? "rows.csv"
                           : format == 'j' ? "rows.jsonl"
                           : format == 'u' ? "rows.conllu"
                                           : "rows.tsv";
  folder.put(name, fuzz::bytes_of(data + 1, size - 1));
  fuzz::read_or_refuse([&] {
    for (const train::PairText& row : train::read_pairs(folder / name)) fuzz::require(row.line >= 1);
  });
  fuzz::read_or_refuse([&] {
    const std::vector<train::LabelledText> rows = train::read_labelled(folder / name);
    fuzz::require(train::classes_of(rows).size() <= rows.size() + 1);
  });
  fuzz::read_or_refuse([&] {
    const train::PairTexts pairs = train::read_pair_texts(folder / name);
    fuzz::require(pairs.first.size() == pairs.second.size() && pairs.first.size() == pairs.lines.size());
    fuzz::require(pairs.scores.empty() || pairs.scores.size() == pairs.first.size());
  });
  fuzz::read_or_refuse([&] {
    for (const train::LabelledWords& text : train::read_labelled_words(folder / name))
      fuzz::require(!text.words.empty() && text.words.size() == text.labels.size());
  });
  return 0;
}
