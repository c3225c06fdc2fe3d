// Every post-processor is a template of texts and special tokens.
#include "text/post_processor.h"

#include <utility>

#include "text/vocabulary.h"

namespace attn::text {
namespace {

constexpr size_t kMaxPieces = 4096;
constexpr int64_t kMaxType = 1 << 16;

/// The id of a pair [token, id].
int64_t special_id(const JsonFields& fields, const char* key) {
  const io::Json& pair = fields.at(key);
  fields.require(pair.is_array() && pair.size() == 2, key, "a token and its id");
  const int64_t id = io::whole_number(pair[1]).value_or(kMaxTokens);
  fields.require(id < kMaxTokens, key, "a token and its id");
  return id;
}

}  // namespace

PostProcessor::PostProcessor() : single_{{0, 0, {}}}, pair_{{0, 0, {}}, {1, 1, {}}} {}

PostProcessor::PostProcessor(const JsonFields& fields) : PostProcessor() { read(fields); }

void PostProcessor::read(const JsonFields& fields) {
  const std::string type = fields.type();
  if (type == "ByteLevel") return;  // it changes offsets alone
  if (type == "Sequence") {
    for (const JsonFields& part : fields.list("processors")) read(part);
    return;
  }
  const bool is_known = type == "TemplateProcessing" || type == "BertProcessing" || type == "RobertaProcessing";
  if (!is_known)
    fields.refuse_type({"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"});
  if (std::exchange(adds_tokens_, true))
    fields.refuse("is the second processor that adds tokens, must be the only one");
  if (type == "TemplateProcessing") return read_template(fields);
  const TemplatePiece begin = {-1, 0, {special_id(fields, "cls")}}, end = {-1, 0, {special_id(fields, "sep")}};
  single_ = {begin, {0, 0, {}}, end};
  if (type == "BertProcessing") pair_ = {begin, {0, 0, {}}, end, {1, 1, {}}, {-1, 1, end.ids}};
  else pair_ = {begin, {0, 0, {}}, end, end, {1, 0, {}}, end};
}

void PostProcessor::read_template(const JsonFields& fields) {
  single_ = template_of(fields, "single");
  pair_ = template_of(fields, "pair");
}

PostProcessor::Template PostProcessor::template_of(const JsonFields& fields, const char* key) const {
  Template pieces;
  const std::vector<JsonFields> list = fields.list(key);
  if (list.size() > kMaxPieces)
    fields.refuse(std::string(key) + " has " + std::to_string(list.size()) + " pieces; at most " +
                  std::to_string(kMaxPieces) + " are supported");
  for (const JsonFields& entry : list) {
    const bool is_text = entry.has("Sequence");
    const JsonFields piece = entry.object(is_text ? "Sequence" : "SpecialToken");
    const std::string id = piece.text("id");
    const int64_t type = piece.number("type_id", kMaxType, 0);
    if (is_text) {
      piece.require(id == "A" || id == "B", "id", "\"A\" or \"B\"");
      pieces.push_back({id == "B", type, {}});
      continue;
    }
    const JsonFields specials = fields.object("special_tokens");
    if (!specials.has(id.c_str())) piece.refuse("id is " + io::in_quotes(id) + ", must be a key of special_tokens");
    const JsonFields special = specials.object(id.c_str());
    const io::Json& ids = special.at("ids");
    special.require(ids.is_array() && ids.size() <= kMaxPieces, "ids", "a list of ids");
    pieces.push_back({-1, type, {}});
    for (const io::Json& token : ids) {
      const int64_t number = io::whole_number(token).value_or(kMaxTokens);
      special.require(number < kMaxTokens, "ids", "a list of ids");
      pieces.back().ids.push_back(number);
    }
  }
  return pieces;
}

Encoding PostProcessor::apply(const std::vector<int64_t>& first, const std::vector<int64_t>* second,
                              bool add_special_tokens) const {
  Encoding encoding;
  const auto append = [&](const std::vector<int64_t>& ids, int64_t type) {
    encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
    encoding.token_type_ids.resize(encoding.ids.size(), type);
  };
  for (const TemplatePiece& piece : second ? pair_ : single_)
    if (piece.text == 0) append(first, piece.type);
    else if (piece.text == 1 && second) append(*second, piece.type);
    else if (piece.text < 0 && add_special_tokens) append(piece.ids, piece.type);
  return encoding;
}

}  // namespace attn::text
