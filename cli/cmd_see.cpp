// attn see: what the heads of a model attend to on a text.
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <memory>

#include "attn/generate.h"
#include "attn/view.h"
#include "attn/view_page.h"
#include "commands.h"
#include "heads_texts.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "see_serve.h"
#include "see_statistics.h"
#include "see_weights.h"

namespace cli {
namespace {

/// The layers of a model on one text, and what they borrow.
struct Seen {
  std::vector<std::string> rows = {}, columns = {};  ///< labels of the tokens that look, and of those that are seen
  std::vector<attn::heads::TokenKind> kinds = {};    ///< of a model's text that attends to itself
  std::vector<attn::nn::AttentionTrace> traces = {};
  std::vector<attn::RecordedAttention> layers = {};
  int64_t second = -1;                      ///< of a pair of texts, the second one's first token
  bool own_text = true;                     ///< the tokens that look are those that are seen
  std::shared_ptr<const void> memory = {};  ///< what the layers borrow from
};

Seen saved(attn::view::SavedAttention attention) {
  Seen seen;
  seen.rows = attention.query_labels();
  seen.columns = attention.key_labels();
  seen.own_text = attention.is_own_text();
  if (seen.own_text) seen.second = attention.second;
  seen.layers = std::move(attention.layers);
  seen.memory = std::move(attention.memory);
  return seen;
}

/// What is named must be below `count`, once.
void check_numbers(const char* kind, const std::vector<int64_t>& named, int64_t count) {
  for (size_t n = 0; n < named.size(); ++n) {
    if (named[n] < 0 || named[n] >= count)
      throw UsageError(fmt::format("the {} is {}, must be from 0 to {}", kind, named[n], count - 1));
    if (std::find(named.begin(), named.begin() + static_cast<std::ptrdiff_t>(n), named[n]) !=
        named.begin() + static_cast<std::ptrdiff_t>(n))
      throw UsageError(fmt::format("{} {} is given twice", kind, named[n]));
  }
}

void write_out(const std::string& name, const std::string& bytes, const char* what) {
  attn::io::write_output(name, bytes);
  if (name != "-") cli::show(fmt::format("{}: {}\n", printable(name), what));
}

/// Queries and keys of .npy files, and how they attend.
struct Arrays {
  std::string q, k, lse;
  double scale = 0;
  bool causal = false;

  void add(CLI::App& command) {
    command.add_option("--q", q, "queries, a .npy file [H, Lq, D], in a folder's place; with --k")->type_name("FILE");
    command.add_option("--k", k, "keys [Hk, Lk, D]")->type_name("FILE");
    command.add_option("--lse", lse, "the natural-log sum of exponentials of each row [H, Lq]; none: computed")
        ->type_name("FILE");
    command.add_flag("--causal", causal, "of --q and --k: each query sees the keys up to its own");
    command.add_option("--scale", scale, "of --q and --k; 0: 1/sqrt(D)")->check(number(0, 1e6, "[)"));
  }
  bool given() const { return !q.empty(); }
  /// All of what there must be, or nothing.
  bool whole() const { return q.empty() == k.empty() && (given() || (lse.empty() && !causal && scale == 0)); }

  /// With `causal` the queries are the last of the keys' tokens.
  Seen look() const {
    attn::AttentionOptions options;
    if (scale != 0) options.scale = scale;
    options.causal = causal;
    options.alignment = attn::Alignment::bottom_right;
    return saved(attn::view::read_arrays(q, k, lse, options));
  }
};

[[noreturn]] void refuse_window(const std::string& window) {
  throw UsageError("--window is '" + window + "', must be ROWS:COLUMNS, as 100-199:0-99, 5: or :7");
}

/// "5-9", "5", or nothing for all: the first of a window's tokens and how many, -1 = to the end.
std::pair<int64_t, int64_t> read_span(const std::string& window, std::string_view text) {
  if (text.empty()) return {0, -1};
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) refuse_window(window);
    return value;
  };
  const size_t dash = text.find('-');
  const int64_t first = number(text.substr(0, dash));
  const int64_t last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (last < first) throw UsageError("--window is '" + window + "', must not end before it begins");
  return {first, last - first + 1};
}

attn::view::PageWindow read_window(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) refuse_window(text);
  const auto [query, queries] = read_span(text, std::string_view(text).substr(0, colon));
  const auto [key, keys] = read_span(text, std::string_view(text).substr(colon + 1));
  return {query, queries, key, keys};
}

