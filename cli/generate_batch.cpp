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

template <typename Number>
void read_row_number(const BatchRow& row, const Json& value, const std::string& name, std::optional<Number>& to) {
  const bool right = std::is_same_v<Number, double> ? value.is_number() : value.is_number_integer();
  if (!right)
    refuse_row(row.where, fmt::format("{} is {}, must be a {}", name, value.dump(),
                                      std::is_same_v<Number, double> ? "number" : "whole number"));
  to = value.get<Number>();
}

void read_row_field(BatchRow& row, const std::string& name, const Json& value) {
  TextOptions& options = row.options;
  if (name == "prompt") return;
  if (name == "max_new_tokens") return read_row_number(row, value, name, options.max_new_tokens);
  if (name == "temperature") return read_row_number(row, value, name, options.temperature);
  if (name == "top_k") return read_row_number(row, value, name, options.top_k);
  if (name == "top_p") return read_row_number(row, value, name, options.top_p);
  if (name == "min_p") return read_row_number(row, value, name, options.min_p);
  if (name == "repetition_penalty") return read_row_number(row, value, name, options.repetition_penalty);
  if (name == "seed") {
    std::optional<int64_t> seed;
    read_row_number(row, value, name, seed);
    options.seed = static_cast<uint64_t>(*seed);
  } else if (name == "stop") {
    const Json list = value.is_string() ? Json::array({value}) : value;
    options.stop_strings.clear();
    for (const Json& stop : list) {
      if (!list.is_array() || !stop.is_string()) refuse_row(row.where, "stop must be a text or a list of texts");
      options.stop_strings.push_back(stop.get<std::string>());
    }
  }  // other fields are the user's own and stay in the output
}

BatchRow read_prompt_row(const std::string& line, const std::string& where,
                         const attn::generate::TextGenerator& generator, const TextOptions& options) {
  BatchRow row{.object = Json::parse(line, nullptr, false), .where = where, .options = options};
  if (!row.object.is_object()) refuse_row(where, "must be a JSON object, as {\"prompt\": \"Once upon a time\"}");
  const auto prompt = row.object.find("prompt");
  if (prompt == row.object.end() || !prompt->is_string()) refuse_row(where, "prompt is missing, or is not a text");
  for (const auto& [name, value] : row.object.items()) read_row_field(row, name, value);
  row.prompt = generator.source_tokenizer().encode(prompt->get<std::string>()).ids;
  return row;
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
    if (!line.empty()) rows.push_back(read_prompt_row(line, lines.where(), generator, options));
  attn::generate::TextBatcher batcher(generator, limits);
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
      object["text"] = text.written.text;
      object["new_tokens"] = text.written.generated.tokens.size();
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
