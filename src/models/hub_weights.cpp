// The tensors of a checkpoint as parameters: found by the family's names, laid out as layers want them.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "io/foreign.h"
#include "models/hub.h"
#include "models/quantization.h"

namespace attn::models {
namespace {

using io::Json;

/// As the first checkpoints of BERT name the parts of a layer norm.
std::string first_style(std::string name) {
  if (name.ends_with("LayerNorm.weight")) return name.replace(name.size() - 6, 6, "gamma");
  if (name.ends_with("LayerNorm.bias")) return name.replace(name.size() - 4, 4, "beta");
  return name;
}

bool is_aligned(const void* data, DType dtype) { return reinterpret_cast<uintptr_t>(data) % size_of(dtype) == 0; }

/// A tensor's numbers, one row.
View<2> numbers_of(const HubWeights::Piece& piece, std::vector<char>& copy) {
  int64_t count = 1;
  for (const int64_t extent : piece.shape()) count *= extent;
  if (piece.stored) {
    copy.resize(static_cast<size_t>(count) * sizeof(float));
    ops::dequantize(piece.stored->read(),
                    View<2>(reinterpret_cast<float*>(copy.data()), {piece.stored->rows(), piece.stored->terms()}));
    return {copy.data(), DType::float32, {1, count}};
  }
  const std::string_view bytes = piece.file->bytes(piece.name);
  void* data = const_cast<char*>(bytes.data());
  if (!is_aligned(data, piece.dtype())) {
    copy.assign(bytes.begin(), bytes.end());
    data = copy.data();
  }
  return {data, piece.dtype(), {1, count}};
}

/// to [in, out] = the transpose of from [out, in], of elements of `size` bytes.
void transpose(const char* from, char* to, int64_t rows, int64_t columns, int64_t size) {
  constexpr int64_t kSquare = 32;
  parallel_for((rows + kSquare - 1) / kSquare, [&](int64_t block) {
    const int64_t end = std::min(rows, (block + 1) * kSquare);
    for (int64_t first = 0; first < columns; first += kSquare)
      for (int64_t r = block * kSquare; r < end; ++r)
        for (int64_t c = first; c < std::min(columns, first + kSquare); ++c)
          std::memcpy(to + (c * rows + r) * size, from + (r * columns + c) * size, static_cast<size_t>(size));
  });
}

std::string shape_of(const std::vector<int64_t>& shape) {
  return to_string(shape.data(), static_cast<int>(shape.size()));
}

}  // namespace

HubWeights::HubWeights(const std::string& folder, HubModel& model) : model_(model) {
  const std::string index = folder + "/model.safetensors.index.json", single = folder + "/model.safetensors";
  const auto is_named = [](const std::string& path) {  // a link to nothing too
    std::error_code unknown;
    return std::filesystem::exists(std::filesystem::symlink_status(path, unknown));
  };
  if (is_named(single) || !is_named(index)) {
    if (!is_named(single))
      throw Error("open", {folder + ": has no model.safetensors" + io::instead_in(folder, io::Content::weights)});
    open(single);
    untie(model.config);
    return;
  }
  const Json list = io::read_json("open", index, 1 << 28);
  const Json map = list.is_object() ? list.value("weight_map", Json()) : Json();
  if (!map.is_object() || map.empty()) throw Error("open", {index + " has no weight_map of tensors and their files"});
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "..")
      throw Error("open", {index + ": tensor " + io::in_quotes(tensor) + " is in " + io::as_shown(file) +
                           ", must be the name of a file in the folder"});
    names.insert(name);
  }
  std::string missing;
  for (const std::string& name : names)
    if (!is_named(folder + "/" + name)) missing += (missing.empty() ? "" : ", ") + name;
  if (!missing.empty())
    throw Error("open", {index + " names files that are not there: " + missing + "; fetch or copy them too"});
  for (const std::string& name : names) open(folder + "/" + name);
  untie(model.config);
}

void HubWeights::open(const std::string& path) {
  files_.push_back(std::make_unique<io::Safetensors>(io::Safetensors::map(path)));
  for (const auto& [name, info] : files_.back()->tensors())
    if (!where_.emplace(name, files_.back().get()).second)
      throw Error("open", {path + ": tensor " + io::in_quotes(name) + " is in another file too"});
  for (const auto& [name, type] : files_.back()->foreign()) foreign_.emplace(name, type);
}

