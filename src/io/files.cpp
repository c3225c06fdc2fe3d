// Whole files, read and replaced, and streams. A Reader trusts no size that it has not seen twice; write_file() makes
// the new file complete and synced under a temporary name before a rename, which is atomic, puts it in place.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "attn/io.h"
#include "io/reader.h"
#include "io/sink.h"

namespace attn::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view operation, const std::string& path, const std::string& reason) {
  throw Error(operation, {path + ": " + reason});
}

[[noreturn]] void fail_in(std::string_view operation, const std::string& path, const std::string& step, int number) {
  fail(operation, path, "cannot " + step + ": " + std::generic_category().message(number));
}

/// Calls again what a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  /// Never a second time: on Linux the descriptor is gone whatever close() returns, even EINTR.
  bool close() {
    const int number = number_;
    number_ = -1;
    return ::close(number) == 0 || errno == EINTR;
  }

 private:
  int number_;
};

/// Calls read(done) until `count` bytes are there; fewer only where the file ends. `at` is where it is.
template <class Read>
int64_t read_all(std::string_view operation, const std::string& path, int64_t at, int64_t count, const Read& read) {
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = uninterrupted([&] { return read(done); });
    if (got < 0) fail_in(operation, path, "read at byte " + std::to_string(at + done), errno);
    if (got == 0) break;
    done += got;
  }
  return done;
}

/// `first` is where they are in the file.
void write_all(std::string_view operation, const std::string& path, int file, std::string_view bytes,
               int64_t first = 0) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = uninterrupted([&] { return ::write(file, bytes.data() + done, bytes.size() - done); });
    const auto at = [&] { return "write at byte " + std::to_string(first + static_cast<int64_t>(done)); };
    if (put <= 0) fail_in(operation, path, at(), put < 0 ? errno : EIO);
    done += static_cast<size_t>(put);
  }
}

/// A new file in a directory, removed unless keep() is called.
class Temporary {
 public:
  Temporary(const std::string& path, int directory) : directory_(directory) {
    constexpr int kAttempts = 100;  // names are 64 random bits: a second one is hardly ever needed
    std::random_device random;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      char name[32];
      std::snprintf(name, sizeof name, ".attn-%08x%08x.tmp", random(), random());
      name_ = name;
      // Not mkstemp(), whose files only their owner may read: the mode is the caller's umask's affair.
      const auto open = [&] { return ::openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); };
      file_ = uninterrupted(open);
      if (file_ >= 0) return;
      if (errno != EEXIST) break;
    }
    fail_in("write_file", path, "create a temporary file next to it", errno);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!name_.empty()) ::unlinkat(directory_, name_.c_str(), 0);
  }
  int file() const { return file_; }
  const char* name() const { return name_.c_str(); }
  void keep() { name_.clear(); }

 private:
  int directory_, file_ = -1;
  std::string name_;
};

/// The file that a path leads to: a symbolic link stays, and what it points to is replaced.
fs::path target_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  if (error) fail("write_file", path, "cannot follow the symbolic link: " + error.message());
  return target;
}

/// What is at the path, if anything does. Only a regular file may be replaced: not a directory, a pipe or a device.
std::optional<struct stat> existing_file(const std::string& path, const fs::path& target) {
  struct stat status = {};
  if (::stat(target.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    fail_in("write_file", path, "look it up", errno);
  }
  if (!S_ISREG(status.st_mode)) fail("write_file", path, "exists and is not a regular file");
  return status;
}

}  // namespace

/// The system would take a path with a zero byte for another, shorter one.
void require_path(std::string_view operation, const std::string& path) {
  if (path.empty()) throw Error(operation, {"the path is empty"});
  if (path.find('\0') != std::string::npos)
    fail(operation, path.substr(0, path.find('\0')), "the path goes on after a zero byte");
}

std::string why_not_opened(const std::string& path, int error) {
  std::error_code unknown;
  if (error == ENOENT && fs::is_symlink(path, unknown)) return "is a symbolic link to nothing";
  if (error == ENOENT) return "there is no such file or folder";
  if (error == ENOTDIR) return "a part of this path is a file, not a folder";
  if (error == EACCES) return "its permissions, or those of a folder above it, do not allow this";
  return "cannot open: " + std::generic_category().message(error);
}

