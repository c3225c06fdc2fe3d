// hostile: calls that must be refused, each in a process of its own, so that a signal or a hang is the failure of one
// case and hides no other.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <typeinfo>
#include <vector>

#include "attn/core.h"

namespace attn::test {

struct Hostile {
  const char* name;
  void (*call)();
  std::vector<const char*> says;  // all of it must be in the message
};

/// What became of `call`: the message of its Error, or whatever else happened.
inline std::string outcome_of(void (*call)()) {
  constexpr unsigned kSeconds = 120;
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    std::string outcome = "nothing was thrown";
    try {
      call();
    } catch (const Error& error) {
      outcome = error.what();
    } catch (const std::exception& other) {
      outcome = std::string("threw ") + typeid(other).name() + ": " + other.what();
    }
    _exit(write(ends[1], outcome.data(), outcome.size()) == static_cast<ssize_t>(outcome.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string outcome;
  char bytes[4096];
  for (ssize_t count; (count = read(ends[0], bytes, sizeof bytes)) > 0;)
    outcome.append(bytes, static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? outcome : "ended with status " + std::to_string(WEXITSTATUS(status));
}

/// Every call throws Error "[operation] ...", which says what it should.
inline void expect_refused(std::initializer_list<Hostile> cases) {
  for (const Hostile& hostile : cases) {
    const std::string outcome = outcome_of(hostile.call);
    EXPECT_EQ(outcome.rfind('[', 0), 0) << hostile.name << ": " << outcome;
    for (const char* part : hostile.says)
      EXPECT_NE(outcome.find(part), std::string::npos)
          << hostile.name << ": \"" << outcome << "\" lacks \"" << part << '"';
  }
}

}  // namespace attn::test
