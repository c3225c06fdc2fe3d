// attn convert: a model of llama2.c as a folder of the Hugging Face hub.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/io.h"
#include "attn/text.h"
#include "commands.h"
#include "llama2c.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

/// The tokenizer with <s> before each text, as llama2.c has it.
std::string with_beginning(const attn::text::Tokenizer& tokenizer) {
  const std::optional<int64_t> begin = tokenizer.token_to_id("<s>");
  if (!begin) throw attn::Error("convert", {"the tokenizer has no token <s>, with which every text must begin"});
  Json json = Json::parse(tokenizer.to_json());
  const std::string before =
      R"({"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}})";
  json["post_processor"] = Json::parse(fmt::format(
      R"({{"type": "TemplateProcessing", "single": [{0}], "pair": [{0}, {{"Sequence": {{"id": "B", "type_id": 1}}}}],
          "special_tokens": {{"<s>": {{"id": "<s>", "ids": [{1}], "tokens": ["<s>"]}}}}}})",
      before, *begin));
  return json.dump(-1, ' ', false);
}

struct Convert {
  std::string model, tokenizer, out;

  void run() const {
    std::error_code unknown;
    if (std::filesystem::exists(out, unknown) && !std::filesystem::is_empty(out, unknown))
      throw UsageError("--out " + out + " is not empty");
    if (const std::string what = attn::io::describe_foreign(model); !what.empty())
      throw attn::Error("convert", {model + ": is " + what});
    Llama2c converter(model, attn::io::read_file(model));
    converter.read();
    const auto text = attn::text::load_sentencepiece(attn::io::read_file(tokenizer, 1 << 28), tokenizer);
    if (text->vocab_size() != converter.vocabulary())
      throw attn::Error("convert", {fmt::format("{} has {} tokens, {} has {}", tokenizer, text->vocab_size(), model,
                                                converter.vocabulary())});
    attn::io::make_directory(out);
    attn::io::write_file(out + "/model.safetensors", converter.tensors());
    attn::io::write_file(out + "/config.json", converter.config());
    attn::io::write_file(out + "/tokenizer.json", with_beginning(*text));
    say("attn: wrote {}\n", out);
  }
};

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand("convert", "convert a model of llama2.c to a folder of the Hugging Face hub");
  command->footer("Example:\n  attn convert stories260K.bin --tokenizer tok512.model --out stories");
  auto run = std::make_shared<Convert>();
  command->add_option("model", run->model, "a .bin file of llama2.c, version 0")->required()->type_name("FILE");
  command->add_option("--tokenizer", run->tokenizer, "its SentencePiece model")->required()->type_name("FILE");
  command->add_option("--out", run->out, "the new folder; it must not exist, or be empty")
      ->required()
      ->type_name("FOLDER");
  command->callback([=] { run->run(); });
}

}  // namespace cli