struct See {
  ModelOptions model;
  Arrays arrays;
  std::string text, pair, file, png, html, csv, json, weights, save, part, answer;
  attn::Selection selection;
  std::vector<std::string> windows;
  ContextOption context;
  int port = 0;
  bool light = false;
  bool log = false, plain = false, no_terminal = false, stats = false, served = false;

  /// The tokens of the text and, of a model with an encoder, of the answer after what it begins with.
  attn::models::Batch batch_of(const attn::models::Loaded& loaded) const {
    const auto& tokenizer = loaded.source_tokenizer ? loaded.source_tokenizer : loaded.tokenizer;
    const attn::models::Config& config = loaded.model->config();
    const std::string given = file.empty() ? text : attn::io::read_input(file);
    std::vector<int64_t> ids = tokenizer->encode(given).ids;
    if (ids.empty()) throw UsageError((file.empty() ? "--text" : file) + " is empty");
    if (const int64_t most = context.of(config), count = std::ssize(ids); count > most) {
      if (!context.tokens) throw attn::Error("see", {context.too_long(count, config)});
      ids = tokenizer->encode(given, {.max_length = most}).ids;
      say("attn: the text was cut from {} to {} tokens\n", count, most);
    }
    attn::models::Batch batch;
    batch.sequences = 1;
    batch.tokens = std::move(ids);
    if (config.encoder_layers) {
      batch.source = std::exchange(batch.tokens, loaded.decoder_start_token_ids);
      batch.source_length = static_cast<int64_t>(batch.source.size());
      std::vector<int64_t> said;
      if (answer.empty()) {
        attn::generate::GenerateOptions options = attn::generate::options_of(loaded);
        options.sampling.temperature = 0;
        options.max_length = 0;
        options.max_new_tokens = config.context - static_cast<int64_t>(loaded.decoder_start_token_ids.size());
        said = attn::generate::generate(*loaded.model, batch.source, options).tokens;
      } else {
        said = loaded.tokenizer->encode_ids(answer);
      }
      batch.tokens.insert(batch.tokens.end(), said.begin(), said.end());
    }
    batch.length = static_cast<int64_t>(batch.tokens.size());
    return batch;
  }

  /// The text and the second one after it, as the tokenizer joins a pair; `second`: where that begins.
  attn::models::Batch pair_of(const attn::models::Loaded& loaded, int64_t& second) const {
    const attn::models::Config& config = loaded.model->config();
    if (config.encoder_layers) throw UsageError("--pair is for models without an encoder beside them; use --answer");
    const std::string first = file.empty() ? text : attn::io::read_input(file);
    attn::text::Encoding both = loaded.tokenizer->encode_pair(first, pair);
    attn::models::Batch batch;
    batch.sequences = 1;
    batch.length = std::ssize(both.ids);
    second = std::find(both.token_type_ids.begin(), both.token_type_ids.end(), 1) - both.token_type_ids.begin();
    if (second == batch.length) second = std::ssize(loaded.tokenizer->encode(first).ids);
    if (second == 0 || second >= batch.length) throw UsageError("both texts of a pair must have tokens");
    if (const int64_t most = context.of(config); batch.length > most)
      throw attn::Error("see", {fmt::format("the pair has {} tokens, must have at most {}{}", batch.length, most,
                                            ContextOption::larger(config))});
    batch.tokens = std::move(both.ids);
    if (config.type_vocab_size) batch.token_type_ids = std::move(both.token_type_ids);
    return batch;
  }

  Seen look(const attn::models::Loaded& loaded) const {
    Seen seen;
    const attn::models::Batch batch = pair.empty() ? batch_of(loaded) : pair_of(loaded, seen.second);
    const bool answers = !batch.source.empty();
    if (!answers && (!part.empty() || !answer.empty()))
      throw UsageError("--part and --answer are for models with an encoder, but " + model.directory + " has none");
    attn::models::ForwardOptions options;
    const bool encoder = part == "encoder", cross = answers && (part.empty() || part == "cross");
    (encoder ? options.encoder_traces : cross ? options.cross_traces : options.traces) = &seen.traces;
    attn::autograd::Tape tape;
    loaded.model->forward(tape, batch, options);
    const auto& source_tokenizer = loaded.source_tokenizer ? loaded.source_tokenizer : loaded.tokenizer;
    seen.rows = encoder ? token_labels(*source_tokenizer, batch.source) : token_labels(*loaded.tokenizer, batch.tokens);
    seen.own_text = !cross;
    seen.columns = cross ? token_labels(*source_tokenizer, batch.source) : seen.rows;
    if (encoder || !answers)
      for (const int64_t kind : HeadsReader(loaded).with_kinds(encoder ? batch.source : batch.tokens).kinds)
        seen.kinds.push_back(static_cast<attn::heads::TokenKind>(kind));
    for (const attn::nn::AttentionTrace& trace : seen.traces)
      if (trace.lse)  // layers with other mixers have none
        seen.layers.push_back(trace.recorded("layer " + std::to_string(seen.layers.size())));
    return seen;
  }

