// attn see: what every head of a model attends to on a text.
#include <fmt/core.h>
#include <unistd.h>

#include <memory>

#include "attn/view.h"
#include "common.h"

namespace cli {
namespace {

struct See {
  ModelOptions model;
  std::string text, file, png, html;
  int64_t layer = 0, head = 0;
  bool log = false, plain = false, no_terminal = false;

  void run() const {
    const attn::models::Loaded loaded = model.load();
    const std::string shown = file.empty() ? text : attn::io::read_file(file);
    const std::vector<int64_t> ids = loaded.tokenizer->encode(shown);
    const attn::models::Config& config = loaded.model->config();
    if (ids.empty()) throw UsageError("--text is empty");
    if (static_cast<int64_t>(ids.size()) > config.context)
      throw attn::Error("see", {"the text has " + std::to_string(ids.size()) + " tokens, the model's context is " +
                                std::to_string(config.context)});
    attn::models::Batch batch;
    batch.tokens = ids;
    batch.sequences = 1;
    batch.length = static_cast<int64_t>(ids.size());
    attn::autograd::Tape tape;
    std::vector<attn::nn::AttentionTrace> traces;
    loaded.model->forward(tape, batch, {.traces = &traces});

    std::vector<std::string> labels;
    for (int64_t id : ids) labels.push_back(loaded.tokenizer->label(id));
    std::vector<attn::view::Layer> layers;
    for (size_t n = 0; n < traces.size(); ++n) {
      const attn::nn::AttentionTrace& trace = traces[n];
      const attn::View<3> lse(trace.lse.data(), trace.lse.dtype(), {1, trace.q.heads, batch.length});
      layers.push_back({"layer " + std::to_string(n), trace.q.view(), trace.k.view(), lse, trace.options});
    }
    attn::view::HeatmapOptions options;
    options.scale = log ? attn::view::Scale::log : attn::view::Scale::linear;
    options.colour = !plain && isatty(STDOUT_FILENO);

    if (layer < 0 || layer >= static_cast<int64_t>(traces.size()) || head < 0 || head >= traces[layer].q.heads)
      throw UsageError(fmt::format("there is no head {} in layer {}: {} layers of {} heads", head, layer, traces.size(),
                                   traces[0].q.heads));
    const attn::autograd::Array weights = traces[layer].weights();
    const attn::View<4> one(static_cast<float*>(weights.data()) + head * batch.length * batch.length,
                            attn::DType::float32, {1, 1, batch.length, batch.length});
    if (!no_terminal) {
      fmt::print("layer {}, head {}: rows attend to columns\n", layer, head);
      fmt::print("{}", attn::view::terminal_heatmap(one, labels, labels, options));
    }
    if (!png.empty()) {
      attn::io::write_file(png, attn::view::png_overview(layers, options));
      fmt::print("{}: all layers and heads\n", png);
    }
    if (!html.empty()) {
      attn::io::write_file(html, attn::view::html_page(model.directory, labels, layers));
      fmt::print("{}: open it in a browser; it needs no network\n", html);
    }
  }
};

}  // namespace

void add_see(CLI::App& app) {
  CLI::App* command = app.add_subcommand("see", "pictures of attention: terminal, PNG, HTML");
  auto run = std::make_shared<See>();
  run->model.add(*command);
  command->add_option("--text", run->text, "the text to look at");
  command->add_option("--file", run->file, "a file with the text");
  command->add_option("--layer", run->layer, "shown on the terminal");
  command->add_option("--head", run->head, "shown on the terminal");
  command->add_option("--png", run->png, "write a picture of all heads");
  command->add_option("--html", run->html, "write a page to explore");
  command->add_flag("--log", run->log, "logarithmic colours");
  command->add_flag("--plain", run->plain, "no colours on the terminal");
  command->add_flag("--no-terminal", run->no_terminal, "files only");
  command->callback([=] { run->run(); });
}

}  // namespace cli
