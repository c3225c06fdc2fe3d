// attn chat: a conversation with a model that was trained to have one.
#include <unistd.h>

#include <memory>

#include "attn/generate_chat.h"
#include "attn/io.h"
#include "commands.h"
#include "generation_flags.h"
#include "job.h"
#include "lines.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

using attn::generate::Conversation;

constexpr const char* kCommands =
    "/retry   answers the last message once more\n"
    "/undo    takes the last message and its answer back\n"
    "/clear   begins a new conversation\n"
    "/save FILE   writes the conversation as a text\n"
    "/stats   shows or hides tokens a second\n"
    "/help    shows this\n"
    "/quit    ends, as Ctrl-D does\n";

struct Chat {
  ModelOptions model;
  GenerationOptions generation;
  std::string system, message;
  bool statistics = false;
  Parallel parallel;

  void run(const CLI::App& command) {
    Job job("chat", parallel);
    job.run([&] {
      attn::cluster::on_all_ranks(job.ranks(), "chat", [&] {
        if (job.is_shared()) {
          job.require_same("the message", system + message);
          job.share_threads(command);
        }
        converse(job);
      });
    });
  }

  void converse(const Job& job) {
    attn::models::Loaded loaded = model.load(true, job.tensor_ranks());
    if (!writes(loaded.model->config()))
      throw UsageError(model.directory + " does not generate text; " + what_fits(loaded.model->config()));
    const attn::generate::ChatTemplate format(loaded.chat_template);
    if (!job.is_shared()) catch_signals();  // the launcher ends all ranks at once
    const attn::generate::TextGenerator generator(std::move(loaded));
    Conversation conversation(generator, format, system);
    if (!message.empty()) return answer(conversation, message);
    const bool terminal = isatty(STDIN_FILENO);
    if (terminal) say("Type a message; /help lists commands, Ctrl-C ends an answer, Ctrl-D the conversation.\n");
    SharedLines lines(job.ranks());
    std::string line;
    while (!signal_seen()) {
      if (terminal) say("> ");
      if (!lines.next(line) || !take(job, conversation, line)) return;
    }
  }

  /// A line of the user; false if it ends the program.
  bool take(const Job& job, Conversation& conversation, const std::string& line) {
    if (line.empty()) return true;
    if (line == "/quit" || line == "/exit") return false;
    try {
      if (line[0] != '/') answer(conversation, line);
      else command(job, conversation, line);
    } catch (const attn::cluster::RanksError&) {
      throw;
    } catch (const attn::Error& error) {  // of one message: the conversation goes on
      say("attn: {}\n", error.what());
    }
    return signal_seen() == 0;
  }

  void command(const Job& job, Conversation& conversation, const std::string& line) {
    const std::string name = line.substr(0, line.find(' '));
    if (name == "/help") return say("{}", kCommands);
    if (name == "/clear") return conversation.clear();
    if (name == "/stats") {
      statistics = !statistics;
      return;
    }
    if (name == "/save") {
      if (line.size() <= 6) return say("attn: /save needs a file, as in /save talk.txt\n");
      if (job.is_first()) save(conversation, line.substr(6));
      return;
    }
    if (name == "/undo" || name == "/retry") {
      const std::string taken = conversation.take_back();
      if (taken.empty()) return say("attn: there is no message yet\n");
      if (name == "/retry") answer(conversation, taken);
      return;
    }
    say("attn: unknown command {}; /help lists the commands\n", name);
  }

  void answer(Conversation& conversation, const std::string& text) const {
    const Conversation::Answer answer = conversation.say(text, generation.of_answers(), [](std::string_view piece) {
      show(std::string(piece));
      return signal_seen() == 0;
    });
    show("\n");
    forget_interrupt();
    if (answer.forgotten)
      say("attn: the conversation no longer fits into the model's context: its first {} messages are forgotten\n",
          answer.forgotten);
    if (statistics) say_statistics(answer.prompt_tokens, answer.generated);
  }

  static void save(const Conversation& conversation, const std::string& path) {
    std::string text;
    for (const attn::generate::ChatMessage& each : conversation.messages())
      text += each.role + ": " + each.content + "\n\n";
    attn::io::write_output(path, text);
    say("{}: {} messages\n", path, conversation.messages().size());
  }
};

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("chat", "converse with a model that was trained to do so");
  command->footer(
      "The model's folder, or GGUF file, must have a chat_template of ChatML, LLaMA 3, Gemma or Zephyr.\n\n"
      "Example:\n  attn chat model.gguf --system \"Answer in one sentence.\"");
  auto run = std::make_shared<Chat>();
  run->model.add(*command);
  command->add_option("--system", run->system, "the system message; none: that of the chat_template, if it has one");
  command->add_option("--message", run->message, "answer this message and end");
  command->add_flag("--stats", run->statistics, "print tokens a second after each answer");
  run->generation.add(*command);
  run->parallel.add_tensor(*command);
  run->parallel.add_wait_limit(*command);
  command->callback([=] { run->run(*command); });
}

}  // namespace cli
