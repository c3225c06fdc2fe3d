#include "trace_file.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "attn/core.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

std::string line_of(const Json& event) { return event.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

TraceFile::TraceFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
  if (!file_) refuse();
  const Json process = {{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "attn profile"}}}};
  std::fprintf(file_, "[\n%s", line_of(process).c_str());
}

TraceFile::~TraceFile() {
  if (file_) std::fclose(file_);
}

void TraceFile::refuse() const {
  throw attn::Error("profile", {path_ + " cannot be written: " + std::strerror(errno)});
}

void TraceFile::write(const attn::Span& span, int64_t offset) {
  Json arguments = Json::object();
  if (const std::string shape = span.work.shape.text(); !shape.empty()) arguments["shape"] = shape;
  if (span.work.flops > 0) arguments["flops"] = span.work.flops;
  if (span.work.bytes > 0) arguments["bytes"] = span.work.bytes;
  if (span.peak > 0) arguments["peak memory"] = span.peak;
  const Json event = {{"ph", "X"},
                      {"pid", 1},
                      {"tid", span.thread},
                      {"ts", 1e-3 * static_cast<double>(offset + span.begin)},
                      {"dur", 1e-3 * static_cast<double>(span.end - span.begin)},
                      {"cat", attn::enum_names(span.kind)[static_cast<size_t>(span.kind)]},
                      {"name", span.name},
                      {"args", arguments}};
  std::fprintf(file_, ",\n%s", line_of(event).c_str());
  const auto now = std::chrono::steady_clock::now();
  if (now - flushed_ < std::chrono::milliseconds(200)) return;
  std::fflush(file_);
  flushed_ = now;
}

void TraceFile::finish(const std::vector<std::string>& threads) {
  for (size_t n = 0; n < threads.size(); ++n)
    std::fprintf(
        file_, ",\n%s",
        line_of({{"ph", "M"}, {"pid", 1}, {"tid", n}, {"name", "thread_name"}, {"args", {{"name", threads[n]}}}})
            .c_str());
  std::fprintf(file_, "\n]\n");
  const bool failed = std::ferror(file_) != 0;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 || failed) refuse();
}

}  // namespace cli
