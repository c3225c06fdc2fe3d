// attn generate --batch: many prompts from a file, computed at once.
#pragma once

#include <string>

#include "attn/generate_batch.h"

namespace cli {

/// Reads a JSON object a line from `file`: {"prompt": TEXT}, perhaps with max_new_tokens, temperature, top_k, top_p,
/// min_p, repetition_penalty, seed and stop, which override `options`. Writes it to standard output, or to the file
/// `out`, with "text", "new_tokens" and "finish_reason", in the order of the file. Stops at a signal, after all lines
/// that are complete. Throws Error that names the line, before the first text is generated.
void generate_batch(const attn::generate::TextGenerator& generator, const std::string& file, const std::string& out,
                    const attn::generate::TextOptions& options, const attn::generate::BatcherOptions& limits);

}  // namespace cli
