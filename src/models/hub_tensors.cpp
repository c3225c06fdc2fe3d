// Parameters as tensors: by the rules that HubWeights reads, backward. Rows that stay together are not copied.
#include "models/hub_tensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "models/shape.h"

namespace attn::models {
namespace {

/// The rows of a parameter of `rank` axes in a tensor, which may have an axis of 1 more.
int64_t rows_in(std::vector<int64_t> shape, size_t rank, Layout layout) {
  const auto single = std::find(shape.begin(), shape.end(), 1);
  if (shape.size() > rank && single != shape.end()) shape.erase(single);
  return layout == Layout::transposed && shape.size() == 2 ? shape.back() : shape.front();
}

[[noreturn]] void refuse(const std::string& why) { throw Error("export", {why}); }

/// A gain as its distance from 1.
Array minus_one(const Array& array) {
  const Array wide(DType::float64, array.shape(), false), result(array.dtype(), array.shape(), false);
  ops::convert(array.flat(), wide.flat());
  double* number = static_cast<double*>(wide.data());
  for (int64_t n = 0; n < wide.count(); ++n) number[n] -= 1;
  ops::convert(wide.flat(), result.flat());
  return result;
}

bool is_zero(const char* bytes, int64_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == 0; });
}

}  // namespace

HubTensors::HubTensors(const HubModel& model, std::map<std::string, std::vector<int64_t>> known)
    : model_(model), known_(std::move(known)) {}

std::string full_name(const Family& family, const std::map<std::string, std::vector<int64_t>>& known,
                      const std::string& theirs) {
  const bool whole = theirs.starts_with('/');
  const std::string bare = whole ? theirs.substr(1) : theirs;
  const std::string prefixed = whole ? bare : family.prefix + bare;
  return !known.contains(prefixed) && known.contains(bare) ? bare : prefixed;
}

bool HubTensors::is_known(const NameRule& rule, const std::string& ours) const {
  const std::vector<std::string> names = names_by(rule, ours);
  return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == kZeros || known_.contains(full_name(*model_.family, known_, name));
  });
}

void HubTensors::put(const nn::Parameter& parameter) {
  const NameRule* first = nullptr;
  bool is_put = false;
  for (const auto* rules : {&model_.head->names, &model_.family->names}) {
    if (first) break;  // of two heads the model has the one that its task names
    for (const NameRule& rule : *rules) {
      if (names_by(rule, parameter.name).empty()) continue;
      if (!first) first = &rule;
      if (!is_known(rule, parameter.name)) continue;
      put_by(rule, parameter);
      is_put = true;
    }
  }
  if (!first)
    refuse(parameter.name + " has no place in " + model_.family->name + std::string(model_.head->suffix) +
           " of transformers");
  if (!is_put) put_by(*first, parameter);
}

/// How many rows each of several tensors has, where the original folder does not say it.
std::vector<int64_t> HubTensors::rows_of_parts(const std::string& ours, int64_t rows, size_t parts) const {
  if (parts == 1) return {rows};
  if (parts == 2 && rows % 2 == 0) return {rows / 2, rows / 2};
  const LayerShape shape = attention_shape(model_.config);
  const int64_t queries = shape.heads * shape.key_width, keys = shape.kv_heads * shape.key_width;
  if (parts == 3 && queries + 2 * keys == rows) return {queries, keys, keys};
  refuse(ours + " cannot be cut into " + std::to_string(parts) + " tensors: the original folder is not known");
}

/// The tensors that the rule names, one below the other. Of zeros the name is empty.
std::vector<HubTensors::Target> HubTensors::targets_of(const NameRule& rule, const nn::Parameter& parameter) const {
  const std::vector<std::string> names = names_by(rule, parameter.name);
  const std::vector<int64_t>& own = parameter.master.shape();
  const int64_t rows = rule.pick ? rule.pick(model_.config).of : own.front();
  std::vector<Target> targets;
  std::vector<int64_t> unknown;
  for (const std::string& name : names) {
    Target target{name == kZeros ? "" : full_name(*model_.family, known_, name), own};
    if (const auto known = known_.find(target.name); known != known_.end()) {
      target.shape = known->second;
      target.rows = rows_in(target.shape, own.size(), rule.layout);
    }
    targets.push_back(std::move(target));
  }
  int64_t left = rows;
  size_t without = 0;
  for (const Target& target : targets) {
    left -= target.rows;
    without += target.rows == 0;
  }
  const std::vector<int64_t> parts = without ? rows_of_parts(parameter.name, left, without) : std::vector<int64_t>();
  size_t next = 0;
  for (Target& target : targets) {
    if (target.rows) continue;
    target.rows = target.shape.front() = parts[next++];
    if (rule.layout == Layout::transposed && target.shape.size() == 2) std::swap(target.shape[0], target.shape[1]);
  }
  return targets;
}

void HubTensors::put_by(const NameRule& rule, const nn::Parameter& parameter) {
  const Array array = rule.layout == Layout::plus_one ? minus_one(parameter.master) : parameter.master;
  const PickedRows picked = rule.pick ? rule.pick(model_.config) : PickedRows();
  const bool transposed = rule.layout == Layout::transposed && array.shape().size() == 2;
  const int64_t width = array.count() / array.shape().front(), bytes = width * size_of(array.dtype());
  const char* data = static_cast<const char*>(array.data());
  int64_t first = 0, all = 0;
  const std::vector<Target> targets = targets_of(rule, parameter);
  for (const Target& target : targets) all += target.rows;
  if (!rule.pick && all != array.shape().front())
    refuse(parameter.name + " has " + std::to_string(array.shape().front()) + " rows, but " + targets.front().name +
           " and what follows it in the original folder have " + std::to_string(all));
  for (const Target& target : targets) {
    const int64_t end = first + target.rows;
    int64_t count = 1;
    for (const int64_t extent : target.shape) count *= extent;
    if (target.name.empty()) {
      if (!is_zero(data + first * bytes, target.rows * bytes))
        refuse(parameter.name + " has a part that transformers has not, and it is no longer zero");
    } else if (count != target.rows * width) {
      refuse(parameter.name + " does not fill " + target.name + " of the original folder");
    } else if (!rule.pick) {
      if (parameter.is_linear && rule.layout == Layout::rows && target.shape.size() == 2 &&
          !parameter.name.starts_with("head"))
        linear_.insert(target.name);
      std::vector<int64_t> stride;
      if (transposed) stride = {1, width};
      tensors_[target.name] = {array, {target.name, array.dtype(), target.shape, data + first * bytes, stride}, {}};
    } else {
      auto [place, is_new] = tensors_.try_emplace(target.name);
      Tensor& tensor = place->second;
      if (is_new) {
        tensor.array = Array(array.dtype(), target.shape);
        tensor.named = {target.name, array.dtype(), target.shape, tensor.array.data(), {}};
        for (int64_t row = 0; row < target.rows; ++row) tensor.missing.insert(row);
      }
      for (size_t r = 0; r < picked.rows.size(); ++r) {
        const int64_t row = picked.rows[r] - first;
        if (row < 0 || row >= target.rows) continue;
        std::memcpy(static_cast<char*>(tensor.array.data()) + row * bytes, data + static_cast<int64_t>(r) * bytes,
                    static_cast<size_t>(bytes));
        tensor.missing.erase(row);
      }
    }
    first = end;
  }
}

std::vector<io::NamedTensor> HubTensors::tensors() const {
  std::vector<io::NamedTensor> all;
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.missing.empty()) refuse(name + ": some rows are in no parameter");
    all.push_back(tensor.named);
  }
  return all;
}

}  // namespace attn::models
