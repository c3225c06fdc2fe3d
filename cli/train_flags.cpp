#include "train_flags.h"

#include "attn/core_names.h"
#include "config_flags.h"
#include "options.h"

namespace cli {
namespace {

using attn::train::TrainerOptions;

void add_data_options(CLI::App& command, Settings& settings) {
  command
      .add_option("data", settings.data,
                  "a text; .tsv, .csv or .jsonl with labels, or of pairs; - is standard input; none: a primer")
      ->type_name("FILE");
  command.add_option("--validation", settings.validation, "a file to validate with; none: the last tenth of the data")
      ->type_name("FILE");
  command.add_option("--out", settings.out, "the folder for the model")->type_name("FOLDER");
  command.add_option("--tokens", settings.tokens, "kind of tokens; default: characters, for labelled sentences words")
      ->check(one_of({"characters", "bytes", "words"}));
  command.add_option("--tokenizer", settings.tokenizer, "a tokenizer.json, as attn tokenizer train writes it")
      ->type_name("FILE");
  command.add_option("--source-tokens", settings.source_tokens, "kind of tokens of the encoder; default: characters")
      ->check(one_of({"characters", "bytes", "words"}));
  command.add_option("--min-count", settings.min_count, "words that occur less often become <unk>")->check(whole(1));
  command
      .add_option("--word-dropout", settings.word_dropout, "share of words replaced by <unk> in training on sentences")
      ->check(number(0, 1, "[)"));
}

void add_task_options(CLI::App& command, Settings& settings) {
  command
      .add_option("--task", settings.task, "what is learned; default: what the model, or without one the file, is for")
      ->check(one_of(attn::names_of<Task>()));
  command
      .add_option(
          "--metric", settings.metric,
          "decides which checkpoint is the best; default: accuracy for classes, spearman for similarity, else loss")
      ->check(one_of(attn::names_of<attn::train::Metric>()));
  command.add_option("--class-weights", settings.class_weights,
                     "weights of the classes in the loss, with commas between them, or balanced: by how rare each is");
  command.add_flag("--packed", settings.packed, "batches of sentences without padding");
  command.add_option("--masked-share", settings.masked_share, "share of tokens that --task masked-lm predicts")
      ->check(number(0, 1, "()"));
}

void add_schedule_options(CLI::App& command, Settings& settings) {
  TrainerOptions& options = settings.options;
  command.add_option("--batch", settings.batch, "sequences per batch")->check(whole(1, 1 << 20));
  command
      .add_option("--accumulation", options.accumulation,
                  "batches per update (gradient accumulation); default with --data-parallel: one a rank")
      ->check(whole(1, 1 << 20));
  CLI::Option* steps = command.add_option("--steps", options.steps, "updates")->check(whole(1, int64_t{1} << 40));
  command.add_option("--epochs", settings.epochs, "number of passes over the data, instead of --steps")
      ->check(number(0, 1e6, "(]"))
      ->default_str("")
      ->excludes(steps);
  command.add_option("--learning-rate", options.learning_rate, "at its highest")->check(number(0, 1e6, "(]"));
  command
      .add_option("--min-learning-rate", options.min_learning_rate,
                  "last learning rate of the cosine schedule; default: a tenth of the highest")
      ->check(number(0, 1e6));
  command.add_option("--warmup", options.warmup, "steps of linear warmup, at most a tenth of all")->check(whole(0));
  command.add_option("--decay-steps", options.decay_steps, "step at which the cosine schedule ends; 0 = the last step")
      ->check(whole(0));
  command.add_option("--beta1", options.beta1, "of AdamW")->check(number(0, 1, "[)"));
  command.add_option("--beta2", options.beta2, "of AdamW")->check(number(0, 1, "[)"));
  command.add_option("--epsilon", options.epsilon, "of AdamW")->check(number(0, 1, "(]"));
  command.add_option("--weight-decay", options.weight_decay, "for weight matrices and embeddings")
      ->check(number(0, 1e6));
  command.add_option("--clip", options.clip, "gradients are clipped to this norm; 0 = no clipping")->check(number(0));
}

void add_scaling_options(CLI::App& command, Settings& settings) {
  attn::train::LossScaling& scaling = settings.options.scaling;
  command.add_option("--loss-scaling", settings.loss_scaling, "scale the loss; auto: only with float16")
      ->check(one_of({"auto", "on", "off"}));
  command.add_option("--loss-scale", scaling.initial, "initial loss scale")->check(number(0, 1e30, "(]"));
  command.add_option("--scale-growth", scaling.growth, "growth factor of the loss scale, after --scale-interval")
      ->check(number(1, 1e6, "(]"));
  command.add_option("--scale-backoff", scaling.backoff, "factor of the loss scale after an overflow")
      ->check(number(0, 1, "()"));
  command.add_option("--scale-interval", scaling.interval, "updates without an overflow before the loss scale grows")
      ->check(whole(1));
}

void add_run_options(CLI::App& command, Settings& settings) {
  TrainerOptions& options = settings.options;
  command.add_option("--eval-every", options.eval_every, "steps between validations; 0 = only at the end")
      ->check(whole(0));
  command.add_option("--patience", options.patience, "stop after so many validations without a better one; 0 = never")
      ->check(whole(0));
  command.add_option("--validation-batches", settings.validation_batches, "batches per validation on a text")
      ->check(whole(1));
  command.add_option("--save-every", options.save_every, "steps between checkpoints; 0 = with each validation")
      ->check(whole(0));
  command.add_option("--keep-every", options.keep_every, "keep the checkpoint of every such step; 0 = none")
      ->check(whole(0));
  command.add_option("--seed", options.seed, "random seed of weights, data and dropout")->check(whole(0));
  add_precision(command, settings.precision, "type of the computation; parameters and moments stay float32");
  add_scaling_options(command, settings);
  settings.parallel.add_data(command);
  settings.parallel.add_sequence(command);
  settings.parallel.add_schedule(command);
  settings.parallel.add_tensor(command);
  settings.parallel.add_wait_limit(command);
  command.add_flag("--recompute", options.recompute,
                   "recompute layers in the backward: less memory, a third more work");
  command.add_flag("--skip-nonfinite", options.skip_nonfinite, "skip updates whose gradients are not finite");
  command.add_option("--sample-every", settings.sample_every, "steps between samples; 0 = none")->check(whole(0));
  command.add_option("--sample-prompt", settings.sample_prompt, "prompt of the samples");
  CLI::Option* resume = command.add_flag("--resume", settings.resume, "continue the training in --out");
  command.add_flag("--overwrite", settings.overwrite, "replace the model in --out")->excludes(resume);
  command.add_flag("--interactive", settings.interactive, "after the training, continue prompts from the terminal");
  command.add_flag("--quiet", settings.quiet, "do not show progress");
  command.add_flag("--force", settings.force, "train even if memory may not suffice");
}

}  // namespace

void add_train_options(CLI::App& command, Settings& settings) {
  add_data_options(command, settings);
  add_task_options(command, settings);
  add_schedule_options(command, settings);
  add_run_options(command, settings);
}

}  // namespace cli
