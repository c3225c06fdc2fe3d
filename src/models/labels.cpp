// The names of a classifier's classes, beside the model: labels.json, a list.
#include <algorithm>
#include <filesystem>
#include <set>

#include "attn/models.h"
#include "core/checker.h"
#include "io/json.h"

namespace attn::models {
namespace {

void require_labels(std::span<const std::string> labels, const std::string& source) {
  Checker checker("labels");
  std::set<std::string_view> seen;
  for (size_t n = 0; n < labels.size() && checker.ok(); ++n) {
    const auto name = [&] {
      return source + ": " + io::in_quotes(labels[n]) + ", the name of class " + std::to_string(n);
    };
    checker.require(is_label(labels[n]), [&] { return name() + ", is not 1 to 256 bytes of printable UTF-8"; });
    checker.require(seen.insert(labels[n]).second, [&] { return name() + ", is that of another class too"; });
  }
  checker.done();
}

}  // namespace

bool is_label(std::string_view name) {
  constexpr size_t kLongest = 256;
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !name.empty() && name.size() <= kLongest && std::none_of(name.begin(), name.end(), is_control) &&
         io::json_string(name);
}

std::string labels_to_json(std::span<const std::string> labels) {
  require_labels(labels, "labels");
  return io::Json(std::vector<std::string>(labels.begin(), labels.end())).dump(2) + "\n";
}

std::vector<std::string> load_labels(const std::string& directory, int64_t classes) {
  const std::string path = directory + "/" + kLabelsFile;
  std::vector<std::string> labels;
  if (!std::filesystem::exists(path)) {
    for (int64_t n = 0; n < classes; ++n) labels.push_back(std::to_string(n));
    return labels;
  }
  const io::Json list = io::read_json("labels", path, 1 << 28);
  const auto is_text = [](const io::Json& each) { return each.is_string(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_text) ||
      static_cast<int64_t>(list.size()) != classes)
    throw Error("labels",
                {path + " must be a list of " + std::to_string(classes) + " texts, the names of the classes"});
  for (const io::Json& each : list) labels.push_back(each.get<std::string>());
  require_labels(labels, path);
  return labels;
}

}  // namespace attn::models
