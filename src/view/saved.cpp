// Recorded attention in files. A safetensors file has tensors "NAME.q", "NAME.k" and "NAME.lse", and the metadata
// "attention", {"NAME": options}, "tokens", "query_tokens" and "second", all JSON.
#include <algorithm>
#include <array>

#include "attn/io.h"
#include "io/json.h"
#include "view/page_texts.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr const char* kRead = "read_attention";
constexpr std::array kAlignments = {std::pair{"top_left", Alignment::top_left},
                                    std::pair{"bottom_right", Alignment::bottom_right},
                                    std::pair{"offset", Alignment::offset}};

/// What the layers of a file borrow from.
struct Memory {
  std::vector<Buffer> arrays;
  std::vector<std::unique_ptr<int64_t>> numbers;  // of options that are one number a text
};

// ------------------------------------------------------------------------------------------------------------ reading

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "layer 2" before "layer 10".
bool counts_before(std::string_view a, std::string_view b) {
  const auto take_number = [](std::string_view& text) {
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    std::string_view number = text.substr(0, digits);
    text.remove_prefix(digits);
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    return std::pair(number.size(), number);
  };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto left = take_number(a), right = take_number(b);
      if (left != right) return left < right;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

/// Reads a file and collects what is wrong with it.
class FileReader {
 public:
  explicit FileReader(const std::string& path)
      : path_(path), file_(io::Safetensors::open(path)), checker_(kRead), memory_(std::make_shared<Memory>()) {}

  SavedAttention read() {
    SavedAttention saved;
    const io::Json options = metadata("attention", io::Json::object());
    if (!options.is_object()) wrong("\"attention\" must be an object");
    for (const std::string& name : names()) {
      RecordedAttention layer{.name = name};
      if (options.is_object() && options.contains(name)) read_options(options[name], layer);
      if (read_arrays(layer)) saved.layers.push_back(std::move(layer));
    }
    if (checker_.ok() && saved.layers.empty()) wrong("the file has no tensor NAME.q, must have at least one");
    checker_.done();
    check_recorded(checker_, saved.layers);
    checker_.done();
    saved.tokens = read_texts("tokens", "keys", saved.layers[0].k.size[2]);
    saved.queries = read_texts("query_tokens", "queries", saved.layers[0].q.size[2]);
    saved.second = read_second(static_cast<int64_t>(saved.layers[0].k.size[2]));
    checker_.done();
    saved.memory = memory_;
    return saved;
  }

 private:
  void wrong(const std::string& reason) { checker_.require(false, path_ + ": " + reason); }

  io::Json metadata(const std::string& name, io::Json otherwise) const {
    const auto found = file_.metadata().find(name);
    return found == file_.metadata().end() ? otherwise : io::parse_json(kRead, path_ + ": " + name, found->second);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, info] : file_.tensors())
      if (name.ends_with(".q")) names.push_back(name.substr(0, name.size() - 2));
    std::stable_sort(names.begin(), names.end(), counts_before);
    return names;
  }

  /// The tensor with 1 in front of its axes; a view without data, and a reason, where it is not such a tensor.
  template <int Rank>
  ConstView<Rank> array(const std::string& name) {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end())
      return wrong("the file has no tensor " + io::in_quotes(name)), ConstView<Rank>{};
    const io::TensorInfo& info = found->second;
    if (info.shape.size() != Rank - 1 || !is_floating(info.dtype)) {
      wrong(io::in_quotes(name) + " must be of a floating type and have " + std::to_string(Rank - 1) + " axes");
      return {};
    }
    Shape<Rank> size;
    size[0] = 1;
    std::copy(info.shape.begin(), info.shape.end(), size.begin() + 1);
    memory_->arrays.emplace_back(std::max<int64_t>(info.end - info.begin, 1));
    file_.copy(name, info.dtype, info.shape, memory_->arrays.back().data());
    return ConstView<Rank>(memory_->arrays.back().data(), info.dtype, size);
  }

  bool read_arrays(RecordedAttention& layer) {
    layer.q = array<4>(layer.name + ".q");
    layer.k = array<4>(layer.name + ".k");
    if (!layer.q.data || !layer.k.data || !checker_.ok()) return false;
    if (file_.has(layer.name + ".lse")) {
      layer.lse = array<3>(layer.name + ".lse");
      return layer.lse.data != nullptr;
    }
    return compute_lse(layer);
  }

  bool compute_lse(RecordedAttention& layer) {
    try {
      layer.lse = forward_lse(layer, memory_->arrays);
    } catch (const Error& error) {
      for (const std::string& reason : error.reasons()) wrong(io::in_quotes(layer.name) + ": " + reason);
    }
    return checker_.ok();
  }

  void read_options(const io::Json& given, RecordedAttention& layer) {
    if (!given.is_object()) return wrong("the options of " + io::in_quotes(layer.name) + " must be an object");
    for (const auto& [name, value] : given.items())
      if (!read_option(name, value, layer.options))
        wrong("the options of " + io::in_quotes(layer.name) + " have " + io::in_quotes(name) + ": " +
              io::as_shown(value));
  }

  /// False for what is no option, or no value of it.
  bool read_option(const std::string& name, const io::Json& value, AttentionOptions& options) {
    if (name == "scale" && value.is_number()) options.scale = value.get<double>();
    else if (name == "softcap" && value.is_number()) options.softcap = value.get<double>();
    else if (name == "causal" && value.is_boolean()) options.causal = value.get<bool>();
    else if (name == "window") return read_window(value, options.window);
    else if (name == "alignment") return read_alignment(value, options.alignment);
    else if (name == "offset") return read_number(value, options.offset);
    else if (name == "key_length") return read_number(value, options.key_length);
    else return false;
    return true;
  }

  static bool read_window(const io::Json& value, Window& window) {
    if (!value.is_array() || value.size() != 2) return false;
    if (!value[0].is_number_integer() || !value[1].is_number_integer()) return false;
    window = {value[0].get<int64_t>(), value[1].get<int64_t>()};
    return true;
  }

  static bool read_alignment(const io::Json& value, Alignment& alignment) {
    for (const auto& [name, one] : kAlignments)
      if (value == name) return alignment = one, true;
    return false;
  }

  bool read_number(const io::Json& value, std::span<const int64_t>& to) {
    if (!value.is_number_integer()) return false;
    memory_->numbers.push_back(std::make_unique<int64_t>(value.get<int64_t>()));
    to = {memory_->numbers.back().get(), 1};
    return true;
  }

  int64_t read_second(int64_t keys) {
    const io::Json second = metadata("second", -1);
    if (second == -1) return -1;
    if (second.is_number_integer() && second > 0 && second < keys) return second.get<int64_t>();
    wrong("\"second\" must be from 1 to " + std::to_string(keys - 1) + ", not " + io::as_shown(second));
    return -1;
  }

  /// The texts of a list, one for each of `count`; none where there is no such list.
  std::vector<std::string> read_texts(const std::string& name, const char* what, int64_t count) {
    const io::Json texts = metadata(name, io::Json::array());
    if (!texts.is_array() || !std::all_of(texts.begin(), texts.end(), [](const io::Json& t) { return t.is_string(); }))
      return wrong(io::in_quotes(name) + " must be a list of texts"), std::vector<std::string>{};
    if (!texts.empty() && static_cast<int64_t>(texts.size()) != count)
      wrong("there are " + std::to_string(texts.size()) + " tokens and " + std::to_string(count) + " " + what);
    return texts.get<std::vector<std::string>>();
  }

  std::string path_;
  io::Safetensors file_;
  Checker checker_;
  std::shared_ptr<Memory> memory_;
};

