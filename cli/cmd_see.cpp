// attn see: what the heads of a model attend to on a text.
#include <fmt/core.h>
#include <unistd.h>

#include <memory>

#include "attn/view.h"
#include "common.h"

namespace cli {
namespace {

/// The layers of a model on one text, and what they borrow.
struct Seen {
  std::vector<std::string> labels = {};
  std::vector<attn::nn::AttentionTrace> traces = {};
  std::vector<attn::view::Layer> layers = {};
};

/// What is named must be below `count`, once.
void check_numbers(const char* kind, const std::vector<int64_t>& named, int64_t count) {
  for (size_t n = 0; n < named.size(); ++n) {
    if (named[n] < 0 || named[n] >= count)
      throw UsageError(fmt::format("there is no {} {}, only 0 to {}", kind, named[n], count - 1));
    if (std::find(named.begin(), named.begin() + static_cast<std::ptrdiff_t>(n), named[n]) !=
        named.begin() + static_cast<std::ptrdiff_t>(n))
      throw UsageError(fmt::format("{} {} is given twice", kind, named[n]));
  }
}

void write_out(const std::string& name, const std::string& bytes, const char* what) {
  attn::io::write_output(name, bytes);
  if (name != "-") fmt::print("{}: {}\n", name, what);
}

struct See {
  ModelOptions model;
  std::string text, file, png, html;
  attn::view::Selection selection;
  bool log = false, plain = false, no_terminal = false;

  Seen look(const attn::models::Loaded& loaded) const {
    const std::vector<int64_t> ids =
        loaded.tokenizer->encode_marked(file.empty() ? text : attn::io::read_input(file)).ids;
    const int64_t context = loaded.model->config().context;
    attn::models::Batch batch;
    batch.tokens = ids;
    batch.sequences = 1;
    batch.length = static_cast<int64_t>(ids.size());
    if (ids.empty()) throw UsageError((file.empty() ? "--text" : file) + " is empty");
    if (batch.length > context)
      throw attn::Error("see", {fmt::format("the text has {} tokens, the model's context is {}", ids.size(), context)});
    Seen seen;
    attn::autograd::Tape tape;
    loaded.model->forward(tape, batch, {.traces = &seen.traces});
    for (int64_t id : ids) seen.labels.push_back(loaded.tokenizer->label(id));
    for (size_t n = 0; n < seen.traces.size(); ++n) {
      const attn::nn::AttentionTrace& trace = seen.traces[n];
      const attn::View<3> lse(trace.lse.data(), trace.lse.dtype(), {1, trace.q.heads, batch.length});
      seen.layers.push_back({"layer " + std::to_string(n), trace.q.view(), trace.k.view(), lse, trace.options});
    }
    return seen;
  }

  /// The heads that are named, each on its own; layer 0 and head 0 where none is.
  void show(const Seen& seen, const attn::view::HeatmapOptions& options) const {
    const std::vector<int64_t> first = {0};
    for (int64_t layer : selection.layers.empty() ? first : selection.layers)
      for (int64_t head : selection.heads.empty() ? first : selection.heads) {
        fmt::print("layer {}, head {}: rows attend to columns\n", layer, head);
        fmt::print("{}", attn::view::terminal_heatmap(seen.layers[layer], head, seen.labels, seen.labels, options));
      }
  }

  void run() const {
    if (text.empty() == file.empty()) throw UsageError("give one text that is not empty: --text TEXT or --file FILE");
    if (png == "-" && html == "-") throw UsageError("--png and --html cannot both be standard output");
    const bool piped = png == "-" || html == "-";  // then nothing else belongs there
    const attn::models::Loaded loaded = model.load();
    const Seen seen = look(loaded);
    check_numbers("layer", selection.layers, static_cast<int64_t>(seen.layers.size()));
    check_numbers("head", selection.heads, seen.traces[0].q.heads);
    attn::view::HeatmapOptions options;
    options.scale = log ? attn::view::Scale::log : attn::view::Scale::linear;
    options.colour = !plain && isatty(STDOUT_FILENO);
    if (!png.empty()) {
      const bool one = selection.layers.size() == 1 && selection.heads.size() == 1;
      write_out(png,
                one ? attn::view::png_heatmap(seen.layers[selection.layers[0]], selection.heads[0], options)
                    : attn::view::png_overview(seen.layers, options, selection),
                one                                                   ? "one head"
                : selection.layers.empty() && selection.heads.empty() ? "all layers and heads"
                                                                      : "heads");
    }
    if (!html.empty())
      write_out(html, attn::view::html_page(model.directory, seen.labels, seen.layers, selection),
                "open it in a browser; it needs no network");
    if (!no_terminal && !piped) show(seen, options);
  }
};

}  // namespace

void add_see(CLI::App& app) {
  CLI::App* command = app.add_subcommand("see", "pictures of attention: terminal, PNG, HTML");
  auto run = std::make_shared<See>();
  run->model.add(*command);
  command->add_option("--text", run->text, "the text to look at");
  command->add_option("--file", run->file, "a file with the text; - is standard input")->type_name("FILE");
  command->add_option("--layer", run->selection.layers, "only these: 0,2 (terminal: 0 unless given; files: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole(0));
  command
      ->add_option("--head", run->selection.heads, "only these, of each layer (terminal: 0 unless given; files: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole(0));
  command->add_option("--png", run->png, "write a picture of the heads; - is standard output")->type_name("FILE");
  command->add_option("--html", run->html, "write a page to explore; - is standard output")->type_name("FILE");
  command->add_flag("--log", run->log, "logarithmic colours");
  command->add_flag("--plain", run->plain, "no colours on the terminal");
  command->add_flag("--no-terminal", run->no_terminal, "files only");
  command->callback([=] { run->run(); });
}

}  // namespace cli