namespace {

bool are_same(const HubWeights::Piece& a, const HubWeights::Piece& b) {
  if (a.stored || b.stored) return a.name == b.name;
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.file->bytes(a.name) == b.file->bytes(b.name);
}

}  // namespace

void HubWeights::untie(Config& config) {
  std::string ignored;
  const std::vector<Found> tokens = all_of("tokens.weight", &ignored), heads = all_of("head.weight", &ignored);
  for (const Found& other : tokens)
    if (!are_same(tokens[0].pieces[0], other.pieces[0]))
      reasons_.push_back(tokens[0].pieces[0].name + " and " + other.pieces[0].name + " differ, which is not supported");
  if (config.head && !config.classes && !tokens.empty() && !heads.empty() &&
      !are_same(tokens[0].pieces[0], heads[0].pieces[0]))
    config.tie_embeddings = false;
}

/// By its name after the family's prefix, or, where the layers were saved alone, without it.
std::optional<HubWeights::Piece> HubWeights::piece(const std::string& name) const {
  const bool whole = name.starts_with('/');
  const std::string bare = whole ? name.substr(1) : name;
  const std::string candidates[] = {whole ? bare : model_.family->prefix + bare, bare};
  for (const std::string& candidate : candidates)
    for (const std::string& spelling : {candidate, first_style(candidate)})
      if (const auto found = where_.find(spelling); found != where_.end()) return Piece{found->second, spelling};
  for (const std::string& candidate : candidates)
    if (std::optional<StoredMatrix> matrix = stored(candidate)) return Piece{{}, candidate, std::move(matrix)};
  return {};
}

/// A weight that the folder stores in 4 or 8 bits.
std::optional<StoredMatrix> HubWeights::stored(const std::string& name) const {
  if (!model_.stored || !name.ends_with(".weight")) return {};
  return StoredMatrix::find(*model_.stored, name, [&](const std::string& part) -> std::optional<StoredTensor> {
    const auto found = where_.find(part);
    if (found == where_.end()) return {};
    const io::TensorInfo& info = found->second->tensors().at(part);
    return StoredTensor{info.dtype, info.shape, found->second->bytes(part)};
  });
}

/// The tensors that a rule names for `ours`; none where it is about another, or where some are missing.
std::vector<HubWeights::Piece> HubWeights::pieces_of(const NameRule& rule, const std::string& ours,
                                                     std::string* missing) const {
  std::vector<Piece> pieces;
  for (const std::string& name : names_by(rule, ours)) {
    if (name == kZeros) {
      pieces.emplace_back();
      continue;
    }
    if (std::optional<Piece> part = piece(name)) {
      pieces.push_back(std::move(*part));
      continue;
    }
    const std::string full = name.starts_with('/') ? name.substr(1) : model_.family->prefix + name;
    const auto foreign = foreign_.find(full);
    *missing += (missing->empty() ? "" : ", ") + full +
                (foreign == foreign_.end() ? "" : " of a floating type, but one of " + foreign->second);
  }
  if (pieces.size() < rule.theirs.size()) pieces.clear();
  return pieces;
}

std::vector<HubWeights::Found> HubWeights::all_of(const std::string& ours, std::string* missing) const {
  std::vector<Found> all;
  for (const auto* rules : {&model_.head->names, &model_.family->names})
    for (const NameRule& rule : *rules)
      if (std::vector<Piece> pieces = pieces_of(rule, ours, missing); !pieces.empty())
        all.push_back({std::move(pieces), &rule});
  return all;
}

std::optional<Array> HubWeights::find_fitting(const nn::Variable& wanted) const {
  std::string missing;
  const std::vector<Found> found = all_of(wanted.name, &missing);
  if (found.empty()) return {};
  try {
    return laid_out(wanted, found[0].pieces, *found[0].rule);
  } catch (const Error&) {
    return {};
  }
}

std::map<std::string, std::vector<int64_t>> HubWeights::shapes() const {
  std::map<std::string, std::vector<int64_t>> all;
  for (const auto& [name, file] : where_) all[name] = file->tensors().at(name).shape;
  return all;
}