/// The array of a .npy file with axes of extent 1 in front, in a new element of `memory`; a view without data, and a
/// reason, where the file has no such array.
template <int Rank>
ConstView<Rank> npy_view(Checker& checker, const std::string& path, std::vector<Buffer>& memory) {
  try {
    io::NpyArray array = io::read_npy(path);
    if (array.shape.empty() || array.shape.size() > Rank)
      throw Error("read_arrays", {path + ": must have 1 to " + std::to_string(Rank) + " axes"});
    Shape<Rank> size;
    size.fill(1);
    std::copy_backward(array.shape.begin(), array.shape.end(), size.end());
    memory.push_back(std::move(array.data));
    return ConstView<Rank>(memory.back().data(), array.dtype, size);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) checker.require(false, reason);
    return {};
  }
}

// ------------------------------------------------------------------------------------------------------------ writing

/// A view [1, ...] without its first axis.
template <int Rank>
io::NamedTensor tensor_of(const std::string& name, const ConstView<Rank>& view) {
  return {name,
          view.dtype,
          {view.size.begin() + 1, view.size.end()},
          view.data,
          {view.stride.begin() + 1, view.stride.end()}};
}

io::Json options_json(Checker& checker, const std::string& layer, const AttentionOptions& options) {
  io::Json said = io::Json::object();
  if (options.scale) said["scale"] = *options.scale;
  if (options.softcap != 0) said["softcap"] = options.softcap;
  if (options.causal) said["causal"] = true;
  if (options.window.left >= 0 || options.window.right >= 0)
    said["window"] = {options.window.left, options.window.right};
  for (const auto& [name, alignment] : kAlignments)
    if (options.alignment == alignment) said["alignment"] = name;
  if (!options.offset.empty()) said["offset"] = options.offset[0];
  if (!options.key_length.empty()) said["key_length"] = options.key_length[0];
  checker.require(!options.mask && !options.bias && options.alibi_slopes.empty() && !options.query_segment_ids &&
                      options.cu_seqlens_q.empty() && !options.blocks.given() && options.query_length.empty(),
                  layer + ": a file cannot hold masks, biases, slopes, segment ids, packed sequences and blocks");
  return said;
}

