#include "heads_texts.h"

#include <algorithm>
#include <cctype>

#include "attn/autograd.h"
#include "output.h"

namespace cli {
namespace {

using attn::heads::TokenKind;

/// "." and ",", but not "a." and not a space.
bool is_punctuation(const std::string& text) {
  bool any = false;
  for (const unsigned char c : text) {
    if (std::isspace(c)) continue;
    if (!std::ispunct(c)) return false;
    any = true;
  }
  return any;
}

}  // namespace

std::vector<std::string> head_names(const std::vector<attn::RecordedAttention>& layers) {
  std::vector<std::string> names;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (int64_t head = 0; head < layers[layer].q.size[1]; ++head) names.push_back(fmt::format("{}.{}", layer, head));
  return names;
}

HeadsReader::HeadsReader(const attn::models::Loaded& loaded, const ContextOption& context)
    : loaded_(loaded),
      tokenizer_(loaded.source_tokenizer ? loaded.source_tokenizer.get() : loaded.tokenizer.get()),
      context_(context.of(loaded.model->config())) {
  if (!tokenizer_) throw attn::Error("heads", {"the model has no tokenizer"});
  marks_ = tokenizer_->encode("").ids;
  for (const char* word : {"[UNK]", "<unk>", "[MASK]", "<mask>"})
    if (const auto id = tokenizer_->token_to_id(word)) words_.insert(*id);
}

HeadsText HeadsReader::with_kinds(std::vector<int64_t> ids) const {
  HeadsText text{std::move(ids), {}};
  for (const int64_t id : text.ids) {
    TokenKind kind = TokenKind::word;
    if (words_.contains(id)) kind = TokenKind::word;
    else if (tokenizer_->is_special(id)) kind = text.kinds.empty() ? TokenKind::start : TokenKind::separator;
    else if (is_punctuation(tokenizer_->decode(std::vector<int64_t>{id}))) kind = TokenKind::punctuation;
    text.kinds.push_back(static_cast<int64_t>(kind));
  }
  return text;
}

HeadsText HeadsReader::of_text(const std::string& text, int64_t& cut) const {
  attn::text::Encoding encoding = tokenizer_->encode(text, {.max_length = context_});
  cut += encoding.truncated;
  return with_kinds(std::move(encoding.ids));
}

HeadsText HeadsReader::of_ids(const std::vector<int64_t>& ids) const {
  std::vector<int64_t> all = ids;
  if (!marks_.empty()) {  // the first is before a text, the others after it
    all.insert(all.begin(), marks_[0]);
    all.insert(all.end(), marks_.begin() + 1, marks_.end());
  }
  return with_kinds(std::move(all));
}

std::optional<std::pair<HeadsText, std::vector<int64_t>>> HeadsReader::of_words(
    const std::vector<std::string>& words) const {
  attn::text::EncodedWords text = attn::text::encode_words(*tokenizer_, words);
  std::vector<int64_t> seen = text.word_of;
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  const auto with_tokens = std::count_if(seen.begin(), seen.end(), [](int64_t word) { return word >= 0; });
  if (!text.is_whole || with_tokens < std::ssize(words) || std::ssize(text.ids) > context_) return {};
  return std::pair(with_kinds(std::move(text.ids)), std::move(text.word_of));
}

std::vector<int64_t> HeadsReader::usable() const {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < tokenizer_->vocab_size(); ++id)
    if (!tokenizer_->is_special(id)) ids.push_back(id);
  return ids;
}

void HeadsReader::look(const HeadsText& text, const Look& at) const {
  const auto n = static_cast<int64_t>(text.ids.size());
  attn::models::Batch batch;
  batch.sequences = 1;
  batch.tokens = text.ids;
  std::vector<attn::nn::AttentionTrace> traces;
  attn::models::ForwardOptions options;
  options.traces = &traces;
  if (loaded_.model->config().encoder_layers) {
    batch.source = std::exchange(batch.tokens, loaded_.decoder_start_token_ids);
    batch.source_length = n;
    options.traces = nullptr;
    options.encoder_traces = &traces;
  }
  batch.length = static_cast<int64_t>(batch.tokens.size());
  attn::autograd::Tape tape;
  loaded_.model->hidden(tape, batch, options);
  std::vector<attn::RecordedAttention> layers;
  for (const attn::nn::AttentionTrace& trace : traces)
    if (trace.lse)  // layers with other mixers have none
      layers.push_back(trace.recorded("layer " + std::to_string(layers.size())));
  at(layers, {attn::ConstView<2>(text.ids.data(), {1, n}), attn::ConstView<2>(text.kinds.data(), {1, n})});
}

}  // namespace cli
