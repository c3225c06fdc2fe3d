#include "signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace cli {
namespace {

std::atomic<int> seen{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (seen.exchange(number) != 0 && number != SIGPIPE) _exit(128 + number);  // what is said at the end may raise that
}

}  // namespace

void catch_signals() {
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1})
    if (std::signal(number, on_signal) == SIG_IGN) std::signal(number, SIG_IGN);
}

int signal_seen() { return seen.load(); }

void forget_interrupt() {
  int interrupt = SIGINT;
  seen.compare_exchange_strong(interrupt, 0);
}

}  // namespace cli