/// What a file of attention is made of.
struct Contents {
  std::vector<io::NamedTensor> tensors;
  std::map<std::string, std::string> metadata;

  Contents(const char* operation, const std::vector<std::string>& tokens, const std::vector<RecordedAttention>& layers,
           const std::vector<std::string>& queries, int64_t second) {
    Checker checker(operation);
    check_tokens(checker, layers, tokens, queries, second);
    checker.done();
    io::Json options = io::Json::object();
    for (size_t n = 0; n < layers.size(); ++n) {
      const RecordedAttention& layer = layers[n];
      checker.require(!options.contains(layer.name), "two layers are called " + io::in_quotes(layer.name));
      options[layer.name] = options_json(checker, "layers[" + std::to_string(n) + "]", layer.options);
      tensors.push_back(tensor_of(layer.name + ".q", layer.q));
      tensors.push_back(tensor_of(layer.name + ".k", layer.k));
      tensors.push_back(tensor_of(layer.name + ".lse", layer.lse));
    }
    checker.done();
    const auto replaced = io::Json::error_handler_t::replace;  // what is no UTF-8
    metadata = {{"attention", options.dump(-1, ' ', false, replaced)}};
    if (!tokens.empty()) metadata["tokens"] = io::Json(tokens).dump(-1, ' ', false, replaced);
    if (!queries.empty()) metadata["query_tokens"] = io::Json(queries).dump(-1, ' ', false, replaced);
    if (second >= 0) metadata["second"] = std::to_string(second);
  }
};

}  // namespace

SavedAttention read_attention(const std::string& path) { return FileReader(path).read(); }

SavedAttention read_arrays(const std::string& q, const std::string& k, const std::string& lse,
                           const AttentionOptions& options) {
  Checker checker("read_arrays");
  auto memory = std::make_shared<std::vector<Buffer>>();
  RecordedAttention layer{.name = "layer 0", .options = options};
  layer.q = npy_view<4>(checker, q, *memory);
  layer.k = npy_view<4>(checker, k, *memory);
  if (!lse.empty()) layer.lse = npy_view<3>(checker, lse, *memory);
  checker.done();
  if (lse.empty()) {
    try {
      layer.lse = forward_lse(layer, *memory);
    } catch (const Error& error) {
      throw Error("read_arrays", {q + " and " + k + ": " + error.reasons().at(0)});
    }
  }
  check_recorded(checker, {&layer, 1});
  checker.done();
  return {.tokens = {}, .layers = {layer}, .memory = memory};
}

std::string saved_attention(const std::vector<std::string>& tokens, const std::vector<RecordedAttention>& layers,
                            const std::vector<std::string>& queries, int64_t second) {
  const Contents contents("saved_attention", tokens, layers, queries, second);
  return io::format_safetensors(contents.tensors, contents.metadata);
}

void save_attention(const std::string& path, const std::vector<std::string>& tokens,
                    const std::vector<RecordedAttention>& layers, const std::vector<std::string>& queries,
                    int64_t second) {
  const Contents contents("save_attention", tokens, layers, queries, second);
  io::write_safetensors(path, contents.tensors, contents.metadata);
}

}  // namespace attn::view
