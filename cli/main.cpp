// attn: train, generate, classify, look.
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <new>

#include "common.h"

namespace cli {
namespace {
int exit_status = 0;
}
void set_exit_status(int status) { exit_status = status; }
}  // namespace cli

int main(int argc, char** argv) {
  CLI::App app(
      "Self-attention on the CPU: train models on your text, generate, classify, and see what heads attend to.",
      "attn");
  app.require_subcommand(1);
  app.set_version_flag("--version", "attn 0.1.0");
  int threads = 0;
  app.add_option("--threads", threads, "threads; 0 = one a core")->check(CLI::Range(0, 1024));
  app.parse_complete_callback([&] { attn::set_thread_count(threads); });
  cli::add_train(app);
  cli::add_generate(app);
  cli::add_classify(app);
  cli::add_eval(app);
  cli::add_see(app);
  cli::add_bench(app);
  cli::add_info(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const cli::UsageError& error) {
    fmt::print(stderr, "attn: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "attn: there is not enough memory\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "attn: {}\n", error.what());
    return 1;
  }
  return cli::exit_status;
}
