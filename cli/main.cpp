// attn: train, generate, classify, look. Here is what all subcommands have in common: how a command line is read, and
// with which words and status the program ends.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>

#include "attn/c.h"
#include "commands.h"
#include "config_flags.h"
#include "job.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

/// Where nobody reads any more there is nothing to say.
int fail(int status, const std::string& message) {
  if (status == 2 && launched().rank > 0) wait_for_first_rank();  // a command line that is wrong is so on all ranks
  else if (signal_seen() != SIGPIPE) say("attn: {}\n", message);
  return status;
}

/// One line: what is wrong, and where help is.
std::string explanation(const CLI::App& app, const CLI::ParseError& error) {
  std::string reason = error.what();
  if (const size_t at = reason.find(": 1 required "); at != std::string::npos)
    reason = reason.substr(0, at) + ": the value is missing";
  const auto used = app.get_subcommands();
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    const std::vector<std::string> rest = app.remaining(true);
    reason = (rest.size() == 1 ? "unexpected argument: " : "unexpected arguments: ") + joined(rest, ", ");
    for (const char* text : {"--prompt", "--text"})
      if (!used.empty() && used[0]->get_option_no_throw(text))
        reason += fmt::format("; a text is given as {} TEXT", text);
  }
  if (!used.empty()) return fmt::format("{} (attn {} --help lists the options)", reason, used[0]->get_name());
  std::vector<std::string> names;
  for (const CLI::App* each : subcommands_of(app)) names.push_back(each->get_name());
  return fmt::format("{} (subcommands: {}; attn --help)", reason, joined(names, ", "));
}

int run(int argc, char** argv) {
  CLI::App app(
      "Self-attention on the CPU: train models on your text, generate, classify, and see what heads attend to.",
      "attn");
  auto help = std::make_shared<Help>();
  app.formatter(help);
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", std::string("attn ") + attn_version());
  int threads = 0;
  app.add_option("--threads", threads, "of the computation; 0 = one a core")->check(whole(0, 1024));
  std::string precision = float32_precision();
  add_float32_precision(app, precision);
  app.parse_complete_callback([&] {
    attn::set_thread_count(threads);
    set_float32_precision(precision);
  });
  add_train(app);
  add_generate(app);
  add_chat(app);
  add_classify(app);
  add_eval(app);
  add_embed(app);
  add_fill(app);
  add_convert(app);
  add_export(app);
  add_quantize(app);
  add_lora(app);
  add_prune(app);
  add_see(app);
  add_heads(app);
  add_serve(app);
  add_bench(app);
  add_profile(app);
  add_sweep(app);
  add_tokenizer(app);
  add_info(app);
  add_completion(app);
  add_man(app);
  add_help(app);
  try {
    std::vector<std::string> arguments = arguments_of(app, argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // as parse() wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : fail(2, explanation(app, error));
  } catch (const UsageError& error) {
    return fail(2, error.what());
  } catch (const AlreadySaid& error) {
    return error.status;
  } catch (const std::bad_alloc&) {
    return fail(1, "there is not enough memory");
  } catch (const std::system_error& error) {
    return fail(1, std::ferror(stdout) ? "standard output: " + error.code().message() : error.what());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
  return 0;
}

/// Otherwise the next file that is opened would take a closed stream's place, and be written to as that. The modes are
/// the wrong ones, so that using the stream fails.
void fill_closed_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
      std::_Exit(1);
}

}  // namespace
}  // namespace cli

int main(int argc, char** argv) {
  cli::fill_closed_streams();
  std::signal(SIGPIPE, SIG_DFL);  // a closed pipe ends the program quietly, even where the caller ignores the signal
  const int status = cli::run(argc, argv);
  if (cli::signal_seen()) return 128 + cli::signal_seen();
  errno = 0;
  if (status == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout)))
    return cli::fail(1, fmt::format("standard output: {}", errno ? std::strerror(errno) : "cannot be written"));
  return status;
}
