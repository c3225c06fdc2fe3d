#include "lines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "signals.h"

namespace cli {

Lines::Lines(const std::string& path)
    : path_(path == "-" ? "standard input" : path),
      cutter_(path_),
      file_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC)) {
  if (file_ < 0) throw attn::Error("read", {path_ + ": " + std::generic_category().message(errno)});
}

Lines::~Lines() {
  if (file_ != STDIN_FILENO) ::close(file_);
}

bool Lines::read_more(bool wait) {
  constexpr int kPause = 200;  // ms: a signal that comes between a look for signals and poll() does not end the wait
  pollfd what{file_, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&what, 1, wait ? kPause : 0);
  while (ready == 0 && wait && !signal_seen());
  if (ready == 0 || signal_seen()) return false;
  char piece[1 << 14];
  const ssize_t got = ready < 0 ? -1 : ::read(file_, piece, sizeof piece);
  if (got < 0 && errno != EINTR) throw attn::Error("read", {path_ + ": " + std::generic_category().message(errno)});
  if (got > 0) cutter_.feed({piece, static_cast<size_t>(got)});
  if (got == 0) cutter_.finish();
  return true;
}

bool Lines::ready() {
  while (!cutter_.ready())
    if (!read_more(false)) return false;
  return true;
}

bool Lines::next(std::string& line) {
  while (!cutter_.ready())
    if (!read_more(true)) return false;
  if (signal_seen()) return false;
  const std::optional<std::string_view> found = cutter_.next();
  if (found) line = *found;
  return found.has_value();
}

}  // namespace cli
