#include "config_flags.h"

#include <fmt/core.h>

#include <algorithm>

#include "attn/io.h"
#include "attn/ops.h"
#include "commands.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

/// The default of every family: "0.00001; encoder 1e-12".
std::string defaults_of(size_t field) {
  const std::string common = attn::models::field_info(attn::models::family("gpt"))[field].value;
  std::string text = common;
  for (const std::string& name : attn::models::families())
    if (const auto value = attn::models::field_info(attn::models::family(name))[field].value; value != common)
      text += "; " + name + " " + value;
  return text;
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

constexpr std::pair<const char*, attn::nn::Precision> kPrecisions[] = {
    {"float32", attn::nn::Precision::float32},
    {"bfloat16", attn::nn::Precision::bfloat16},
    {"float16", attn::nn::Precision::float16},
};

constexpr std::pair<const char*, attn::Float32Precision> kFloat32Precisions[] = {
    {"full", attn::Float32Precision::full},
    {"high", attn::Float32Precision::high},
    {"fast", attn::Float32Precision::fast},
};

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.emplace_back(name);
  return names;
}

}  // namespace

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

void ConfigOptions::add(CLI::App& command) {
  command.add_option("--model", family, "the family, whose defaults the other options change")
      ->group("Model")
      ->check(one_of(attn::models::families()));
  command.add_option("--config", file, "a JSON file with fields of the model")->group("Model")->type_name("FILE");
  const std::vector<attn::models::FieldInfo> infos = attn::models::field_info();
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
        ->default_str(defaults_of(n));
  }
}

attn::models::Config ConfigOptions::build(const std::string& default_family) const {
  attn::models::Config config = attn::models::family(family.empty() ? default_family : family);
  if (!file.empty()) attn::models::apply_json(config, attn::io::read_input(file, 1 << 20), file);
  if (!family.empty() && config.model != family)
    throw UsageError(fmt::format("--model is {}, but {} says \"model\": \"{}\"", family, file, config.model));
  for (const auto& [name, value] : fields)
    if (!value.empty()) attn::models::set_field(config, name, value);
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
  command.add_option("--precision", name, description)->check(one_of(names_of(kPrecisions)));
}

attn::nn::Precision precision_named(const std::string& name) {
  for (const auto& [each, precision] : kPrecisions)
    if (name == each) return precision;
  throw UsageError("there is no precision '" + name + "'");  // a training.json may say so
}

void add_float32_precision(CLI::App& app, std::string& name) {
  app.add_option("--float32-precision", name,
                 "how float32 enters products and attention where the processor has matrix tiles: as accurate as "
                 "float32, as 16 bits, or rounded to bfloat16")
      ->check(one_of(names_of(kFloat32Precisions)));
}

void set_float32_precision(const std::string& name) {
  for (const auto& [each, precision] : kFloat32Precisions)
    if (name == each) return attn::ops::set_matmul_precision(precision);
  throw UsageError("there is no float32_precision '" + name + "'");  // a training.json may say so
}

std::string float32_precision() {
  for (const auto& [name, precision] : kFloat32Precisions)
    if (precision == attn::ops::matmul_precision()) return name;
  return {};
}

}  // namespace cli
