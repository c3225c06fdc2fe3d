// labels: what the labels of files mean.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace attn::train {

/// The numbers of classes by their names.
class ClassIndex {
 public:
  explicit ClassIndex(std::span<const std::string> classes);
  /// Throws Error with file, line and the names that are known.
  int64_t of(const std::string& label, const std::string& source, int64_t line) const;

 private:
  std::vector<std::string> classes_;
  std::map<std::string, int64_t> places_;
};

/// Throws Error with file and line for what is no finite number.
double number_in(const std::string& text, const std::string& source, int64_t line);

}  // namespace attn::train
