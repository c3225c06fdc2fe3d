// What a folder of transformers says of generation: generation_config.json, and, of tokens, config.json beside it.
#include <cmath>

#include "models/hub.h"

namespace attn::models {
namespace {

using io::Json;

/// Fields of one file, each perhaps absent; collects what is wrong with them.
class Said {
 public:
  Said(const Json& object, const std::string& source) : object_(object), source_(source) {}

  std::optional<bool> boolean(const char* name) {
    const Json value = object_.value(name, Json());
    if (value.is_boolean()) return value.get<bool>();
    if (!value.is_null()) refuse(name, value, "true or false");
    return {};
  }
  /// Finite, above 0, or 0 too `with_zero`, and at most `highest`.
  std::optional<double> number(const char* name, double highest, bool with_zero) {
    const Json value = object_.value(name, Json());
    const double given = value.is_number() ? value.get<double>() : -1;
    if (std::isfinite(given) && given <= highest && (with_zero ? given >= 0 : given > 0)) return given;
    if (!value.is_null())
      refuse(name, value,
             with_zero ? "a number from 0 to " + Json(highest).dump()
                       : "a number above 0, at most " + Json(highest).dump());
    return {};
  }
  std::optional<double> any_number(const char* name) {
    const Json value = object_.value(name, Json());
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    if (!value.is_null()) refuse(name, value, "a number");
    return {};
  }
  /// "true", "false" or that word.
  std::optional<std::string> boolean_or(const char* name, const char* word) {
    const Json value = object_.value(name, Json());
    if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (value == word) return word;
    if (!value.is_null()) refuse(name, value, "true, false or \"" + std::string(word) + "\"");
    return {};
  }
  std::optional<int64_t> whole(const char* name, int64_t lowest) {
    const Json value = object_.value(name, Json());
    const std::optional<int64_t> given = io::whole_number(value);
    if (given && *given >= lowest && *given <= kMost) return given;
    if (!value.is_null())
      refuse(name, value, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(kMost));
    return {};
  }
  std::vector<int64_t> tokens(const char* name, int64_t vocab_size) {
    const Json value = object_.value(name, Json());
    std::vector<int64_t> ids;
    for (const Json& each : value.is_array() ? value : Json::array())
      if (const std::optional<int64_t> id = io::whole_number(each); id && *id < vocab_size) ids.push_back(*id);
    if (!value.is_null() && (!value.is_array() || ids.size() != value.size()))
      refuse(name, value, "a list of tokens below " + std::to_string(vocab_size));
    return ids;
  }
  void done() const {
    if (!reasons_.empty()) throw Error("open", reasons_);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 40;
  void refuse(const char* name, const Json& value, const std::string& wanted) {
    reasons_.push_back(source_ + ": " + name + " is " + io::as_shown(value) + ", must be " + wanted);
  }
  const Json& object_;
  const std::string& source_;
  std::vector<std::string> reasons_;
};

}  // namespace

GenerationFile::GenerationFile(const std::string& folder, const Json& config, int64_t vocab_size)
    : path_(folder + "/generation_config.json"), config_(config), vocab_size_(vocab_size) {
  if (io::exists(path_)) said_ = io::read_json("open", path_);
  if (!said_.is_object() && !said_.is_null()) throw Error("open", {path_ + " is not a JSON object"});
  if (said_.is_null()) said_ = Json::object();
}

std::vector<int64_t> GenerationFile::tokens(const char* role) const {
  Json named = said_.value(role, Json());
  if (named.is_null()) named = config_.value(role, Json());
  std::vector<int64_t> ids;
  for (const Json& id : named.is_array() ? named : Json::array({named}))
    if (id.is_number_integer() && id >= 0 && id < vocab_size_) ids.push_back(id.get<int64_t>());
  return ids;
}

std::vector<int64_t> GenerationFile::start() const {
  std::vector<int64_t> ids = tokens("decoder_start_token_id");
  if (ids.empty()) ids = tokens("bos_token_id");
  for (const int64_t id : tokens("forced_bos_token_id")) ids.push_back(id);
  return ids;
}

GenerationDefaults GenerationFile::defaults() const {
  Said said(said_, path_);
  GenerationDefaults found;
  found.do_sample = said.boolean("do_sample");
  found.temperature = said.number("temperature", 1e6, true);
  found.top_k = said.whole("top_k", 0);
  found.top_p = said.number("top_p", 1, false);
  found.min_p = said.number("min_p", 1, true);
  found.repetition_penalty = said.number("repetition_penalty", 1e6, false);
  found.max_new_tokens = said.whole("max_new_tokens", 1);
  found.max_length = said.whole("max_length", 1);
  found.min_new_tokens = said.whole("min_new_tokens", 0);
  found.min_length = said.whole("min_length", 0);
  found.suppressed = said.tokens("suppress_tokens", vocab_size_);
  found.suppressed_first = tokens("begin_suppress_tokens");  // Whisper's default names tokens that small ones lack
  found.no_repeat = said.whole("no_repeat_ngram_size", 0);
  found.beams = said.whole("num_beams", 1);
  found.length_penalty = said.any_number("length_penalty");
  found.early_stopping = said.boolean_or("early_stopping", "never");
  found.forced_end = !tokens("forced_eos_token_id").empty();
  said.done();
  return found;
}

}  // namespace attn::models
