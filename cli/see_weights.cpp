#include "see_weights.h"

#include <fmt/format.h>

#include <iterator>
#include <numeric>

#include "attn/attention.h"
#include "attn/attention_statistics.h"
#include "commands.h"
#include "numbers.h"
#include "output.h"
#include "table.h"

namespace cli {
namespace {

constexpr int64_t kMostWeights = 1 << 25;  // 400 MB of text

/// All where none is named.
std::vector<int64_t> chosen_of(std::vector<int64_t> named, int64_t count) {
  if (!named.empty()) return named;
  named.resize(static_cast<size_t>(count));
  std::iota(named.begin(), named.end(), 0);
  return named;
}

/// The lines of these heads of layer n, head by head; weights of a few rows of all heads are in memory at a time.
std::string layer_csv(const attn::RecordedAttention& layer, int64_t n, const std::vector<int64_t>& heads,
                      const std::vector<std::string>& rows) {
  const int64_t H = layer.q.size[1], Lq = layer.q.size[2], Lk = layer.k.size[2];
  const int64_t band = std::max<int64_t>(1, (1 << 20) / std::max<int64_t>(H * Lk, 1));
  std::vector<std::string> texts(heads.size());
  for (int64_t first = 0; first < Lq; first += band) {
    const int64_t count = std::min(band, Lq - first);
    const attn::Array weights(layer.lse.dtype, {1, H, count, Lk});
    attn::attention_weights(layer.q, layer.k, layer.lse, weights, first, 0, layer.options);
    for (size_t h = 0; h < heads.size(); ++h)
      for (int64_t i = 0; i < count; ++i) {
        const auto out = std::back_inserter(texts[h]);
        fmt::format_to(out, "{},{},{},{}", n, heads[h], first + i, quoted(rows[static_cast<size_t>(first + i)]));
        for (int64_t j = 0; j < Lk; ++j)
          fmt::format_to(out, ",{:.6g}", weights.number(((heads[h] * count) + i) * Lk + j));
        texts[h] += "\n";
      }
  }
  return joined(texts, "");
}

}  // namespace

std::string weights_csv(const std::vector<attn::RecordedAttention>& layers, const attn::Selection& selection,
                        const std::vector<std::string>& rows, const std::vector<std::string>& columns) {
  const std::vector<int64_t> chosen = chosen_of(selection.layers, std::ssize(layers));
  int64_t heads = 0;
  for (const int64_t n : chosen) heads += std::ssize(chosen_of(selection.heads, layers[n].q.size[1]));
  if (const int64_t count = heads * std::ssize(rows) * std::ssize(columns); count > kMostWeights)
    throw UsageError(
        fmt::format("--weights would write {} weights, must write at most {}: --layer and --head select"
                    " some of them, --save writes what all of them are computed from",
                    grouped(count), grouped(kMostWeights)));
  std::string text = "layer,head,query,token";
  for (size_t j = 0; j < columns.size(); ++j) text += "," + quoted(fmt::format("{} {}", j, columns[j]));
  text += "\n";
  for (const int64_t n : chosen) text += layer_csv(layers[n], n, chosen_of(selection.heads, layers[n].q.size[1]), rows);
  return text;
}

}  // namespace cli
