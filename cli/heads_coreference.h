// attn heads --coreference: which heads look from a mention to what it takes up.
#pragma once

#include <string>

#include "heads_texts.h"

namespace cli {

/// Measures all documents of the file and writes the table: to files where they are named, else to the terminal.
void heads_coreference(const HeadsReader& reader, const std::string& file, const std::string& csv,
                       const std::string& json);

}  // namespace cli
