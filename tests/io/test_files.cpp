// io: files read and replaced whole.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "attn/io.h"
#include "support/arrays.h"
#include "support/folder.h"
#include "support/fuzz.h"

namespace attn::test {
namespace {

namespace fs = std::filesystem;

int mode_of(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

/// Lowers a limit of the process while it lives.
class Limit {
 public:
  Limit(__rlimit_resource which, rlim_t value) : which_(which) {
    ::getrlimit(which_, &before_);
    const rlimit lower = {value, before_.rlim_max};
    EXPECT_EQ(::setrlimit(which_, &lower), 0);
  }
  ~Limit() { ::setrlimit(which_, &before_); }

 private:
  __rlimit_resource which_;
  rlimit before_ = {};
};

/// Root may do everything, so where permissions matter it is nobody for a while.
class Nobody {
 public:
  Nobody() : was_(::geteuid()) { EXPECT_EQ(was_ == 0 ? ::seteuid(65534) : 0, 0); }
  ~Nobody() { EXPECT_EQ(::seteuid(was_), 0); }

 private:
  uid_t was_;
};

std::string all_bytes(size_t count) {
  std::string bytes(count, 0);
  for (size_t n = 0; n < count; ++n) bytes[n] = static_cast<char>(n * 7 + n / 251);
  return bytes;
}

// --------------------------------------------------------------------------------------------------------------- files

TEST(Files, ReadWhatWasWritten) {
  const Folder folder;
  for (size_t size : {0, 1, 4095, 4096, 1 << 20}) {
    io::write_file(folder / "a", all_bytes(size));
    EXPECT_EQ(io::read_file(folder / "a"), all_bytes(size)) << size;
    EXPECT_EQ(folder.files(), 1);
  }
  EXPECT_EQ(io::read_file(folder / "a", 1 << 20).size(), 1u << 20);
  EXPECT_TRUE(has(error_of([&] { io::read_file(folder / "a", (1 << 20) - 1); }),
                  "[read_file] " + folder / "a" + ": has 1048576 bytes, at most 1048575 are read"));
}

TEST(Files, ReadRefuses) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto refusal = [](const std::string& path) { return error_of([&] { io::read_file(path); }); };
  EXPECT_TRUE(has(refusal(folder / "none"), folder / "none" + ": there is no such file or folder"));
  EXPECT_TRUE(has(refusal(folder.path()), "is a folder, must be a file"));
  EXPECT_TRUE(has(refusal(folder / "pipe"), "is not a regular file"));
  EXPECT_TRUE(has(refusal("/dev/zero"), "is not a regular file"));
  EXPECT_TRUE(has(refusal(""), "the path is empty"));
  io::write_file(folder / "a", "x");
  EXPECT_TRUE(has(refusal(folder / "a" + std::string(1, '\0') + "b"), "a zero byte"));
  EXPECT_TRUE(has(refusal(folder / "a/b"), "a/b: a part of this path is a file, not a folder"));
  fs::create_symlink("nowhere", folder / "dangling");
  EXPECT_TRUE(has(refusal(folder / "dangling"), "dangling: is a symbolic link to nothing"));
  fs::permissions(folder / "a", fs::perms::none);
  const Nobody nobody;
  EXPECT_TRUE(has(refusal(folder / "a"), "a: its permissions, or those of a folder above it, do not allow this"));
}

/// A child that writes into a pipe, or reads from it, while the parent does the other.
template <class Work>
pid_t beside(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  return child;
}

TEST(Files, InputsAndOutputsMayBePipes) {
  const Folder folder;
  const std::string pipe = folder / "pipe", content = all_bytes(200001);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (int64_t limit : {200001, 200000}) {
    const pid_t child = beside([&] { std::ofstream(pipe) << content; });
    if (limit == 200001) EXPECT_EQ(io::read_input(pipe, limit), content);
    else EXPECT_TRUE(has(error_of([&] { io::read_input(pipe, limit); }), "pipe: has more than the 200000 bytes"));
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
  const pid_t child = beside([&] { io::write_output(pipe, content); });
  EXPECT_EQ(io::read_input(pipe), content);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(io::read_input("/dev/null"), "");
  EXPECT_TRUE(
      has(error_of([] { io::write_output("/dev/full", "x"); }), "/dev/full: cannot write at byte 0: No space left"));
  EXPECT_TRUE(has(error_of([&] { io::read_input(folder.path()); }), "is a folder, must be a file"));
  EXPECT_TRUE(has(error_of([&] { io::read_input(folder / "none"); }), "none: there is no such file or folder"));
  io::write_output(folder / "a", "x");
  EXPECT_EQ(io::read_input(folder / "a"), "x");
}

/// Files of the kernel have another length than they say, as a file that somebody writes to meanwhile.
TEST(Files, ReadRefusesWhatChanges) {
  EXPECT_TRUE(has(error_of([] { io::read_file("/proc/self/status"); }), "grew beyond its 0 bytes while it was read"));
  const char* shorter = "/sys/devices/system/cpu/online";
  if (!fs::exists(shorter)) return;
  EXPECT_TRUE(has(error_of([&] { io::read_file(shorter); }), "shrank from 4096 to "));
}

/// A file without content may claim any size.
TEST(Files, ReadRefusesWhatFitsNoMemory) {
  if (effort() == Effort::quick) return;  // sanitizers want the address space for themselves
  const Folder folder;
  io::write_file(folder / "a", "");
  ASSERT_EQ(::truncate((folder / "a").c_str(), off_t{1} << 38), 0);
  const Limit limit(RLIMIT_AS, rlim_t{1} << 37);
  EXPECT_TRUE(
      has(error_of([&] { io::read_file(folder / "a", int64_t{1} << 40); }), "there is no memory for its 27487"));
}

TEST(Files, ReplaceKeepsModeAndLink) {
  const Folder folder;
  const mode_t mask = ::umask(027);
  io::write_file(folder / "new", "1");
  ::umask(mask);
  EXPECT_EQ(mode_of(folder / "new"), 0640);
  fs::permissions(folder / "new", fs::perms(0604));
  fs::create_symlink("new", folder / "link");
  io::write_file(folder / "link", "2");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(io::read_file(folder / "new"), "2");
  EXPECT_EQ(mode_of(folder / "new"), 0604);
  EXPECT_EQ(folder.files(), 2);
}

TEST(Files, WriteRefuses) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("nothing", folder / "dangling");
  fs::create_directory(folder / "folder");
  io::write_file(folder / "file", "x");
  const int64_t files = folder.files();
  const auto refusal = [](const std::string& path) { return error_of([&] { io::write_file(path, "new"); }); };
  EXPECT_TRUE(has(refusal(folder / "folder"), "exists and is not a regular file"));
  EXPECT_TRUE(has(refusal(folder / "pipe"), "exists and is not a regular file"));
  EXPECT_TRUE(has(refusal(folder / "dangling"), "follow the symbolic link: No such file or directory"));
  EXPECT_TRUE(has(refusal(folder / "missing/a"), "missing/a: its folder: there is no such file or folder"));
  EXPECT_TRUE(has(refusal(folder / "missing/"), "is the name of a directory"));
  EXPECT_TRUE(has(refusal(folder / "file/a"), "look it up: Not a directory"));
  EXPECT_TRUE(has(refusal(folder / std::string(300, 'a')), "File name too long"));
  EXPECT_TRUE(has(refusal(""), "the path is empty"));
  EXPECT_TRUE(has(refusal(folder / "file" + std::string(1, '\0')), "a zero byte"));
  EXPECT_EQ(io::read_file(folder / "file"), "x");
  EXPECT_EQ(folder.files(), files);
}

TEST(Files, DiskFullLeavesTheOldFile) {
  const Folder folder;
  io::write_file(folder / "a", "old");
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  std::string message;
  {
    const Limit limit(RLIMIT_FSIZE, 65536);
    message = error_of([&] { io::write_file(folder / "a", all_bytes(1 << 20)); });
  }
  ::signal(SIGXFSZ, before);
  EXPECT_TRUE(has(message, "[write_file] " + folder / "a" + ": cannot write at byte 65536: File too large"));
  EXPECT_EQ(io::read_file(folder / "a"), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(Files, NoPermissionLeavesTheOldFile) {
  const Folder folder;
  io::write_file(folder / "a", "old");
  std::string in_read_only, in_sticky;
  fs::permissions(folder.path(), fs::perms(0555));
  {
    const Nobody nobody;
    in_read_only = error_of([&] { io::write_file(folder / "a", "new"); });
  }
  EXPECT_TRUE(has(in_read_only, "cannot create a temporary file next to it: Permission denied"));
  fs::permissions(folder.path(), fs::perms(0777) | fs::perms::sticky_bit);
  if (::geteuid() == 0) {  // who may create files here, but not replace this one
    const Nobody nobody;
    in_sticky = error_of([&] { io::write_file(folder / "a", "new"); });
    EXPECT_TRUE(has(in_sticky, "rename the temporary file: Operation not permitted"));
  }
  EXPECT_EQ(io::read_file(folder / "a"), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(Files, AppendLines) {
  const Folder folder;
  io::append_line(folder / "log", "one");
  io::append_line(folder / "log", "");
  io::append_line(folder / "log", "three");
  EXPECT_EQ(io::read_file(folder / "log"), "one\n\nthree\n");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto refusal = [](const std::string& path, const char* line) {
    return error_of([&] { io::append_line(path, line); });
  };
  EXPECT_TRUE(has(refusal(folder / "log", "a\nb"), "the line has a line break inside"));
  EXPECT_TRUE(
      has(refusal("/dev/full", "a"), "[append_line] /dev/full: cannot write at byte 0: No space left on device"));
  EXPECT_TRUE(has(refusal(folder / "pipe", "a"), "is neither a regular file nor a terminal"));
  EXPECT_TRUE(has(refusal(folder / "none/log", "a"), "there is no such file or folder"));
  EXPECT_TRUE(has(refusal("", "a"), "the path is empty"));
  EXPECT_EQ(io::read_file(folder / "log"), "one\n\nthree\n");
}

TEST(Files, MakeDirectory) {
  const Folder folder;
  for (int time = 0; time < 2; ++time) {
    io::make_directory(folder / "a/b/c");
    EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  }
  io::write_file(folder / "file", "x");
  const auto refusal = [](const std::string& path) { return error_of([&] { io::make_directory(path); }); };
  EXPECT_TRUE(has(refusal(folder / "file"), "[make_directory] " + folder / "file" + ": "));
  EXPECT_TRUE(has(refusal(folder / "file/a"), "Not a directory"));
  EXPECT_TRUE(has(refusal(""), "the path is empty"));
}

TEST(Files, AFolderIsHeldByOne) {
  const Folder folder;
  const auto refusal = [&] { return error_of([&] { const io::FolderLock second(folder.path()); }); };
  {
    const io::FolderLock first(folder.path());
    EXPECT_EQ(refusal(), "[lock] " + folder.path() + ": another program is writing into this folder");
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
  EXPECT_EQ(refusal(), "");
  const pid_t child = ::fork();
  if (child == 0) {
    const io::FolderLock held(folder.path());
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(refusal(), "") << "however its holder ended";
  EXPECT_TRUE(
      has(error_of([&] { const io::FolderLock none(folder / "none"); }), "none: there is no such file or folder"));
}

TEST(Files, Crc32) {
  EXPECT_EQ(io::crc32("123456789"), 0xCBF43926u);  // the check value of the standard
  EXPECT_EQ(io::crc32("6789", io::crc32("12345")), 0xCBF43926u);
  EXPECT_EQ(io::crc32({}, 0xCBF43926u), 0xCBF43926u);
  EXPECT_EQ(io::crc32(""), 0u);
}

TEST(Files, SafetensorsAreReadWithTheirChecks) {
  const Folder folder;
  const float values[2] = {1, 2};
  const io::NamedTensor tensor = {"a", DType::float32, {2}, values};
  const std::string bytes = io::format_safetensors({&tensor, 1}, {});
  io::write_file(folder / "a", bytes);
  EXPECT_EQ(io::Safetensors::read(folder / "a").bytes("a"), std::string_view(bytes).substr(bytes.size() - 8));
  EXPECT_TRUE(has(error_of([&] { io::Safetensors::read(folder / "a", 50); }), "at most 50 are read"));
  io::write_file(folder / "a", bytes + "x");
  EXPECT_TRUE(has(error_of([&] { io::Safetensors::read(folder / "a"); }), "[safetensors] " + folder / "a" + ": "));
}

TEST(Files, NpyIsReadAsItWasWritten) {
  const Folder folder;
  const double values[6] = {1, 2, 3, 4, 5, 6};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6}, {2, 3}, {3, 1, 2}}) {
    io::write_file(folder / "a", io::format_npy(DType::float64, shape, values));
    const io::NpyArray array = io::read_npy(folder / "a");
    EXPECT_EQ(array.dtype, DType::float64);
    EXPECT_EQ(array.shape, shape);
    EXPECT_TRUE(std::equal(values, values + 6, static_cast<const double*>(array.data.data())));
  }
  EXPECT_TRUE(has(error_of([&] { io::format_npy(DType::int64, std::vector<int64_t>{1}, values); }), "array is int64"));
}

}  // namespace
}  // namespace attn::test
