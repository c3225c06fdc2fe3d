#include "config_flags.h"

#include <fmt/core.h>

#include <algorithm>

#include "attn/core_names.h"
#include "attn/io.h"
#include "attn/ops.h"
#include "commands.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

/// The defaults of every field in every family, as help shows them: "0.00001; encoder 1e-12".
std::vector<std::string> default_texts() {
  using attn::models::FieldInfo;
  const std::vector<FieldInfo> common = attn::models::field_info(attn::models::family("gpt"));
  std::vector<std::string> texts;
  for (const FieldInfo& field : common) texts.push_back(field.value);
  for (const std::string& name : attn::models::families()) {
    const std::vector<FieldInfo> own = attn::models::field_info(attn::models::family(name));
    for (size_t n = 0; n < own.size(); ++n)
      if (own[n].value != common[n].value) texts[n] += "; " + name + " " + own[n].value;
  }
  return texts;
}

/// As models::set_field() says it.
CLI::Validator field_check(const attn::models::FieldInfo& field) {
  const auto check = [name = field.name](const std::string& text) {
    try {
      attn::models::Config config;
      attn::models::set_field(config, name, text);
    } catch (const attn::Error& error) {
      const std::string& reason = error.reasons().front();
      return reason.starts_with(name + " ") ? reason.substr(name.size() + 1) : reason;
    }
    return std::string();
  };
  const std::string limits = field.kind == "number" ? fmt::format("[{}, {}]", field.lowest, field.highest)
                             : field.kind == "text" && field.choices.empty() ? std::string("TEXT")
                             : field.kind == "list of numbers"               ? std::string("[NUMBER,...]")
                             : field.kind.starts_with("list of lists")       ? std::string("[[INT,...],...]")
                             : field.choices.empty() ? fmt::format("{:.0f} to {:.0f}", field.lowest, field.highest)
                                                     : "{" + joined(field.choices, ",") + "}";
  return CLI::Validator(check, limits);
}

/// Those of the program, and BERT, which attn export writes for transformers.
std::vector<std::string> trainable_families() {
  std::vector<std::string> names = attn::models::families();
  names.emplace_back("bert");
  return names;
}

// Models of the program do not compute in float64.
const std::vector<std::string> kPrecisions = {"float32", "bfloat16", "float16"};
const std::vector<std::string> kModelPrecisions = {"float32", "bfloat16", "float16", "int8", "int4"};

}  // namespace

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

void ConfigOptions::add(CLI::App& command) {
  command.add_option("--model", family, "the family, whose defaults the other options change")
      ->group("Model")
      ->check(one_of(trainable_families()));
  command.add_option("--config", file, "a JSON file with fields of the model")->group("Model")->type_name("FILE");
  command
      .add_option(
          "--mixer", mixer,
          "what mixes the tokens of a layer: full, window:TOKENS, gated_delta, kimi_delta, delta, gla, "
          "retention, mamba2, elu, performer, linear (as --linear-... say), convolution:TOKENS, lstm, lstm:HIDDEN, "
          "moba:BLOCK or nsa:BLOCK")
      ->group("Model")
      ->type_name("MIXER");
  command.add_option("--mixer-every", mixer_every, "the mixer of every N-th layer, as 4:full")
      ->group("Model")
      ->type_name("N:MIXER");
  // Several commands take them, each at every start of the program.
  static const std::vector<attn::models::FieldInfo> infos = attn::models::field_info();
  static const std::vector<std::string> defaults = default_texts();
  fields.clear();
  fields.reserve(infos.size());  // options keep the places
  for (size_t n = 0; n < infos.size(); ++n) {
    const attn::models::FieldInfo& info = infos[n];
    if (info.name == "model" || info.name.ends_with("vocab_size")) continue;  // the data say it
    fields.emplace_back(info.name, "");
    command.add_option(flag_of(info.name), fields.back().second, info.description)
        ->group("Model")
        ->type_name(info.kind == "number"         ? "FLOAT"
                    : info.kind == "whole number" ? "INT"
                                                  : "TEXT")
        ->check(field_check(info))
        ->default_str(defaults[n]);
  }
}

attn::models::Config ConfigOptions::build(const std::string& default_family) const {
  attn::models::Config config;
  attn::models::set_field(config, "model", family.empty() ? default_family : family);
  if (!file.empty()) attn::models::apply_json(config, attn::io::read_input(file, 1 << 20), file);
  if (!family.empty() && config.model != family)
    throw UsageError(fmt::format("--model is {}, but {} says \"model\": \"{}\"", family, file, config.model));
  const auto set_fields = [&] {
    for (const auto& [name, value] : fields)
      if (!value.empty()) attn::models::set_field(config, name, value);
  };
  set_fields();
  if (mixer.empty() && !mixer_every.empty()) throw UsageError("--mixer-every needs --mixer, the other layers' mixer");
  if (!mixer.empty()) {
    try {
      attn::models::set_mixers(config, mixer, mixer_every);
    } catch (const attn::Error& error) {
      throw UsageError(std::string("--mixer: ") + error.reasons().front());
    }
    set_fields();  // which win over what a name of a mixer says
  }
  attn::models::Config whole = config;
  whole.vocab_size = std::max<int64_t>(whole.vocab_size, 1);  // the data may still have to say it
  try {
    attn::models::check(whole);
  } catch (const attn::Error& error) {
    throw UsageError(error.what());
  }
  return config;
}

void add_precision(CLI::App& command, std::string& name, const std::string& description) {
  command.add_option("--precision", name, description)->check(one_of(kPrecisions));
}

void add_model_precision(CLI::App& command, std::string& name) {
  command.add_option("--precision", name, "type of the computation; int8 and int4: of the weights")
      ->check(one_of(kModelPrecisions));
}

void set_precision(attn::models::OpenOptions& options, const std::string& name) {
  options.quantization = attn::from_name<attn::models::Quantization>(name);
  options.precision = options.quantization ? attn::nn::Precision::float32 : precision_named(name);
}

attn::nn::Precision precision_named(const std::string& name) {
  const auto precision = attn::from_name<attn::nn::Precision>(name);
  if (!precision || precision == attn::nn::Precision::float64)  // as a training.json may say
    throw UsageError("unknown precision '" + name + "'; known are: " + joined(kPrecisions, ", "));
  return *precision;
}

void add_float32_precision(CLI::App& app, std::string& name) {
  app.add_option("--float32-precision", name,
                 "how float32 enters products and attention where the processor has matrix tiles: as accurate as "
                 "float32, as 16 bits, or rounded to bfloat16")
      ->check(one_of(attn::names_of<attn::Float32Precision>()));
}

void set_float32_precision(const std::string& name) {
  const auto precision = attn::from_name<attn::Float32Precision>(name);
  if (!precision)  // as a training.json may say
    throw UsageError("unknown float32_precision '" + name +
                     "'; known are: " + joined(attn::names_of<attn::Float32Precision>(), ", "));
  attn::ops::set_matmul_precision(*precision);
}

std::string float32_precision() { return std::string(attn::name_of(attn::ops::matmul_precision())); }

}  // namespace cli
