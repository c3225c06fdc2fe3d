// attn tokenizer: learns a vocabulary, makes ids of text, and text of ids.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>

#include "attn/io.h"
#include "attn/text.h"
#include "commands.h"
#include "numbers.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

struct TokenizerCommand {
  std::string action, out = "tokenizer.json";
  std::vector<std::string> files;
  attn::text::TokenizerTrainingOptions training;
  std::optional<std::string> given;
  bool cased = false, add_special_tokens = false;

  void run() {
    if (action == "train") return train();
    if (files.size() > (given ? 1 : 2))
      throw UsageError("attn tokenizer " + action + " takes a tokenizer and one file");
    if (given && action == "decode") throw UsageError("attn tokenizer decode takes ids, not --text");
    const auto tokenizer = opened();
    if (given) return show(encoded(*tokenizer, *given, "--text"));
    const std::string file = files.size() > 1 ? files[1] : "-", input = attn::io::read_input(file);
    if (action == "encode") show(encoded(*tokenizer, input, file));
    else decode(*tokenizer, input);
  }

 private:
  void train() {
    std::vector<std::string> texts;
    for (const std::string& file : files) {
      texts.push_back(attn::io::read_input(file));
      attn::text::require_utf8(texts.back(), file);
    }
    training.lower_case = !cased;
    const auto tokenizer = attn::text::train_tokenizer(texts, training);
    attn::io::write_output(out, tokenizer->to_json());
    say("{}: {} tokens\n", out, grouped(tokenizer->vocab_size()));
  }

  /// The first of two files; where it is none and the second is one, the order is what is wrong.
  std::unique_ptr<attn::text::Tokenizer> opened() const {
    try {
      return attn::text::open_tokenizer(files[0]);
    } catch (const attn::Error&) {
      if (files.size() < 2 || !is_tokenizer(files[1])) throw;
    }
    throw UsageError(
        fmt::format("{0} is not a tokenizer, but {1} is; give the tokenizer first: attn tokenizer {2} {1} {0}",
                    files[0], files[1], action));
  }

  static bool is_tokenizer(const std::string& path) {
    try {
      return attn::text::open_tokenizer(path) != nullptr;
    } catch (const attn::Error&) {
      return false;
    }
  }

  std::string encoded(const attn::text::Tokenizer& tokenizer, const std::string& text, const std::string& file) const {
    try {
      return fmt::format("{}\n",
                         fmt::join(tokenizer.encode(text, {.add_special_tokens = add_special_tokens}).ids, " "));
    } catch (const attn::Error& error) {
      throw attn::Error("tokenizer encode", {file + ": " + error.reasons().front()});
    }
  }

  static void decode(const attn::text::Tokenizer& tokenizer, const std::string& input) {
    attn::text::TextStream stream(tokenizer);
    const char *at = input.data(), *const end = at + input.size();
    const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ','; };
    while (true) {
      while (at < end && is_blank(*at)) ++at;
      if (at == end) break;
      int64_t id = 0;
      const auto [behind, error] = std::from_chars(at, end, id);
      if (error != std::errc() || (behind < end && !is_blank(*behind)))
        throw attn::Error(
            "tokenizer decode",
            {fmt::format("the ids must be whole numbers, but at byte {} there is none", at - input.data())});
      show(stream.push(id));
      at = behind;
    }
    show(stream.finish());
  }
};

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tokenizer", "train a tokenizer, encode text or decode token ids");
  command->footer(
      "Example:\n  attn tokenizer train text.txt --vocab-size 4000 --out tokenizer.json\n"
      "  attn tokenizer encode tokenizer.json text.txt");
  auto run = std::make_shared<TokenizerCommand>();
  command->add_option("action", run->action, "the action")->required()->check(one_of({"train", "encode", "decode"}));
  command
      ->add_option("files", run->files,
                   "train: the texts; encode and decode: a model's folder, a tokenizer.json or a SentencePiece model, "
                   "and a file, "
                   "or standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--kind", run->training.kind, "kind of the tokenizer to train")
      ->check(one_of({"bpe", "wordpiece", "unigram"}));
  command->add_option("--vocab-size", run->training.vocab_size, "largest size of the vocabulary")
      ->check(whole(1, 1 << 22));
  command->add_option("--min-count", run->training.min_count, "pairs that occur less often do not merge")
      ->check(whole(1));
  command->add_option("--out", run->out, "where train writes")->type_name("FILE");
  command->add_flag("--cased", run->cased, "wordpiece: keep capitals and accents");
  command->add_option("--text", run->given, "encode: this text instead of a file")->type_name("TEXT");
  command->add_flag("--add-special-tokens", run->add_special_tokens,
                    "encode: add special tokens, such as [CLS] and [SEP]");
  command->callback([=] { run->run(); });
}

}  // namespace cli