// ------------------------------------------------------------------------------------------------------------ reading

Reader::Reader(const std::string& path) : path_(path) {
  require_path("read_file", path);
  // O_NONBLOCK: to open a pipe that nobody writes to would wait for ever.
  const auto open = [&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); };
  Descriptor file(uninterrupted(open));
  if (file.get() < 0) fail("read_file", path, why_not_opened(path, errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail_in("read_file", path, "get its size", errno);
  if (S_ISDIR(status.st_mode)) fail("read_file", path, "is a folder, must be a file");
  if (!S_ISREG(status.st_mode)) fail("read_file", path, "is not a regular file");
  size_ = status.st_size;
  file_ = file.release();
}

Reader::Reader(Reader&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

Reader& Reader::operator=(Reader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(size_, other.size_);
  return *this;
}

Reader::~Reader() {
  if (file_ >= 0) ::close(file_);
}

/// Bytes read, fewer than `count` only where the file ends.
int64_t Reader::read_some(int64_t at, char* to, int64_t count) const {
  return read_all("read_file", path_, at, count, [&](int64_t done) {
    return ::pread(file_, to + done, static_cast<size_t>(count - done), at + done);
  });
}

void Reader::read(int64_t at, char* to, int64_t count) const {
  if (const int64_t got = read_some(at, to, count); got < count)
    fail("read_file", path_,
         "shrank from " + std::to_string(size_) + " to " + std::to_string(at + got) + " bytes while it was read");
}

std::string Reader::start() const {
  constexpr int64_t kStart = 512;
  std::string bytes(static_cast<size_t>(std::min(size_, kStart)), '\0');
  read(0, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

std::shared_ptr<char> Reader::map() const {
  const auto size = static_cast<size_t>(size_);
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file_, 0);
  if (memory == MAP_FAILED) fail_in("read_file", path_, "map it into memory", errno);
  return {static_cast<char*>(memory), [size](char* bytes) { ::munmap(bytes, size); }};
}

void Reader::require_end() const {
  char beyond = 0;
  if (read_some(size_, &beyond, 1) > 0)
    fail("read_file", path_, "grew beyond its " + std::to_string(size_) + " bytes while it was read");
}

bool exists(const std::string& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

std::string read_file(const std::string& path, int64_t limit) {
  const Reader file(path);
  if (file.size() > limit)
    fail("read_file", path,
         "has " + std::to_string(file.size()) + " bytes, at most " + std::to_string(limit) + " are read");
  std::string bytes;
  try {
    bytes.resize(static_cast<size_t>(file.size()));
  } catch (const std::bad_alloc&) {
    fail("read_file", path, "there is no memory for its " + std::to_string(file.size()) + " bytes");
  } catch (const std::length_error&) {
    fail("read_file", path, "there is no memory for its " + std::to_string(file.size()) + " bytes");
  }
  file.read(0, bytes.data(), file.size());
  file.require_end();
  return bytes;
}

std::string read_input(const std::string& path, int64_t limit) {
  require_path("read_input", path);
  struct stat status = {};
  const bool standard = path == "-";
  if (!standard && ::stat(path.c_str(), &status) != 0) fail("read_input", path, why_not_opened(path, errno));
  if (!standard && S_ISREG(status.st_mode)) return read_file(path, limit);
  const std::string name = standard ? "standard input" : path;
  const auto open = [&] {
    return standard ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC);
  };
  const Descriptor file(uninterrupted(open));
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) fail("read_input", name, why_not_opened(path, errno));
  if (S_ISDIR(status.st_mode)) fail("read_input", name, "is a folder, must be a file");

  constexpr int64_t kPiece = 1 << 16;
  std::string bytes;
  int64_t done = 0;
  for (int64_t got = kPiece; got == kPiece;) {
    try {
      bytes.resize(static_cast<size_t>(done + kPiece));
    } catch (const std::bad_alloc&) {
      fail("read_input", name, "there is no memory for more than " + std::to_string(done) + " bytes");
    }
    got = read_all("read_input", name, done, kPiece, [&](int64_t before) {
      return ::read(file.get(), bytes.data() + done + before, static_cast<size_t>(kPiece - before));
    });
    done += got;
    if (done > limit) fail("read_input", name, "has more than the " + std::to_string(limit) + " bytes that are read");
  }
  bytes.resize(static_cast<size_t>(done));
  return bytes;
}

// ------------------------------------------------------------------------------------------------------------ writing

void write_output(const std::string& path, std::string_view bytes) {
  require_path("write_output", path);
  if (path == "-") return write_all("write_output", "standard output", STDOUT_FILENO, bytes);
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) return write_file(path, bytes);
  Descriptor file(uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC); }));
  if (file.get() < 0) fail("write_output", path, why_not_opened(path, errno));
  write_all("write_output", path, file.get(), bytes);
  if (!file.close()) fail_in("write_output", path, "close", errno);
}