  Seen look() const {
    const auto loaded = std::make_shared<const attn::models::Loaded>(model.load(false));
    Seen seen = look(*loaded);
    seen.memory = loaded;
    return seen;
  }

  const std::string& source() const { return arrays.given() ? arrays.q : model.directory; }

  attn::view::PageTexts page_texts(const Seen& seen) const {
    attn::view::PageTexts texts{.title = source(), .queries = seen.rows, .kinds = seen.kinds};
    if (!seen.own_text) texts.keys = seen.columns;
    texts.second = seen.second;
    return texts;
  }

  /// The heads that are named, each on its own; layer 0 and head 0 where none is.
  void show(const Seen& seen, const attn::view::HeatmapOptions& options) const {
    const std::vector<int64_t> first = {0};
    for (int64_t layer : selection.layers.empty() ? first : selection.layers)
      for (int64_t head : selection.heads.empty() ? first : selection.heads) {
        fmt::print("layer {}, head {}: rows attend to columns\n", layer, head);
        fmt::print("{}", attn::view::terminal_heatmap(seen.layers[layer], head, seen.rows, seen.columns, options));
      }
  }

  /// The selected heads in numbers, in place of pictures on the terminal.
  void count(const Seen& seen, bool files_only) const {
    const std::vector<HeadStatistics> heads =
        head_statistics(seen.layers, selection, seen.rows, seen.columns, seen.own_text);
    const Table table = statistics_table(heads, seen.own_text);
    if (!csv.empty()) write_out(csv, table.csv(), "statistics");
    if (!json.empty()) write_out(json, indented(table.json()), "statistics");
    if (!files_only) cli::show(table.text());
  }

  void run() const {
    if (model.directory.empty() != arrays.given() || !arrays.whole())
      throw UsageError("give a model's folder or a saved file, or --q and --k, with --lse, --causal and --scale");
    attn::view::PageOptions page{.selection = selection};
    for (const std::string& window : windows) page.windows.push_back(read_window(window));
    if (!windows.empty() && html.empty()) throw UsageError("--window is for the page that --html writes");
    if (light && png.empty()) throw UsageError("--light is for the picture that --png writes");
    const bool is_file = std::filesystem::is_regular_file(model.directory) && !model.directory.ends_with(".gguf");
    const bool is_saved = arrays.given() || is_file;
    if (is_saved && (context.tokens || !(text + pair + file + part + answer).empty()))
      throw UsageError("--text, --pair, --file, --context, --part and --answer are for models, but " + source() +
                       " is a file");
    if (!is_saved && text.empty() == file.empty())
      throw UsageError("give one text that is not empty: --text TEXT or --file FILE");
    int piped = 0;  // if a file is standard output nothing else belongs there
    for (const std::string& name : {png, html, csv, json, weights, save}) piped += name == "-";
    if (piped > 1)
      throw UsageError("only one of --png, --html, --csv, --json, --weights and --save can be standard output");
    const Seen seen = arrays.given() ? arrays.look()
                      : is_saved     ? saved(attn::view::read_attention(model.directory))
                                     : look();
    check_numbers("layer", selection.layers, static_cast<int64_t>(seen.layers.size()));
    for (const attn::RecordedAttention& layer : seen.layers) check_numbers("head", selection.heads, layer.q.size[1]);
    if (!save.empty())
      write_out(save,
                attn::view::saved_attention(seen.columns, seen.layers,
                                            seen.own_text ? std::vector<std::string>() : seen.rows, seen.second),
                "queries, keys and lse of all heads");
    attn::view::HeatmapOptions options;
    options.scale = log ? attn::view::Scale::log : attn::view::Scale::linear;
    options.colour = !plain && isatty(STDOUT_FILENO);
    if (!png.empty()) {
      options.light = light;
      options.rows = seen.rows;
      options.columns = seen.columns;
      const bool one = selection.layers.size() == 1 && selection.heads.size() == 1;
      write_out(png,
                one ? attn::view::png_heatmap(seen.layers[selection.layers[0]], selection.heads[0], options)
                    : attn::view::png_overview(seen.layers, options, selection),
                one                                                   ? "one head"
                : selection.layers.empty() && selection.heads.empty() ? "all layers and heads"
                                                                      : "heads");
    }
    if (!html.empty())
      write_out(html, attn::view::html_page(page_texts(seen), seen.layers, page),
                "open it in a browser; it needs no network");
    if (!weights.empty()) {
      head_statistics(seen.layers, selection, seen.rows, seen.columns, seen.own_text);  // an lse of others is an error
      write_out(weights, weights_csv(seen.layers, selection, seen.rows, seen.columns), "the matrix of each head");
    }
    if (served) return serve(attn::view::ServedPage(page_texts(seen), seen.layers, selection), port);
    if (stats || !csv.empty() || !json.empty()) count(seen, no_terminal || piped > 0);
    else if (!no_terminal && !piped) show(seen, options);
  }
};

