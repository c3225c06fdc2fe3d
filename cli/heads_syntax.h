// attn heads --conllu: which dependency relations heads know.
#pragma once

#include <string>
#include <vector>

#include "heads_texts.h"

namespace cli {

/// "2.5" of each of the heads of all layers.
std::vector<std::string> head_names(const std::vector<int64_t>& heads_of_layer);

/// Measures all sentences of the file and writes the table: to files where they are named, else to the terminal.
void heads_syntax(const HeadsReader& reader, const std::string& conllu, const std::string& csv,
                  const std::string& json);

}  // namespace cli
