// attn generate: what a trained model makes of the beginning of a text.
#include <filesystem>
#include <memory>

#include "attn/record.h"
#include "attn/view.h"
#include "commands.h"
#include "generate_batch.h"
#include "generation_flags.h"
#include "job.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

using attn::AttentionKind;

struct Generate {
  ModelOptions model;
  GenerationOptions generation;
  std::string prompt, file, record, part = "decoder", batch, out;
  attn::generate::BatcherOptions limits;
  attn::Selection selection;
  bool interactive = false, statistics = false;
  Parallel parallel;

  void run(const CLI::App& command) {
    Job job("generate", parallel);
    job.run([&] {
      attn::cluster::on_all_ranks(job.ranks(), "generate", [&] {
        if (job.is_shared()) prepare(job, command);
        if (parallel.sequence > 1) generation.text.sequence_ranks = &job.grid().sequence();
        write(job);
      });
    });
  }

  void prepare(const Job& job, const CLI::App& command) const {
    if (!record.empty() || file == "-" || batch == "-")
      throw UsageError("ranks share texts: --record, and - as a file, are for one process");
    if (!batch.empty() && parallel.sequence > 1)
      throw UsageError("--sequence-parallel is for one text; --tensor-parallel computes those of --batch too");
    const std::string& path = batch.empty() ? file : batch;
    job.require_same("the text", path.empty() ? prompt : attn::io::read_input(path));
    job.share_threads(command);
  }

  void write(const Job& job) const {
    attn::models::Loaded loaded = model.load(true, job.tensor_ranks());
    const attn::models::Config config = loaded.model->config();
    if (!writes(config)) throw UsageError(model.directory + " does not generate text; " + what_fits(config));
    std::string text = file.empty() ? prompt : attn::io::read_input(file);
    // Known before a text is made that would then be lost.
    if (std::filesystem::is_directory(record)) throw UsageError("--record " + record + " is a folder, must be a file");
    if (!job.is_shared()) catch_signals();  // the launcher ends all ranks at once
    const attn::generate::TextGenerator generator(std::move(loaded));
    if (interactive) return generation.converse(generator, job.ranks());
    if (!batch.empty())
      return generate_batch(generator, batch, job.is_first() ? out : "", generation.of_batch(), limits);
    if (text.empty() && config.encoder_layers)
      throw UsageError(model.directory + " answers texts: give one with --prompt, --file or --interactive");
    if (text.empty()) text = generator.tokenizer().decode(std::vector<int64_t>{0});
    if (record.empty()) generation.stream(generator, text, statistics);
    else stream_recorded(generator, text);
  }

  /// Queries and keys are kept in unnamed files in the folder of --record.
  void stream_recorded(const attn::generate::TextGenerator& generator, const std::string& text) const {
    const std::filesystem::path folder = std::filesystem::path(record).parent_path();
    const AttentionKind kind = part == "cross"     ? AttentionKind::cross
                               : part == "encoder" ? AttentionKind::encoder
                                                   : AttentionKind::self;
    attn::TextRecorder recorder({.kind = kind, .selection = selection},
                                {.folder = folder.empty() ? "." : folder.string()});
    const attn::generate::GeneratedText written = generation.stream(generator, text, statistics, &recorder);
    const std::vector<attn::RecordedAttention> layers = recorder.layers();
    if (layers.empty()) return;  // stopped before the first token
    std::vector<int64_t> ids = generator.options().decoder_start_token_ids;
    if (ids.empty()) ids = written.prompt_ids;
    ids.insert(ids.end(), written.generated.tokens.begin(), written.generated.tokens.end());
    ids.erase(ids.begin(), ids.begin() + written.generated.forgotten);
    const std::vector<std::string> read = token_labels(generator.source_tokenizer(), written.prompt_ids);
    std::vector<std::string> said = token_labels(generator.tokenizer(), ids);
    said.resize(static_cast<size_t>(layers[0].q.size[2]));  // the last token was not given to the model
    if (kind == AttentionKind::cross) attn::view::save_attention(record, read, layers, said);
    else attn::view::save_attention(record, kind == AttentionKind::self ? said : read, layers);
    say("{}: queries, keys and lse of {} layers, {} tokens\n", record, layers.size(), layers[0].q.size[2]);
  }
};

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "continue a text, or answer one");
  command->footer(
      "What is not given is as generation_config.json in the model's folder says, else the default. Models with an\n"
      "encoder answer with the most probable tokens, unless the file or --temperature says otherwise.\n\n"
      "Example:\n  attn generate model --prompt \"ROMEO:\" --temperature 0.8");
  auto run = std::make_shared<Generate>();
  run->model.add(*command);
  CLI::Option* prompt =
      command->add_option("--prompt", run->prompt, "the text to continue or to answer; none: the start token");
  CLI::Option* file = command->add_option("--file", run->file, "a file with the beginning; - is standard input");
  file->type_name("FILE")->excludes(prompt);
  CLI::Option* interactive = command->add_flag("--interactive", run->interactive, "read beginnings line by line")
                                 ->excludes(prompt)
                                 ->excludes(file);
  CLI::Option* batch =
      command
          ->add_option(
              "--batch", run->batch,
              "a file with {\"prompt\": TEXT} on each line; all are computed at once and written as JSON lines")
          ->type_name("FILE.jsonl")
          ->excludes(prompt)
          ->excludes(file)
          ->excludes(interactive);
  command->add_option("--out", run->out, "with --batch: write to this file; none: to standard output")->needs(batch);
  command->add_option("--max-requests", run->limits.max_requests, "with --batch: texts that are computed at once")
      ->check(whole(1, 1024))
      ->needs(batch);
  command->add_flag("--stats", run->statistics, "print tokens a second");
  run->generation.add(*command);
  CLI::Option* record =
      command->add_option("--record", run->record, "write the attention of every token to a file for attn see");
  record->type_name("FILE.safetensors")->excludes(interactive)->excludes(batch)->group("Attention");
  command->add_option("--layer", run->selection.layers, "with --record: only these layers, as 0,2")
      ->delimiter(',')
      ->check(whole(0))
      ->needs(record)
      ->group("Attention");
  command->add_option("--head", run->selection.heads, "with --record: only these heads")
      ->delimiter(',')
      ->check(whole(0))
      ->needs(record)
      ->group("Attention");
  command
      ->add_option("--part", run->part,
                   "with an encoder: where the answer looks in itself, or in the text, or the text in itself")
      ->check(one_of({"decoder", "cross", "encoder"}))
      ->needs(record)
      ->group("Attention");
  run->parallel.add_sequence(*command);
  run->parallel.add_tensor(*command);
  run->parallel.add_wait_limit(*command);
  command->callback([=] { run->run(*command); });
}

}  // namespace cli