/// The files and tables that it writes.
void add_outputs(CLI::App& command, See& run) {
  command.add_option("--png", run.png, "write a picture of the heads; - is standard output")->type_name("FILE");
  command.add_flag("--light", run.light, "with --png: a white background");
  command.add_option("--html", run.html, "write a page to explore; - is standard output")->type_name("FILE");
  command
      .add_option("--window", run.windows,
                  "a part of which a long text's page holds every weight, ROWS:COLUMNS: 100-199:0-99, 5: (a row),"
                  " :7 (a column); may be given again")
      ->type_name("WINDOW")
      ->allow_extra_args(false);
  command
      .add_option("--save", run.save,
                  "write queries, keys and lse, which attn see takes in a folder's place;"
                  " - is standard output")
      ->type_name("FILE");
  command.add_flag("--stats", run.stats, "a table of what each head does, in place of the picture");
  command.add_option("--csv", run.csv, "write that table; - is standard output")->type_name("FILE");
  command.add_option("--json", run.json, "write that table; - is standard output")->type_name("FILE");
  command
      .add_option("--weights", run.weights,
                  "write the matrix itself as CSV, a row a query, a column a key; - is standard output")
      ->type_name("FILE");
}

}  // namespace

void add_see(CLI::App& app) {
  CLI::App* command = app.add_subcommand("see", "attention on a text: terminal, PNG, HTML, statistics");
  auto run = std::make_shared<See>();
  run->model.add(*command);
  command->get_option("directory")
      ->description("a model's folder, or a file that --save wrote, or attention_cpp.watch()");
  command->get_option("directory")->required(false);
  run->arrays.add(*command);
  command->add_option("--text", run->text, "the text whose attention is shown");
  command->add_option("--file", run->file, "a file with the text; - is standard input")->type_name("FILE");
  command->add_option("--pair", run->pair, "a second text, which the tokenizer joins to the first: a pair of sentences")
      ->check([](const std::string& second) { return second.empty() ? "the text is empty" : ""; });
  run->context.add(*command);
  command->add_option("--answer", run->answer, "what a model with an encoder says to it; none: what it would say");
  command
      ->add_option("--part", run->part,
                   "for a model with an encoder: attention of the output to the input (cross), of the output to itself "
                   "(decoder), or of the input to itself (encoder); default: cross")
      ->check(one_of({"cross", "decoder", "encoder"}));
  command->add_option("--layer", run->selection.layers, "only these: 0,2 (terminal: 0 unless given; files: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole(0));
  command
      ->add_option("--head", run->selection.heads, "only these, of each layer (terminal: 0 unless given; files: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole(0));
  add_outputs(*command, *run);
  CLI::Option* served =
      command->add_option("--serve", run->port, "answer a page on 127.0.0.1 at this port; 0 or none: any that is free")
          ->type_name("PORT")
          ->expected(0, 1)
          ->check(whole(0, 65535));
  command->add_flag("--log", run->log, "logarithmic colours");
  command->add_flag("--plain", run->plain, "no colours on the terminal");
  command->add_flag("--no-terminal", run->no_terminal, "files only");
  command->callback([=] {
    run->served = served->count() > 0;
    run->run();
  });
}

}  // namespace cli
