// What a folder of transformers says of generation: generation_config.json, or config.json in folders without one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/core_names.h"
#include "models/hub.h"

namespace attn::models {
namespace {

using io::Json;

/// Fields of one file, each perhaps absent; collects what is wrong with them.
class GenerationFields {
 public:
  GenerationFields(const Json& object, const std::string& source) : object_(object), source_(source) {}

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
  std::optional<EarlyStopping> early_stopping(const char* name) {
    const Json value = object_.value(name, Json());
    if (value.is_boolean() || value == "never")
      return from_name<EarlyStopping>(value.is_string() ? "never" : value.dump());
    if (!value.is_null()) refuse(name, value, "true, false or \"never\"");
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
  /// A list of tokens, all in the vocabulary.
  std::vector<int64_t> tokens(const char* name, int64_t vocab_size) {
    const Json value = object_.value(name, Json());
    std::vector<int64_t> ids = ids_of(value, vocab_size);
    if (!value.is_null() && (!value.is_array() || ids.size() != value.size()))
      refuse(name, value, "a list of tokens below " + std::to_string(vocab_size));
    return ids;
  }
  /// A token or a list of them, without those that the vocabulary has not.
  std::vector<int64_t> known(const char* name, int64_t vocab_size) {
    const Json value = object_.value(name, Json()), list = value.is_array() ? value : Json::array({value});
    const auto is_whole = [](const Json& each) { return each.is_number_integer(); };
    if (!value.is_null() && !std::all_of(list.begin(), list.end(), is_whole))
      refuse(name, value, "a token or a list of tokens");
    return ids_of(list, vocab_size);
  }
  /// Adds lists of tokens, or pairs of one and its bias `with_bias`; else they are forbidden.
  void runs(const char* name, int64_t vocab_size, bool with_bias, GenerationConfig& to) {
    const Json value = object_.value(name, Json());
    bool good = value.is_array();
    for (const Json& each : good ? value : Json::array()) {
      good &= !with_bias || (each.is_array() && each.size() == 2 && each[1].is_number());
      const Json run = !good ? Json() : with_bias ? each[0] : each;
      const std::vector<int64_t> ids = ids_of(run, vocab_size);
      good = good && run.is_array() && !ids.empty() && ids.size() == run.size();
      if (!good) break;
      const double bias = with_bias ? each[1].get<double>() : -std::numeric_limits<double>::infinity();
      const auto same = [&](const auto& other) { return with_bias && other.first == ids; };
      std::erase_if(to.sequence_bias, same);  // of two for one run the last counts
      to.sequence_bias.emplace_back(ids, bias);
    }
    if (!good && !value.is_null())
      refuse(name, value,
             std::string("a list of ") + (with_bias ? "pairs of a list of tokens and a number" : "lists of tokens") +
                 ", the tokens below " + std::to_string(vocab_size));
  }
  /// Notes a field that is not supported, unless it has the value that changes nothing.
  void unsupported(const char* name, const Json& neutral, UnsupportedField::When when, GenerationConfig& to,
                   const std::string& reason = "which is not supported") {
    const Json value = object_.value(name, Json());
    if (!value.is_null() && value != neutral)
      to.unsupported.push_back({name, source_ + ": " + name + " is " + io::as_shown(value) + ", " + reason, when});
  }
  void done() const {
    if (!reasons_.empty()) throw Error("open", reasons_);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 40;
  static std::vector<int64_t> ids_of(const Json& list, int64_t vocab_size) {
    std::vector<int64_t> ids;
    for (const Json& each : list.is_array() ? list : Json::array())
      if (const std::optional<int64_t> id = io::whole_number(each); id && *id < vocab_size) ids.push_back(*id);
    return ids;
  }
  void refuse(const char* name, const Json& value, const std::string& wanted) {
    reasons_.push_back(source_ + ": " + name + " is " + io::as_shown(value) + ", must be " + wanted);
  }
  const Json& object_;
  const std::string& source_;
  std::vector<std::string> reasons_;
};

/// What generate() does not do, with the value that changes nothing.
struct UnsupportedDefault {
  const char* name;
  const char* neutral;
  UnsupportedField::When when = UnsupportedField::always;
};
constexpr UnsupportedDefault kUnsupportedDefaults[] = {{"assistant_early_exit", "null"},
                                                       {"constraints", "null"},
                                                       {"diversity_penalty", "0", UnsupportedField::with_beams},
                                                       {"dola_layers", "null"},
                                                       {"encoder_no_repeat_ngram_size", "0"},
                                                       {"encoder_repetition_penalty", "1"},
                                                       {"epsilon_cutoff", "0", UnsupportedField::with_sampling},
                                                       {"eta_cutoff", "0", UnsupportedField::with_sampling},
                                                       {"exponential_decay_length_penalty", "null"},
                                                       {"force_words_ids", "null"},
                                                       {"guidance_scale", "1"},
                                                       {"max_time", "null"},
                                                       {"num_beam_groups", "1", UnsupportedField::with_beams},
                                                       {"num_return_sequences", "1"},
                                                       {"penalty_alpha", "0"},
                                                       {"renormalize_logits", "false", UnsupportedField::with_beams},
                                                       {"stop_strings", "null"},
                                                       {"token_healing", "false"},
                                                       {"top_h", "null", UnsupportedField::with_sampling},
                                                       {"typical_p", "1", UnsupportedField::with_sampling},
                                                       {"use_mtp", "false"},
                                                       {"watermarking_config", "null"}};

GenerationConfig defaults_of(GenerationFields& fields, int64_t vocab_size) {
  GenerationConfig found;
  found.do_sample = fields.boolean("do_sample");
  found.temperature = fields.number("temperature", 1e6, true);
  found.top_k = fields.whole("top_k", 0);
  found.top_p = fields.number("top_p", 1, false);
  found.min_p = fields.number("min_p", 1, true);
  found.repetition_penalty = fields.number("repetition_penalty", 1e6, false);
  found.max_new_tokens = fields.whole("max_new_tokens", 1);
  found.max_length = fields.whole("max_length", 1);
  found.min_new_tokens = fields.whole("min_new_tokens", 0);
  found.min_length = fields.whole("min_length", 0);
  found.suppress_tokens = fields.tokens("suppress_tokens", vocab_size);
  found.begin_suppress_tokens =
      fields.known("begin_suppress_tokens", vocab_size);  // Whisper's names some that small ones lack
  found.no_repeat_ngram_size = fields.whole("no_repeat_ngram_size", 0);
  found.num_beams = fields.whole("num_beams", 1);
  found.length_penalty = fields.any_number("length_penalty");
  found.early_stopping = fields.early_stopping("early_stopping");
  fields.runs("sequence_bias", vocab_size, true, found);
  fields.runs("bad_words_ids", vocab_size, false, found);
  for (const UnsupportedDefault& field : kUnsupportedDefaults)
    fields.unsupported(field.name, Json::parse(field.neutral), field.when, found);
  return found;
}

bool is_among(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void read_generation(const std::string& folder, const Json& config, const Config& model, Loaded& loaded) {
  const std::string path = folder + "/generation_config.json";
  const Json own = io::exists(path) ? io::read_json("open", path) : Json();
  if (own.is_null()) read_generation_fields(config, folder + "/config.json", model, loaded);
  else read_generation_fields(own, path, model, loaded);
}

void read_generation_fields(const Json& given, const std::string& source, const Config& model, Loaded& loaded) {
  if (!given.is_object()) throw Error("open", {source + " is not a JSON object"});
  GenerationFields fields(given, source);
  const int64_t vocab_size = model.vocab_size;
  GenerationConfig found = defaults_of(fields, vocab_size);
  loaded.eos_token_ids = fields.known("eos_token_id", vocab_size);
  // One that ends a text anyway is no word that is bad.
  std::erase_if(found.sequence_bias, [&](const auto& run) {
    return run.second < std::numeric_limits<double>::lowest() && run.first.size() == 1 &&
           is_among(loaded.eos_token_ids, run.first[0]);
  });
  const std::vector<int64_t> last = fields.known("forced_eos_token_id", vocab_size);
  found.forced_eos = !last.empty();
  if (!std::all_of(last.begin(), last.end(), [&](int64_t id) { return is_among(loaded.eos_token_ids, id); }))
    fields.unsupported("forced_eos_token_id", Json(), UnsupportedField::always, found,
                       "which is supported for one of eos_token_id");
  if (model.encoder_layers > 0) {
    loaded.decoder_start_token_ids = fields.known("decoder_start_token_id", vocab_size);
    if (loaded.decoder_start_token_ids.empty())
      loaded.decoder_start_token_ids = fields.known("bos_token_id", vocab_size);
    for (const int64_t id : fields.known("forced_bos_token_id", vocab_size))
      loaded.decoder_start_token_ids.push_back(id);
  } else {
    fields.unsupported("forced_bos_token_id", Json(), UnsupportedField::always, found,
                       "which is supported for models with an encoder");
  }
  fields.done();
  loaded.generation_config = std::move(found);
}

}  // namespace attn::models
