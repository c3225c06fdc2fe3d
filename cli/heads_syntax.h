// attn heads --conllu: which dependency relations heads know.
#pragma once

#include <string>

#include "heads_texts.h"

namespace cli {

/// Measures all sentences of the file and writes the table: to files where they are named, else to the terminal.
void heads_syntax(const HeadsReader& reader, const std::string& conllu, const std::string& csv,
                  const std::string& json);

}  // namespace cli
