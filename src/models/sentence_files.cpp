// modules.json and what belongs to it.
#include <algorithm>
#include <cmath>
#include <set>

#include "attn/core_names.h"
#include "io/foreign.h"
#include "models/sentence.h"

namespace attn::models {

using io::Json;

// -------------------------------------------------------------------------------------------------------------- fields

FileFields::FileFields(Json object, std::string place) : object_(std::move(object)), place_(std::move(place)) {
  if (!object_.is_object()) refuse("must be an object, is " + io::as_shown(object_));
}

void FileFields::refuse(const std::string& field, const std::string& must) const {
  refuse(field + " is " + io::as_shown(object_.value(field, Json())) + ", must be " + must);
}

void FileFields::refuse(const std::string& reason) const { throw Error("embed", {place_ + ": " + reason}); }

const Json* FileFields::find(const std::string& field) {
  known_.push_back(field);
  const auto found = object_.find(field);
  return found == object_.end() ? nullptr : &*found;
}

bool FileFields::flag(const std::string& field, bool fallback) {
  const Json* value = find(field);
  if (value && !value->is_boolean()) refuse(field, "true or false");
  return value ? value->get<bool>() : fallback;
}

std::optional<int64_t> FileFields::count(const std::string& field) {
  const Json* value = find(field);
  if (!value) return {};
  const std::optional<int64_t> number = io::whole_number(*value);
  if (!number || *number < 1) refuse(field, "a whole number from 1");
  return number;
}

int64_t FileFields::needed(const std::string& field) {
  const std::optional<int64_t> number = count(field);
  if (!number) refuse(field + " is missing, must be a whole number from 1");
  return *number;
}

std::optional<std::string> FileFields::text(const std::string& field) {
  const Json* value = find(field);
  if (value && !value->is_string()) refuse(field, "a text");
  return value ? std::optional(value->get<std::string>()) : std::nullopt;
}

FileFields FileFields::object(const std::string& field) {
  const Json* value = find(field);
  return FileFields(value ? *value : Json::object(), place_ + ": " + field);
}

void FileFields::unset(const std::string& field) {
  const Json* value = find(field);
  if (value && !value->is_null()) refuse(field, "null: nothing else is supported");
}

void FileFields::pass_over(std::initializer_list<const char*> fields) {
  known_.insert(known_.end(), fields.begin(), fields.end());
}

void FileFields::done() const {
  for (const auto& [field, value] : object_.items())
    if (std::find(known_.begin(), known_.end(), field) == known_.end())
      refuse("the field " + io::in_quotes(field) + " is not supported");
}

// --------------------------------------------------------------------------------------------------------------- files

namespace {

FileFields file(const std::string& path) { return FileFields(io::read_json("embed", path), path); }

/// A tokenizer's model_max_length: those without a bound say 10^30.
std::optional<int64_t> max_length(FileFields& fields, const char* name) {
  constexpr double kNone = 1e20;  // from here on transformers cuts nothing
  const Json* value = fields.find(name);
  if (value && value->is_number() && value->get<double>() >= kNone) return kUnbounded;
  return fields.count(name);
}

/// What the tokenizer's own file says of lengths, where modules do not.
void read_length(SentenceFiles& files) {
  const std::string path = files.model + "/tokenizer_config.json";
  if (files.longest || !io::exists(path)) return;
  FileFields fields = file(path);
  for (const char* name : {"max_len", "model_max_length"})
    if (const Json* value = fields.find(name); value && !value->is_null()) {
      files.tokenizers = max_length(fields, name);
      files.length_field = path + ": " + name;
    }
}

/// Text in, rows of the last layer out: the only supported configuration.
void require_plain(FileFields& fields) {
  if (const auto task = fields.text("transformer_task"); task && task != "feature-extraction")
    fields.refuse("transformer_task", "\"feature-extraction\"");
  fields.find("module_output_name");  // counts beside modality_config alone
  if (!fields.find("modality_config")) return;
  FileFields modalities = fields.object("modality_config"), texts = modalities.object("text");
  const Json* output = texts.find("method_output_name");
  if (texts.text("method") != "forward") texts.refuse("method", "\"forward\"");
  if (!output || (*output != "last_hidden_state" && *output != Json{"last_hidden_state"}))
    texts.refuse("method_output_name", "\"last_hidden_state\"");
  texts.done();
  modalities.done();
  if (fields.text("module_output_name") != kTokenRows)
    fields.refuse("module_output_name", "\"" + std::string(kTokenRows) + "\"");
}

/// Arguments of transformers' functions, under their present name or the older one.
FileFields arguments(FileFields& fields, const char* name, const char* older) {
  FileFields old = fields.object(older), now = fields.object(name);
  FileFields used = fields.find(older) ? old : now;
  used.pass_over({"trust_remote_code", "attn_implementation", "add_pooling_layer", "low_cpu_mem_usage",
                  "use_safetensors", "use_fast", "use_cache", "local_files_only"});
  return used;
}

/// sentence_bert_config.json or an older sibling: the first that says anything.
void read_transformer(SentenceFiles& files) {
  for (const char* kind : {"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"}) {
    const std::string path = files.model + "/sentence_" + kind + "_config.json";
    const Json object = io::exists(path) ? io::read_json("embed", path) : Json::object();
    FileFields fields(object, path);
    if (object.empty()) continue;
    require_plain(fields);
    arguments(fields, "model_kwargs", "model_args").done();
    arguments(fields, "config_kwargs", "config_args").done();
    FileFields processor = arguments(fields, "processor_kwargs", "tokenizer_args");
    files.longest = max_length(processor, "model_max_length");
    files.length_field = path + ": model_max_length";
    processor.done();
    if (const Json* longest = fields.find("max_seq_length"); longest && !longest->is_null() && !files.longest) {
      files.longest = max_length(fields, "max_seq_length");
      files.length_field = path + ": max_seq_length";
    }
    files.lower_case = fields.flag("do_lower_case", false);
    if (const Json* processing = fields.find("processing_kwargs"); processing && !processing->is_null())
      fields.object("processing_kwargs").done();
    fields.unset("query_expansion");
    fields.unset("tokenizer_name_or_path");
    fields.pass_over({"backend", "cache_dir", "unpad_inputs", "query_length", "document_length"});
    return fields.done();
  }
}

/// config_sentence_transformers.json.
void read_prompts(const std::string& folder, SentenceFiles& files) {
  files.prompts = {{"query", ""}, {"document", ""}};
  const std::string path = folder + "/config_sentence_transformers.json";
  if (!io::exists(path)) return;
  FileFields fields = file(path);
  if (const auto type = fields.text("model_type"); type && type != "SentenceTransformer")
    fields.refuse("model_type", "\"SentenceTransformer\"");
  if (const Json* prompts = fields.find("prompts")) {
    if (!prompts->is_object()) fields.refuse("prompts", "an object");
    for (const auto& [name, text] : prompts->items()) {
      if (!text.is_string() && !text.is_null())
        fields.refuse("prompts: " + io::in_quotes(name) + " is " + io::as_shown(text) + ", must be a text or null");
      files.prompts[name] = text.is_string() ? text.get<std::string>() : "";
    }
  }
  if (const Json* name = fields.find("default_prompt_name"); name && !name->is_null()) {
    const auto known = name->is_string() ? files.prompts.find(name->get<std::string>()) : files.prompts.end();
    if (known == files.prompts.end()) fields.refuse("default_prompt_name", "null or a name among prompts");
    files.prompt = known->second;
  }
  if (const Json* kept = fields.find("truncate_dim"); kept && !kept->is_null())
    files.dimensions = *fields.count("truncate_dim");
  fields.pass_over({"__version__", "requirements", "similarity_fn_name"});
  fields.done();
}

/// "sentence_transformers.models.Pooling" is "Pooling".
std::string kind_of(FileFields& module) {
  constexpr std::string_view kOurs = "sentence_transformers.";
  const std::string type = module.text("type").value_or("");
  const std::string kind = type.substr(type.rfind('.') + 1);
  if (!type.starts_with(kOurs) || (kind != "Transformer" && !is_supported_module(kind)))
    module.refuse("type",
                  "sentence_transformers' Transformer, Pooling, Dense, Normalize, LayerNorm, Dropout or "
                  "WeightedLayerPooling");
  return kind;
}

/// A folder inside this one.
std::string place_of(FileFields& module) {
  const std::optional<std::string> path = module.text("path");
  bool inside = path && !path->starts_with('/') && path->find_first_of(std::string("\\:\0", 3)) == std::string::npos;
  for (size_t begin = 0, end = 0; inside && end != std::string::npos; begin = end + 1) {
    end = path->find('/', begin);
    inside = path->substr(begin, end - begin) != "..";
  }
  if (!inside) module.refuse("path", "a folder of this one");
  return *path;
}

void read_modules(const std::string& folder, SentenceFiles& files) {
  const std::string path = folder + "/modules.json";
  const Json list = io::read_json("embed", path);
  if (!list.is_array()) throw Error("embed", {path + ": must be a list of modules, is " + io::as_shown(list)});
  std::set<std::string> names;
  for (size_t n = 0; n < list.size(); ++n) {
    FileFields module(list[n], path + ", module " + std::to_string(n));
    const std::string kind = kind_of(module), place = place_of(module);
    const std::string name = module.text("name").value_or("");
    if (name.empty() || name.find('.') != std::string::npos || !names.insert(name).second)
      module.refuse("name", "a text of its own without a point");
    module.pass_over({"idx", "kwargs"});
    module.done();
    if ((kind == "Transformer") != (n == 0)) module.refuse("type", n == 0 ? "a Transformer" : "no second Transformer");
    const std::string where = place.empty() ? folder : folder + "/" + place;
    if (n == 0) files.model = where;
    else files.modules.emplace_back(kind, where);
  }
  if (list.empty()) throw Error("embed", {path + ": there is no module, must be a Transformer and what follows it"});
}

/// Without modules.json: the mean, of a decoder the last row. A chat template would be around the text.
void read_plain(const std::string& folder, SentenceFiles& files) {
  FileFields config = file(folder + "/config.json");
  if (!config.find("model_type")) {
    const std::optional<std::string> own = config.text("pooling");
    if (own == attn::name_of(ClassifierPooling::first)) files.pooling = Pooling::first;
    return;
  }
  const std::string path = folder + "/tokenizer_config.json";
  const Json said = io::exists(path) ? io::read_json("embed", path) : Json::object();
  if (io::exists(folder + "/chat_template.jinja") ||
      (said.is_object() && !said.value("chat_template", Json()).is_null()))
    throw Error("embed", {folder + ": without modules.json, sentence-transformers puts a text into the chat_template, "
                                   "which is not supported; a pooling that is asked for embeds the text as it is"});
  const Json *names = config.find("architectures"), *causal = config.find("is_causal");
  const bool decoder = names && names->is_array() && !names->empty() && names->front().is_string() &&
                       names->front().get<std::string>().ends_with("ForCausalLM") && !(causal && *causal == false);
  if (decoder) files.pooling = Pooling::last;
}

void require_model(const SentenceFiles& files, const std::string& folder) {
  if (files.has_modules && !io::exists(files.model))
    throw Error("embed", {folder + "/modules.json names a folder that is not there: " + files.model});
  io::require_model("embed", files.model);
}

}  // namespace

SentenceFiles read_sentence_files(const std::string& folder, std::optional<Pooling> pooling) {
  SentenceFiles files{.model = folder};
  files.has_modules = io::exists(folder + "/modules.json");
  if (files.has_modules) read_modules(folder, files);
  require_model(files, folder);
  if (files.has_modules) {
    read_prompts(folder, files);
    read_transformer(files);
  } else if (!pooling) {
    read_plain(folder, files);
  }
  read_length(files);
  return files;
}

std::unique_ptr<text::Tokenizer> lower_cased(const text::Tokenizer& tokenizer, const std::string& folder) {
  Json whole = io::parse_json("embed", folder, tokenizer.to_json());
  if (!whole.is_object() || !whole.contains("model"))
    throw Error("embed", {folder + ": do_lower_case is true, which a tokenizer of " + tokenizer.kind() + " cannot do"});
  const Json old = whole.value("normalizer", Json()), step = {{"type", "Lowercase"}};
  Json steps = Json::array();
  if (old.is_object() && old.value("type", "") == "Sequence") steps = old.value("normalizers", Json::array());
  else if (!old.is_null()) steps.push_back(old);
  const bool has_one = std::any_of(steps.begin(), steps.end(), [](const Json& each) {
    return each.is_object() && each.value("type", Json()) == "Lowercase";
  });
  if (!has_one) steps.insert(steps.begin(), step);
  whole["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  return text::load_tokenizer(whole.dump(), folder);
}

}  // namespace attn::models
