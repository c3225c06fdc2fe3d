// attn see --weights: the matrix of each selected head as CSV.
#pragma once

#include <string>
#include <vector>

#include "attn/record.h"

namespace cli {

/// A row a query, a column a key, both with their numbers and tokens; one head after the other. Throws UsageError for
/// more weights than a file of text is for.
std::string weights_csv(const std::vector<attn::RecordedAttention>& layers, const attn::Selection& selection,
                        const std::vector<std::string>& rows, const std::vector<std::string>& columns);

}  // namespace cli
