#include "workload.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

namespace bench {
namespace {

constexpr std::array<const char*, 4> kOperations = {"forward", "backward", "decode", "paged"};
constexpr std::array<const char*, 9> kOptions = {"full",  "causal",  "window",  "mask",   "bias",
                                                 "alibi", "dropout", "softcap", "lengths"};
constexpr std::array<const char*, 3> kLayouts = {"blhd", "bhld", "qkv"};
constexpr std::array<attn::DType, 4> kDtypes = {attn::DType::float32, attn::DType::float64, attn::DType::bfloat16,
                                                attn::DType::float16};

/// The place of a name in a list. Throws for one that is not there.
template <class List>
size_t index_of(const List& names, const std::string& name, const std::string& workload) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::runtime_error("attn_bench does not measure " + workload + ": " + name);
  return static_cast<size_t>(found - names.begin());
}

/// "a{b,c}d" is "abd" and "acd"; of several braces the first changes the slowest.
std::vector<std::string> expanded(const std::string& pattern) {
  const size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == std::string::npos) return {pattern};
  std::vector<std::string> names;
  std::istringstream alternatives(pattern.substr(open + 1, close - open - 1));
  for (std::string one; std::getline(alternatives, one, ',');)
    for (std::string& name : expanded(pattern.substr(0, open) + one + pattern.substr(close + 1)))
      names.push_back(std::move(name));
  return names;
}

}  // namespace

double Workload::pairs() const {
  const double nq = static_cast<double>(queries), nk = static_cast<double>(keys);
  const double width = static_cast<double>(std::min(queries, window));
  switch (option) {
    case Option::causal: return nq * (nq + 1) / 2;
    case Option::window: return width * (width + 1) / 2 + (nq - width) * width;
    case Option::mask: return nq * (nk - 1);  // one hole a row
    case Option::lengths: return nq * static_cast<double>(key_count);
    default: return nq * nk;
  }
}

double Workload::flops() const {
  const double products = operation == Operation::backward ? 5 : 2;
  return 2 * products * static_cast<double>(depth * heads) * pairs();
}

int64_t Workload::kv_bytes() const { return 2 * kv_heads * keys * depth * attn::size_of(dtype); }

std::string Workload::name() const {
  const auto two = [](int64_t a, int64_t b) { return std::to_string(a) + (a == b ? "" : ":" + std::to_string(b)); };
  return std::string(kOperations[static_cast<size_t>(operation)]) + "/" + kOptions[static_cast<size_t>(option)] + "/" +
         std::string(attn::name_of(dtype)) + "/B1/H" + two(heads, kv_heads) + "/n" + two(queries, keys) + "/D" +
         std::to_string(depth) + "/" + kLayouts[static_cast<size_t>(layout)];
}

WorkloadFile::WorkloadFile(const std::string& path) {
  std::ifstream file(path);
  content_ = nlohmann::json::parse(file, nullptr, false);
  if (content_.is_discarded()) throw std::runtime_error(path + " cannot be read");
}

Workload WorkloadFile::parse(const std::string& name) const {
  static const std::regex pattern("(\\w+)/(\\w+)/(\\w+)/B1/H(\\d+)(?::(\\d+))?/n(\\d+)(?::(\\d+))?/D(\\d+)/(\\w+)");
  std::smatch part;
  if (!std::regex_match(name, part, pattern)) throw std::runtime_error("attn_bench does not measure " + name);
  const auto number = [&](size_t n) { return std::stoll(part[n]); };
  Workload w;
  w.operation = static_cast<Operation>(index_of(kOperations, part[1], name));
  w.option = static_cast<Option>(index_of(kOptions, part[2], name));
  std::array<std::string, kDtypes.size()> dtypes;
  std::transform(kDtypes.begin(), kDtypes.end(), dtypes.begin(), [](attn::DType type) { return attn::name_of(type); });
  w.dtype = kDtypes[index_of(dtypes, part[3], name)];
  w.heads = number(4);
  w.kv_heads = part[5].matched ? number(5) : w.heads;
  w.queries = number(6);
  w.keys = part[7].matched ? number(7) : w.queries;
  w.depth = number(8);
  w.layout = static_cast<TensorLayout>(index_of(kLayouts, part[9], name));
  if (w.queries != w.keys && !w.reads_cache()) throw std::runtime_error("attn_bench does not measure " + name);
  const nlohmann::json& options = content_["options"];
  w.window = options["window"];
  w.dropout = options["dropout"];
  w.softcap = options["softcap"];
  w.key_count = static_cast<int64_t>(static_cast<double>(w.keys) * options["lengths"]["1"][0].get<double>());
  return w;
}

std::vector<Workload> WorkloadFile::set(const std::string& name) const {
  if (!content_["sets"].contains(name)) {
    std::string names;
    for (const auto& [known, patterns] : content_["sets"].items()) names += " " + known;
    throw std::runtime_error("there is no set " + name + " of workloads; there are" + names);
  }
  std::vector<Workload> workloads;
  std::set<std::string> seen;
  for (const std::string pattern : content_["sets"][name])
    for (const std::string& one : expanded(pattern))
      if (seen.insert(one).second) workloads.push_back(parse(one));
  return workloads;
}

std::vector<WorkloadFile::Floor> WorkloadFile::floors(const std::string& isa) const {
  std::vector<Floor> floors;
  const nlohmann::json of_isa = content_["gate"].value(isa, nlohmann::json::object());
  for (const auto& [name, of_peak] : of_isa.items()) {
    floors.push_back({parse(name), of_peak});
    floors.back().workload.isa = isa;
  }
  return floors;
}

}  // namespace bench
