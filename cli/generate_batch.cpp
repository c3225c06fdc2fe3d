#include "generate_batch.h"

#include <fmt/core.h>

#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "attn/core.h"
#include "attn/core_names.h"
#include "attn/io.h"
#include "lines.h"
#include "output.h"
#include "progress.h"
#include "request_fields.h"
#include "signals.h"

namespace cli {
namespace {

using attn::generate::TextOptions;
using Json = nlohmann::ordered_json;

struct BatchRow {
  Json object = {};
  std::string where = {};
  std::vector<int64_t> prompt = {};
  TextOptions options = {};
};

[[noreturn]] void refuse_row(const std::string& where, const std::string& reason) {
  throw attn::Error("generate", {where + ": " + reason});
}

/// Fields that no option has are the user's own and stay in the output.
BatchRow read_row_of(const std::string& line, const std::string& where, const attn::generate::TextGenerator& generator,
                     const TextOptions& options) {
  try {
    Fields fields(line, "the line");
    BatchRow row{.object = fields.all(), .where = where, .options = options};
    const std::string prompt = fields.text("prompt", "");
    if (prompt.empty()) throw FieldError("prompt is missing, or empty");
    fields.number("max_new_tokens", row.options.max_new_tokens, 1, 1e9);
    read_sampling(fields, row.options);
    row.prompt = generator.source_tokenizer().encode(prompt).ids;
    return row;
  } catch (const FieldError& error) {
    refuse_row(where, error.what());
  }
}

/// The rows of a file, written in their order as soon as all before them are there.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)) {}

  void add(size_t row, std::string line) {
    lines_[row] = std::move(line);
    std::string text;
    for (auto at = lines_.find(next_); at != lines_.end(); at = lines_.find(next_)) {
      text += at->second;
      lines_.erase(at);
      ++next_;
    }
    if (path_.empty() && !text.empty()) show(text);
    else written_ += text;
  }

  /// The file is replaced as a whole.
  void end() const {
    if (!path_.empty()) attn::io::write_output(path_, written_);
  }
  size_t complete() const { return next_; }

 private:
  std::string path_, written_;
  std::map<size_t, std::string> lines_;
  size_t next_ = 0;
};

}  // namespace

void generate_batch(const attn::generate::TextGenerator& generator, const std::string& file, const std::string& out,
                    const TextOptions& options, const attn::generate::BatcherOptions& limits) {
  std::deque<BatchRow> rows;
  Lines lines(file);
  for (std::string line; lines.next(line);)
    if (!line.empty()) rows.push_back(read_row_of(line, lines.where(), generator, options));
  attn::generate::BatcherOptions batching = limits;
  batching.cache_storage = options.cache_storage;
  attn::generate::TextBatcher batcher(generator, batching);
  std::map<int64_t, size_t> row_of;
  for (size_t n = 0; n < rows.size(); ++n) {
    try {
      row_of[batcher.add(rows[n].prompt, rows[n].options)] = n;
    } catch (const attn::Error& error) {
      refuse_row(rows[n].where, error.what());
    }
  }
  Output output(out);
  Meter meter("texts", std::ssize(rows));
  int64_t done = 0;
  while (batcher.batcher().requests() > 0 && !signal_seen()) {
    for (const attn::generate::WrittenText& text : batcher.step()) {
      const size_t n = row_of.at(text.request);
      Json& object = rows[n].object;
      object["text"] = text.text;
      object["new_tokens"] = text.generated.tokens.size();
      object["finish_reason"] = attn::name_of(text.reason);
      if (!text.error.empty()) object["error"] = text.error;
      meter.hide();
      output.add(n, object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
      ++done;
    }
    meter.show(done);
  }
  meter.hide();
  output.end();
  if (output.complete() < rows.size())
    say("attn: stopped: {} of {} texts were written\n", output.complete(), rows.size());
}

}  // namespace cli