nn::ParameterData HubWeights::find(const nn::Variable& wanted, bool as_stored) {
  std::string missing;
  std::vector<Found> found = all_of(wanted.name, &missing);
  // Of two that are one either may be in the file.
  if (found.empty() && wanted.name == "tokens.weight" && model_.config.tie_embeddings)
    found = all_of("head.weight", &missing);
  try {
    const auto is_stored = [](const Piece& piece) { return piece.stored.has_value(); };
    if (as_stored && !found.empty() && found[0].rule->layout == Layout::rows && !found[0].rule->pick &&
        std::all_of(found[0].pieces.begin(), found[0].pieces.end(), is_stored))
      return packed(wanted, found[0].pieces);
    if (!found.empty()) return laid_out(wanted, found[0].pieces, *found[0].rule);
    reasons_.push_back("there is no tensor " + (missing.empty() ? "for " + wanted.name : missing));
  } catch (const Error& error) {
    reasons_.insert(reasons_.end(), error.reasons().begin(), error.reasons().end());
  }
  // Zeros in its place let the caller find every tensor that is missing. The sizes in config.json may be wrong and need
  // too much memory.
  constexpr int64_t kMostNumbers = int64_t{1} << 26;
  int64_t numbers = 1;
  for (const int64_t extent : wanted.shape) numbers *= extent;
  if (numbers > kMostNumbers) throw Error("open", std::move(reasons_));
  return Array(wanted.dtype, wanted.shape);
}

namespace {

/// Throws Error unless the pieces, one below the other, make `whole`, of which the wanted parameter may be a part.
void require_fit(const nn::Variable& wanted, const std::vector<int64_t>& whole,
                 const std::vector<HubWeights::Piece>& pieces, bool turned) {
  int64_t all = 1, count = 0;
  bool fit = true;
  for (const int64_t extent : whole) all *= extent;
  std::string shapes;
  for (const HubWeights::Piece& part : pieces) {
    const HubWeights::Piece& sized = part.is_zeros() ? pieces.back() : part;
    std::vector<int64_t> shape = sized.shape();
    const auto single = std::find(shape.begin(), shape.end(), 1);
    if (shape.size() > whole.size() && single != shape.end()) shape.erase(single);
    int64_t numbers = 1;
    for (const int64_t extent : shape) numbers *= extent;
    const int64_t width = shape.empty() ? 1 : turned ? shape.front() : shape.back();
    fit = fit && is_floating(sized.dtype()) && (whole.size() < 2 || (shape.size() == 2 && width == whole[1]));
    count += numbers;
    shapes += (shapes.empty() ? "" : " + ") + (part.is_zeros() ? "zeros as of " + pieces.back().name : part.name) +
              " " + std::string(name_of(sized.dtype())) + " " + shape_of(sized.shape());
  }
  if (!fit || count != all)
    throw Error("open", {shapes + ": must make " + (whole == wanted.shape ? "" : "rows of which some are ") +
                         wanted.name + " " + shape_of(whole) + (turned ? ", transposed" : "")});
}

/// The pieces' numbers, one after the other.
void gather(const std::vector<HubWeights::Piece>& pieces, const Array& to) {
  char* at = static_cast<char*>(to.data());
  for (const HubWeights::Piece& part : pieces) {
    std::vector<char> copy;
    const View<2> numbers = numbers_of(part.is_zeros() ? pieces.back() : part, copy);
    const int64_t bytes = numbers.size[1] * size_of(to.dtype());
    if (!part.is_zeros()) ops::convert(numbers, View<2>(at, to.dtype(), numbers.size));
    else std::fill_n(at, bytes, '\0');
    at += bytes;
  }
}

/// The rows of the pieces that a rank has, without those of others. A rank's only row range of a mapped file stays
/// there.
Array gather_rows(const std::vector<HubWeights::Piece>& pieces, const nn::Variable& wanted) {
  const int64_t width = wanted.shape.size() < 2 ? 1 : wanted.shape[1], row_bytes = width * size_of(wanted.dtype);
  const HubWeights::Piece& first = pieces.front();
  const std::vector<nn::IndexRange>& ranges = wanted.slice.ranges;
  if (pieces.size() == 1 && ranges.size() == 1 && first.file && first.dtype() == wanted.dtype &&
      is_aligned(first.file->bytes(first.name).data(), wanted.dtype)) {
    const std::shared_ptr<void> whole = first.file->share(first.name);
    return {wanted.dtype, wanted.slice.shape_of(wanted.shape),
            std::shared_ptr<void>(whole, static_cast<char*>(whole.get()) + ranges[0].begin * row_bytes)};
  }
  Array part(wanted.dtype, wanted.slice.shape_of(wanted.shape));
  int64_t end = 0;
  for (const HubWeights::Piece& piece : pieces) {
    const HubWeights::Piece& sized = piece.is_zeros() ? pieces.back() : piece;
    const int64_t begin = end;
    int64_t numbers = 1;
    for (const int64_t extent : sized.shape()) numbers *= extent;
    end += numbers / width;
    if (piece.is_zeros()) continue;
    std::vector<char> copy;
    const View<2> all = numbers_of(piece, copy);
    char* at = static_cast<char*>(part.data());
    for (const nn::IndexRange& range : ranges) {
      const int64_t from = std::max(range.begin, begin), to = std::min(range.end, end);
      if (from < to) {
        const Shape<2> size = {1, (to - from) * width};
        ops::convert(
            View<2>(static_cast<char*>(all.data) + (from - begin) * width * size_of(all.dtype), all.dtype, size),
            View<2>(at + (from - range.begin) * row_bytes, wanted.dtype, size));
      }
      at += range.count() * row_bytes;
    }
  }
  return part;
}

/// The picked rows, one below the other.
void pick_rows(const Array& from, const PickedRows& picked, const Array& to) {
  const int64_t bytes = from.count() / picked.of * size_of(from.dtype());
  for (size_t r = 0; r < picked.rows.size(); ++r)
    std::memcpy(static_cast<char*>(to.data()) + static_cast<int64_t>(r) * bytes,
                static_cast<const char*>(from.data()) + picked.rows[r] * bytes, static_cast<size_t>(bytes));
}

void add_one(const Array& array) {
  const Array one(DType::float64, array.shape(), false), ones(array.dtype(), array.shape(), false);
  std::fill_n(static_cast<double*>(one.data()), one.count(), 1.0);
  ops::convert(one.flat(), ones.flat());
  ops::add(array.flat(), ones.flat(), array.flat());
}

}  // namespace