void write_file(const std::string& path, std::string_view bytes) {
  write_file(path, [&](const Sink& sink) { sink(bytes); });
}

void write_file(const std::string& path, const std::function<void(const Sink&)>& produce) {
  require_path("write_file", path);
  const fs::path target = target_of(path);
  if (target.filename().empty()) fail("write_file", path, "is the name of a directory, must be that of a file");
  const std::optional<struct stat> existing = existing_file(path, target);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const auto open = [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); };
  const Descriptor directory(uninterrupted(open));
  if (directory.get() < 0) fail("write_file", path, "its folder: " + why_not_opened(folder.string(), errno));

  Temporary temporary(path, directory.get());
  Descriptor file(temporary.file());
  if (existing && ::fchmod(file.get(), existing->st_mode & 0777) != 0)
    fail_in("write_file", path, "give it the mode of the old file", errno);
  int64_t written = 0;
  produce([&](std::string_view bytes) {
    write_all("write_file", path, file.get(), bytes, written);
    written += static_cast<int64_t>(bytes.size());
  });
  if (uninterrupted([&] { return ::fsync(file.get()); }) != 0) fail_in("write_file", path, "sync", errno);
  if (!file.close()) fail_in("write_file", path, "close", errno);
  if (::renameat(directory.get(), temporary.name(), directory.get(), target.filename().c_str()) != 0)
    fail_in("write_file", path, "rename the temporary file", errno);
  temporary.keep();
  // Some file systems cannot sync a directory and say so with EINVAL: nothing more can be done there.
  if (uninterrupted([&] { return ::fsync(directory.get()); }) != 0 && errno != EINVAL)
    fail_in("write_file", path, "sync the directory of the replaced file, so a crash may bring the old file back",
            errno);
}

void append_line(const std::string& path, std::string_view line) {
  require_path("append_line", path);
  if (line.find('\n') != std::string_view::npos) fail("append_line", path, "the line has a line break inside");
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode))
    fail("append_line", path, "is neither a regular file nor a terminal");
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | O_CLOEXEC;
  Descriptor file(uninterrupted([&] { return ::open(path.c_str(), flags, 0666); }));
  if (file.get() < 0) fail("append_line", path, why_not_opened(path, errno));
  // One write, so that the lines of several processes do not mix.
  write_all("append_line", path, file.get(), std::string(line) + "\n");
  if (!file.close()) fail_in("append_line", path, "close", errno);
}

void make_directory(const std::string& path) {
  require_path("make_directory", path);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("make_directory", path, "cannot create the directory: " + error.message());
  if (!fs::is_directory(path, error)) fail("make_directory", path, "exists and is not a directory");
}

FolderLock::FolderLock(const std::string& path) : folder_(-1) {
  require_path("lock", path);
  Descriptor folder(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (folder.get() < 0) fail("lock", path, why_not_opened(path, errno));
  if (uninterrupted([&] { return ::flock(folder.get(), LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK)
    fail("lock", path, "another program is writing into this folder");
  folder_ = folder.release();
}

FolderLock::~FolderLock() { ::close(folder_); }

uint32_t crc32(std::string_view bytes, uint32_t seed) {
  if (bytes.empty()) return seed;  // for zlib no pointer means: start anew
  return static_cast<uint32_t>(::crc32_z(seed, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

uint32_t crc32_combined(uint32_t first, uint32_t second, int64_t length) {
  return static_cast<uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(length)));
}

}  // namespace attn::io
