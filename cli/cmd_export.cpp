// attn export and attn lora: models and adapters as folders of the Hugging Face hub.
#include <memory>

#include "attn/core_names.h"
#include "attn/models_export.h"
#include "commands.h"
#include "config_flags.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "settings.h"

namespace cli {
namespace {

/// The folder that the training of a model began with; empty where its files do not say it.
std::string origin_of(const std::string& model) {
  const std::string path = path_in(model, kSettingsFile);
  if (!attn::io::exists(path)) return "";
  const auto settings = nlohmann::json::parse(attn::io::read_file(path, 1 << 20), nullptr, false);
  return settings.is_object() && settings.contains("from") && settings["from"].is_string()
             ? settings["from"].get<std::string>()
             : std::string();
}

void report(const std::string& out, const attn::models::Exported& exported) {
  for (const std::string& note : exported.notes) say("attn: {}\n", note);
  say("attn: wrote {}{}: {} tensors, {}B\n", out, exported.architecture.empty() ? "" : ", a " + exported.architecture,
      exported.tensors, short_number(static_cast<double>(exported.bytes)));
}

/// A folder of the hub, or a file for llama.cpp where the name ends so.
attn::models::Exported exported(const std::string& model, const std::string& out,
                                const attn::models::ExportOptions& options) {
  return out.ends_with(".gguf") ? attn::models::export_gguf(model, out, options)
                                : attn::models::export_folder(model, out, options);
}

struct Export {
  std::string model, out, adapter, base, which = "best", precision = "float32";

  void add(CLI::App& command) {
    command.add_option("model", model, "a model folder: the output of attn train, or a folder of the hub")
        ->required()
        ->type_name("FOLDER");
    command.add_option("--to", out, "the new folder; it must not exist, or be empty; or a new file.gguf")
        ->required()
        ->type_name("FOLDER");
    command.add_option("--checkpoint", which, "which checkpoint of the training")->check(one_of({"best", "last"}));
    add_precision(command, precision, "type of the weights that are written");
  }
  attn::models::ExportOptions options() const {
    return {.precision = precision_named(precision), .which = which, .adapter = adapter};
  }
};

}  // namespace

void add_export(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "write a model as a folder of the Hugging Face hub, which transformers opens");
  command->footer("Examples:\n  attn export reviews --to reviews-hub\n  attn export llama --to llama.gguf");
  auto run = std::make_shared<Export>();
  run->add(*command);
  command->callback([=] { report(run->out, exported(run->model, run->out, run->options())); });
}

void add_quantize(CLI::App& app) {
  CLI::App* command = app.add_subcommand("quantize", "write a model with weights of 8 or 4 bits");
  command->footer(
      "The folder is in the format pack-quantized of compressed-tensors, which transformers and vLLM open too.\n\n"
      "Example:\n  attn quantize llama --to int4 --out llama-int4");
  auto run = std::make_shared<Export>();
  auto bits = std::make_shared<std::string>();
  command->add_option("model", run->model, "a model folder: the output of attn train, or a folder of the hub")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--to", *bits, "int8 or int4: a number of so many bits, and a scale for each group of them")
      ->required()
      ->check(one_of(attn::names_of<attn::models::Quantization>()));
  command->add_option("--out", run->out, "the new folder, or a new file.gguf in Q8_0 or Q4_0")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--checkpoint", run->which, "which checkpoint of a training")->check(one_of({"best", "last"}));
  add_precision(*command, run->precision, "type of all other numbers, and of the weights before");
  command->callback([=] {
    attn::models::ExportOptions options = run->options();
    options.quantization = attn::from_name<attn::models::Quantization>(*bits);
    report(run->out, exported(run->model, run->out, options));
  });
}

void add_lora(CLI::App& app) {
  CLI::App* command = app.add_subcommand("lora", "merge low-rank adapters into their model, or save them alone");
  command->footer(
      "Examples:\n  attn lora merge llama --adapter llama-adapter --to merged\n"
      "  attn lora save reviews --to reviews-adapter");
  auto run = std::make_shared<Export>();
  auto action = std::make_shared<std::string>();
  command
      ->add_option("action", *action,
                   "merge writes the model with its adapters in the weights; save writes the adapters that attn train "
                   "made as a LoRA folder of PEFT")
      ->required()
      ->check(one_of({"merge", "save"}));
  run->add(*command);
  CLI::Option* adapter = command
                             ->add_option("--adapter", run->adapter,
                                          "merge: a LoRA folder of PEFT; none: the adapters that attn train made")
                             ->type_name("FOLDER");
  CLI::Option* base = command
                          ->add_option("--base", run->base,
                                       "save: name of the original in adapter_config.json; default: that of --from")
                          ->type_name("NAME");
  command->callback([=] {
    if (*action == "merge") {
      if (base->count()) throw UsageError("--base is for attn lora save");
      return report(run->out, attn::models::export_folder(run->model, run->out, run->options()));
    }
    if (adapter->count()) throw UsageError("--adapter is for attn lora merge");
    report(run->out, attn::models::export_adapter(
                         run->model, run->out, run->base.empty() ? origin_of(run->model) : run->base, run->options()));
  });
}

}  // namespace cli