/// Stored matrices, one below the other.
ops::PackedMatrix HubWeights::packed(const nn::Variable& wanted, const std::vector<Piece>& pieces) const {
  require_fit(wanted, wanted.shape, pieces, false);
  std::vector<ops::QuantizedMatrix> parts;
  for (const Piece& piece : pieces) parts.push_back(piece.stored->read());
  try {
    return ops::PackedMatrix(slice_of(parts.size() == 1 ? parts[0] : joined(std::move(parts)), wanted.slice));
  } catch (const Error& error) {
    throw Error("open", {pieces[0].name + ": " + error.reasons().front()});
  }
}

Array HubWeights::laid_out(const nn::Variable& wanted, const std::vector<Piece>& pieces, const NameRule& rule) const {
  Layout layout = rule.layout;
  if (pieces.size() == 1 && pieces[0].is_zeros()) return Array(wanted.dtype, wanted.shape);
  if (layout == Layout::transposed && wanted.shape.size() < 2) layout = Layout::rows;
  const PickedRows picked = rule.pick ? rule.pick(model_.config) : PickedRows();
  std::vector<int64_t> whole = wanted.shape;
  if (rule.pick) whole.front() = picked.of;
  require_fit(wanted, whole, pieces, layout == Layout::transposed);
  const Piece& first = pieces.front();
  if (pieces.size() == 1 && first.file && layout == Layout::rows && !rule.pick && first.dtype() == wanted.dtype &&
      is_aligned(first.file->bytes(first.name).data(), wanted.dtype))
    return Array(wanted.dtype, wanted.shape, first.file->share(first.name));
  if (!wanted.slice.ranges.empty() && wanted.slice.axis == 0 && layout == Layout::rows && !rule.pick)
    return gather_rows(pieces, wanted);
  const Array gathered(wanted.dtype, whole, false);
  gather(pieces, gathered);
  if (layout == Layout::plus_one) add_one(gathered);
  if (!rule.pick && layout != Layout::transposed) return gathered;
  Array array(wanted.dtype, wanted.shape, false);
  if (rule.pick) pick_rows(gathered, picked, array);
  else
    transpose(static_cast<const char*>(gathered.data()), static_cast<char*>(array.data()), wanted.shape[1],
              wanted.shape[0], size_of(wanted.dtype));
  return array;
}

}  // namespace attn::models
