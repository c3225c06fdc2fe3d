// attn fill: the tokens that fit the gaps of a text.
#include <fmt/core.h>

#include <memory>

#include "attn/models_fill.h"
#include "commands.h"
#include "model_flags.h"
#include "options.h"

namespace cli {
namespace {

struct Fill {
  ModelOptions model;
  std::string text, gap;
  int64_t top = 5;

  void run() const {
    attn::models::Loaded loaded = model.load();
    const attn::models::Config& config = loaded.model->config();
    if (config.causal || config.classes || !config.head)
      throw UsageError(model.directory + " does not fill gaps; " + what_fits(config));
    const attn::models::MaskFiller fill(std::move(loaded));
    const std::string& mask = fill.mask();
    std::string filled = text;
    if (!gap.empty())
      for (size_t at = 0; (at = filled.find(gap, at)) != std::string::npos; at += mask.size())
        filled.replace(at, gap.size(), mask);
    if (filled.find(mask) == std::string::npos)
      throw UsageError("the text has no gap: write " + mask + " in its place");
    for (const attn::models::FilledMask& found : fill(filled, top)) {
      fmt::print("token {}\n", found.position);
      for (const attn::models::FilledToken& token : found.tokens)
        fmt::print("  {:.4f}  {}\n", token.probability, token.text);
    }
  }
};

}  // namespace

void add_fill(CLI::App& app) {
  CLI::App* command = app.add_subcommand("fill", "predict the words for the gaps of a text");
  command->footer("Example:\n  attn fill bert-base-uncased --text \"Paris is the ___ of France.\" --gap ___");
  auto run = std::make_shared<Fill>();
  run->model.add(*command);
  command->add_option("--text", run->text, "a text with [MASK], or <mask>, for each gap")->required();
  command->add_option("--gap", run->gap, "another spelling of a gap in the text");
  command->add_option("--top", run->top, "number of predictions per gap")->check(whole(1, 1 << 24));
  command->callback([=] { run->run(); });
}

}  // namespace cli
