#include "lines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
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

bool Lines::read_more(std::chrono::milliseconds most) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{200};  // a signal that arrives just before poll() does not end its wait
  const Clock::time_point begin = Clock::now();
  pollfd what{file_, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&what, 1, static_cast<int>(std::min(most, kPause).count()));
  while (ready == 0 && Clock::now() - begin < most && !signal_seen());
  if (ready == 0 || signal_seen()) return false;
  char piece[1 << 14];
  const ssize_t got = ready < 0 ? -1 : ::read(file_, piece, sizeof piece);
  if (got < 0 && errno != EINTR) throw attn::Error("read", {path_ + ": " + std::generic_category().message(errno)});
  if (got > 0) cutter_.feed({piece, static_cast<size_t>(got)});
  if (got == 0) cutter_.finish();
  return true;
}

bool Lines::ready(std::chrono::milliseconds most) {
  while (!cutter_.ready())
    if (!read_more(most)) return false;
  return true;
}

bool Lines::next(std::string& line) {
  constexpr std::chrono::hours kLong{1};
  while (!signal_seen() && !ready(kLong)) continue;
  if (signal_seen()) return false;
  const std::optional<std::string_view> found = cutter_.next();
  if (found) line = *found;
  return found.has_value();
}

bool SharedLines::next(std::string& line) {
  if (ranks_.size() == 1) return lines_.next(line);
  constexpr std::chrono::seconds kSilence{1};  // after which rank 0 says that there is no line yet
  constexpr char kNone = 'n', kLine = 'l', kEnd = 'e';
  std::string news;
  do {
    news.clear();
    if (ranks_.rank() == 0) {
      if (!lines_.ready(kSilence)) news = kNone;
      else news = lines_.next(line) ? kLine + line : std::string(1, kEnd);
    }
    news = attn::cluster::gather(ranks_, news).front();
  } while (news[0] == kNone);
  line = news.substr(1);
  return news[0] == kLine;
}

}  // namespace cli
