// attn embed: a vector for each line of a file.
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/core_names.h"
#include "attn/models_embed.h"
#include "commands.h"
#include "config_flags.h"
#include "lines.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "signals.h"

namespace cli {
namespace {

using attn::Array;
using Json = nlohmann::ordered_json;

/// The lines of a file, all of them, each a text, empty ones too: row n of the result is line n.
std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> texts;
  Lines lines(file);
  for (std::string line; lines.next(line);) texts.push_back(line);
  return texts;
}

struct Embed {
  std::string directory, file = "-", out = "-", precision = "float32", pooling, prompt_name;
  std::optional<std::string> prompt;
  int64_t max_length = 0, step = 2048, truncate_dim = 0;
  bool normalize = false, statistics = false, unpacked = false;

  attn::models::Embedder load() const {
    Loading loading;
    attn::models::OpenOptions options{.packed = !unpacked, .on_progress = loading.listener()};
    set_precision(options, precision);
    return attn::models::Embedder(directory, options, attn::from_name<attn::models::Pooling>(pooling));
  }

  /// The text before each line: --prompt, or --prompt-name, or the folder's default prompt.
  std::string prompt_of(const attn::models::Embedder& embedder) const {
    if (prompt) return *prompt;
    if (prompt_name.empty()) return embedder.options.prompt;
    const auto found = embedder.prompts().find(prompt_name);
    if (found != embedder.prompts().end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, text] : embedder.prompts()) names.push_back(name);
    throw UsageError(fmt::format("--prompt-name: {} has no prompt '{}'; {}", directory, prompt_name,
                                 names.empty() ? "it has none" : "it has " + joined(names, ", ")));
  }

  /// Of work that was stopped the vectors that are there, where lines can leave others out.
  void write(const Array& rows, const std::vector<std::string>& texts, const std::vector<int64_t>& missing) const {
    if (out.ends_with(".npy") && !missing.empty()) throw attn::Error("embed", {"stopped: nothing was written"});
    if (out.ends_with(".npy"))
      return attn::io::write_output(out, attn::io::format_npy(rows.dtype(), rows.shape(), rows.data()));
    std::string lines;
    const float* number = static_cast<const float*>(rows.data());
    for (size_t n = 0; n < texts.size(); ++n, number += rows.width()) {
      if (std::binary_search(missing.begin(), missing.end(), static_cast<int64_t>(n))) continue;
      lines += Json{{"text", texts[n]}, {"embedding", std::vector<float>(number, number + rows.width())}}.dump(
                   -1, ' ', false, Json::error_handler_t::replace) +
               "\n";
    }
    attn::io::write_output(out, lines);
    if (!missing.empty())
      say("attn: stopped: {} of {} texts were written\n", grouped(std::ssize(texts) - std::ssize(missing)),
          grouped(std::ssize(texts)));
  }

  void run() const {
    attn::models::Embedder embedder = load();
    if (normalize) embedder.options.normalize = true;
    if (max_length) embedder.options.max_length = max_length;
    if (truncate_dim) embedder.options.truncate_dim = truncate_dim;
    embedder.options.tokens_a_step = step;
    embedder.options.prompt = prompt_of(embedder);
    embedder.options.name = [&](int64_t text) {
      return fmt::format("{}, line {}", file == "-" ? "standard input" : file, text + 1);
    };
    const std::vector<std::string> texts = lines_of(file);
    catch_signals();
    Meter meter("texts", static_cast<int64_t>(texts.size()));
    const auto start = std::chrono::steady_clock::now();
    const auto look = [&](int64_t done) {
      meter.show(done);
      return !signal_seen();
    };
    std::vector<int64_t> missing;
    const Array rows = embedder(texts, look, &missing);
    meter.hide();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const size_t done = texts.size() - missing.size();
    if (statistics) say("{} texts, {:.1f} texts/s\n", done, static_cast<double>(done) / seconds);
    write(rows, texts, missing);
  }
};

}  // namespace

void add_embed(CLI::App& app) {
  CLI::App* command = app.add_subcommand("embed", "compute a vector for every line");
  command->footer("Example:\n  attn embed all-MiniLM-L6-v2 lines.txt --out vectors.npy");
  auto run = std::make_shared<Embed>();
  command
      ->add_option("directory", run->directory, "a model folder: of the Hugging Face hub, or the output of attn train")
      ->required()
      ->type_name("FOLDER");
  command->add_option("file", run->file, "lines of text, an empty one too; - is standard input")->type_name("FILE");
  command->add_option("--out", run->out, "a .npy file, or lines of JSON; - is standard output")->type_name("FILE");
  CLI::Option* prompt = command->add_option("--prompt", run->prompt,
                                            "text put before every line; default: as the folder says, else none");
  command->add_option("--prompt-name", run->prompt_name, "use the folder's prompt of this name")->excludes(prompt);
  command
      ->add_option("--truncate-dim", run->truncate_dim, "number of leading dimensions to keep; 0 = as the folder says")
      ->check(whole(0, 1 << 24));
  command
      ->add_option("--pooling", run->pooling,
                   "how token vectors become one vector; default: as modules.json says, else mean")
      ->check(one_of(attn::names_of<attn::models::Pooling>()));
  command->add_flag("--normalize", run->normalize, "scale vectors to length 1, even if modules.json does not say so");
  command
      ->add_option("--max-length", run->max_length, "truncate texts to this number of tokens; 0 = as the folder says")
      ->check(whole(0, 1 << 24));
  command->add_option("--step", run->step, "largest number of tokens in one batch")->check(whole(1, 1 << 24));
  command->add_flag("--stats", run->statistics, "print the number of texts per second");
  command->add_flag("--unpacked", run->unpacked, "do not pack weights: starts sooner, embeds more slowly");
  add_model_precision(*command, run->precision);
  command->callback([=] { run->run(); });
}

}  // namespace cli
