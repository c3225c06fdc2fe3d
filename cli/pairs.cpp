// The answers of a model with an encoder, held against those that are wanted.
#include "pairs.h"

#include <fmt/core.h>

#include <map>

#include "attn/generate.h"
#include "attn/train_pairs.h"
#include "numbers.h"
#include "progress.h"
#include "signals.h"

namespace cli {

void evaluate_pairs(const attn::models::Loaded& loaded, const std::string& file) {
  const auto& source_tokenizer = loaded.source_tokenizer ? loaded.source_tokenizer : loaded.tokenizer;
  std::map<std::vector<int64_t>, std::vector<std::vector<int64_t>>> wanted;
  for (attn::train::Pair& pair :
       attn::train::encode_pairs(attn::train::read_pairs(file), *source_tokenizer, *loaded.tokenizer, file))
    wanted[std::move(pair.source)].push_back(std::move(pair.target));
  const auto total = static_cast<int64_t>(wanted.size());
  attn::generate::GenerateOptions options = attn::generate::options_of(loaded);
  options.sampling.temperature = 0;
  options.max_length = 0;
  options.max_new_tokens = loaded.model->config().context;
  catch_signals();
  Meter meter("texts", total);
  int64_t done = 0, right = 0, wrong_tokens = 0, tokens = 0;
  for (const auto& [source, targets] : wanted) {
    if (signal_seen()) break;
    const std::vector<int64_t> answer = attn::generate::generate(*loaded.model, source, options).tokens;
    const std::vector<int64_t>* nearest = nullptr;
    int64_t least = 0;
    for (const std::vector<int64_t>& target : targets)
      if (const int64_t distance = attn::train::edit_distance(answer, target); !nearest || distance < least) {
        nearest = &target;
        least = distance;
      }
    wrong_tokens += least;
    tokens += static_cast<int64_t>(nearest->size());
    right += least == 0;
    meter.show(++done);
  }
  meter.hide();
  if (done == 0) throw attn::Error("eval", {"stopped before there was a result"});
  fmt::print("{}{} texts: {:.2f} % of the tokens wrong, {:.2f} % of the answers right\n",
             done < total ? fmt::format("partial: {} of ", grouped(done)) : "", grouped(total),
             100 * static_cast<double>(wrong_tokens) / static_cast<double>(tokens),
             100 * static_cast<double>(right) / static_cast<double>(done));
}

}  // namespace cli
