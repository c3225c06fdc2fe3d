// Post-processors: all of them are templates of texts and special tokens.
#include "text/post_processor.h"

#include <utility>

#include "text/vocabulary.h"

namespace attn::text {
namespace {

constexpr size_t kMaxPieces = 4096;
constexpr int64_t kMaxType = 1 << 16;

/// [token, id]
int64_t special_id(const JsonFields& fields, const char* key) {
  const io::Json& pair = fields.at(key);
  fields.require(pair.is_array() && pair.size() == 2, key, "a token and its id");
  const int64_t id = io::whole_number(pair[1]).value_or(kMaxTokens);
  fields.require(id < kMaxTokens, key, "a token and its id");
  return id;
}

}  // namespace

PostProcessor::PostProcessor() : one_{{0, 0, {}}}, two_{{0, 0, {}}, {1, 1, {}}} {}

PostProcessor::PostProcessor(const JsonFields& fields) : PostProcessor() { read(fields); }

void PostProcessor::read(const JsonFields& fields) {
  const std::string type = fields.type();
  if (type == "ByteLevel") return;  // it moves offsets
  if (type == "Sequence") {
    for (const JsonFields& part : fields.list("processors")) read(part);
    return;
  }
  const bool is_known = type == "TemplateProcessing" || type == "BertProcessing" || type == "RobertaProcessing";
  if (!is_known)
    fields.refuse_type({"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"});
  if (std::exchange(adds_, true)) fields.refuse("a second " + type + " adds tokens, which is not read");
  if (type == "TemplateProcessing") return read_template(fields);
  const Piece begin = {-1, 0, {special_id(fields, "cls")}}, end = {-1, 0, {special_id(fields, "sep")}};
  one_ = {begin, {0, 0, {}}, end};
  if (type == "BertProcessing") two_ = {begin, {0, 0, {}}, end, {1, 1, {}}, {-1, 1, end.ids}};
  else two_ = {begin, {0, 0, {}}, end, end, {1, 0, {}}, end};
}

void PostProcessor::read_template(const JsonFields& fields) {
  one_ = template_of(fields, "single");
  two_ = template_of(fields, "pair");
}

PostProcessor::Template PostProcessor::template_of(const JsonFields& fields, const char* key) const {
  Template pieces;
  const std::vector<JsonFields> list = fields.list(key);
  if (list.size() > kMaxPieces)
    fields.refuse(std::string(key) + " has " + std::to_string(list.size()) + " pieces, at most " +
                  std::to_string(kMaxPieces) + " are read");
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
    if (!specials.has(id.c_str())) piece.refuse("id is " + io::in_quotes(id) + ", which special_tokens has not");
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

int64_t PostProcessor::added(bool two) const {
  size_t count = 0;
  for (const Piece& piece : two ? two_ : one_) count += piece.ids.size();
  return static_cast<int64_t>(count);
}

Encoding PostProcessor::apply(const std::vector<int64_t>& first, const std::vector<int64_t>* second) const {
  Encoding encoding;
  static const std::vector<int64_t> kNothing;
  for (const Piece& piece : second ? two_ : one_) {
    const std::vector<int64_t>& ids = piece.which < 0    ? piece.ids
                                      : piece.which == 0 ? first
                                      : second           ? *second
                                                         : kNothing;
    encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
    encoding.types.resize(encoding.ids.size(), piece.type);
  }
  return encoding;
}

}  // namespace attn::text
