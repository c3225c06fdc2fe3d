// Views from DLPack, the buffer protocol or raw addresses, and options from a dictionary.
#include "arguments.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "exchange.h"
#include "shorten.h"

namespace bindings {
namespace {

using nb::dlpack::dtype_code;

/// Our types as DLPack has them.
constexpr struct {
  attn::DType dtype;
  dtype_code code;
  uint8_t bits;
} kTypes[] = {{attn::DType::float32, dtype_code::Float, 32}, {attn::DType::bfloat16, dtype_code::Bfloat, 16},
              {attn::DType::float16, dtype_code::Float, 16}, {attn::DType::float64, dtype_code::Float, 64},
              {attn::DType::boolean, dtype_code::Bool, 8},   {attn::DType::int32, dtype_code::Int, 32},
              {attn::DType::int64, dtype_code::Int, 64}};
// In the order of their enumerations; an alignment that is not specified has no name.
constexpr const char* kPrecisions[] = {"full", "high", "fast"};
constexpr const char* kAlignments[] = {"top_left", "bottom_right", "offset"};
std::atomic<attn::Float32Precision> default_precision{attn::Float32Precision::full};

/// "full, high or fast"
std::string listed(const char* const (&choices)[3]) {
  return std::string(choices[0]) + ", " + choices[1] + " or " + choices[2];
}

alignas(64) char empty_array[64];  // where an array without elements is: a view without data means "not given"

std::string kind_of(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__name__"))); }

/// (address, dtype name, shape, strides)
bool is_raw(nb::handle object) {
  return nb::isinstance<nb::tuple>(object) && nb::len(object) == 4 && nb::isinstance<nb::str>(object[1]);
}

bool is_sequence(nb::handle object) {
  return nb::isinstance<nb::list>(object) || (nb::isinstance<nb::tuple>(object) && !is_raw(object));
}

std::optional<attn::DType> find_type(const std::string& name) {
  for (const auto& type : kTypes)
    if (attn::name_of(type.dtype) == name) return type.dtype;
  return std::nullopt;
}

std::optional<attn::DType> find_type(const nb::dlpack::dtype& given) {
  for (const auto& type : kTypes)
    if (given.code == static_cast<uint8_t>(type.code) && given.bits == type.bits && given.lanes == 1) return type.dtype;
  return std::nullopt;
}

std::string name_of(nb::dlpack::dtype type) {
  const auto code = static_cast<dtype_code>(type.code);
  if (code == dtype_code::Bool) return "boolean";
  const char* kind = code == dtype_code::Float     ? "float"
                     : code == dtype_code::Bfloat  ? "bfloat"
                     : code == dtype_code::Int     ? "int"
                     : code == dtype_code::UInt    ? "uint"
                     : code == dtype_code::Complex ? "complex"
                                                   : "unknown";
  return kind + std::to_string(type.bits) + (type.lanes == 1 ? "" : "x" + std::to_string(type.lanes));
}

}  // namespace

attn::DType dtype_named(const std::string& operation, const std::string& name) {
  if (const auto type = find_type(name); type && attn::is_floating(*type)) return *type;
  throw attn::Error(operation, {"unknown dtype '" + name + "'; known are: float32, float64, bfloat16, float16"});
}

// ------------------------------------------------------------------------------------------------------------- arrays

Arguments::~Arguments() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool Arguments::has_axes(const char* name, size_t given, int rank) {
  const int fewest = rank == 4 ? 2 : 1;
  if (given >= static_cast<size_t>(fewest) && given <= static_cast<size_t>(rank)) return true;
  wrong_value(std::string(name) + " has " + std::to_string(given) + " axes, must have " + std::to_string(fewest) +
              (fewest == rank ? "" : " to " + std::to_string(rank)));
  return false;
}

Arguments::Taken Arguments::take_raw(const char* name, const nb::tuple& raw, int rank) {
  Taken array;
  const auto size = nb::cast<std::vector<int64_t>>(raw[2]), stride = nb::cast<std::vector<int64_t>>(raw[3]);
  const auto type = nb::cast<std::string>(raw[1]);
  const auto known = find_type(type);
  if (!known) wrong_type(std::string(name) + " is " + type + ", which is not supported");
  if (!known || !has_axes(name, size.size(), rank)) return {};
  array.dtype = *known;
  array.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(raw[0]));
  array.rank = static_cast<int>(size.size());
  std::copy(size.begin(), size.end(), array.size.begin());
  std::copy_n(stride.begin(), size.size(), array.stride.begin());
  return array;
}

Arguments::Taken Arguments::described(const char* name, const nb::dlpack::dtype& type, void* data, int32_t axes,
                                      const int64_t* size, const int64_t* stride, int rank) {
  const auto known = find_type(type);
  if (!known) wrong_type(std::string(name) + " is " + name_of(type) + ", which is not supported");
  if (!known || !has_axes(name, static_cast<size_t>(axes), rank)) return {};
  Taken array;
  array.data = data;
  array.dtype = *known;
  array.rank = axes;
  std::copy_n(size, axes, array.size.begin());
  std::copy_n(stride, axes, array.stride.begin());
  return array;
}

Arguments::Taken Arguments::take_exchanged(const char* name, nb::handle object, int rank) {
  nb::dlpack::dltensor tensor;
  if (!read_exchanged(object, &tensor)) {
    wrong_type(std::string(name) + " cannot be read: it is not a dense tensor of numbers");
    return {};
  }
  if (tensor.device.device_type != nb::device::cpu::value) return not_on_cpu(name), Taken{};
  return described(name, tensor.dtype, static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.ndim, tensor.shape,
                   tensor.strides, rank);
}

bool Arguments::take_buffer(const char* name, nb::handle object, int rank, bool writable, Taken* to) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  Py_buffer& buffer = buffers_.emplace_back();
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    PyErr_Clear();
    buffers_.pop_back();
    return false;
  }
  const std::string_view format = buffer.format ? buffer.format : "";
  const auto code = format.empty() || format.size() > 1                                 ? std::optional<dtype_code>()
                    : std::string_view("efd").find(format[0]) != std::string_view::npos ? dtype_code::Float
                    : std::string_view("ilq").find(format[0]) != std::string_view::npos ? dtype_code::Int
                    : format == "?" ? std::optional(dtype_code::Bool)
                                    : std::nullopt;
  std::array<int64_t, kMaxRank> size{}, stride{};
  bool good = code && buffer.ndim > 0 && buffer.ndim <= kMaxRank;
  for (int axis = 0; good && axis < buffer.ndim; ++axis) {
    good = buffer.strides[axis] % buffer.itemsize == 0;
    size[static_cast<size_t>(axis)] = buffer.shape[axis];
    stride[static_cast<size_t>(axis)] = buffer.strides[axis] / buffer.itemsize;
  }
  if (!good) {
    PyBuffer_Release(&buffer);
    buffers_.pop_back();
    return false;
  }
  const nb::dlpack::dtype type{static_cast<uint8_t>(*code), static_cast<uint8_t>(8 * buffer.itemsize), 1};
  *to = described(name, type, buffer.buf, buffer.ndim, size.data(), stride.data(), rank);
  return true;
}

Arguments::Taken Arguments::take_array(const char* name, nb::handle object, int rank, bool writable) {
  if (Taken buffer; take_buffer(name, object, rank, writable, &buffer)) return buffer;
  nb::ndarray<nb::ro> view;
  if (writable) {
    nb::ndarray<> own;
    if (!nb::try_cast(object, own, false)) {
      if (nb::try_cast(object, view, false)) wrong_value(std::string(name) + " is read-only");
      else
        wrong_type(std::string(name) + " must be a writable array (DLPack or buffer protocol), not " + kind_of(object));
      return {};
    }
    view = nb::ndarray<nb::ro>(own);
    writable_arrays_.push_back(std::move(own));
  } else if (!nb::try_cast(object, view, false)) {
    wrong_type(std::string(name) + " must be an array (DLPack or buffer protocol), not " + kind_of(object) +
               (nb::ndarray_check(object) ? " that cannot be exported: its elements are not native numbers, or it "
                                            "requires a gradient"
                                          : ""));
    return {};
  }
  if (view.device_type() != nb::device::cpu::value) return not_on_cpu(name), Taken{};
  arrays_.push_back(view);
  owners_.push_back(nb::borrow(object));
  return described(name, view.dtype(), const_cast<void*>(view.data()), static_cast<int32_t>(view.ndim()),
                   view.shape_ptr(), view.stride_ptr(), rank);
}

Arguments::Taken Arguments::take(const char* name, nb::handle object, int rank, bool writable) {
  if (object.is_none()) return {};
  Taken array = has_exchange(object) ? take_exchanged(name, object, rank)
                : is_raw(object)     ? take_raw(name, nb::borrow<nb::tuple>(object), rank)
                                     : take_array(name, object, rank, writable);
  if (array.rank == 0) return {};

  const auto end = array.size.begin() + array.rank;
  if (std::find(array.size.begin(), end, 0) != end) array.data = empty_array;
  if (reinterpret_cast<uintptr_t>(array.data) % static_cast<uintptr_t>(attn::size_of(array.dtype)) != 0) {
    wrong_value(std::string(name) + " is not at a multiple of its element's size");
    return {};
  }
  return array;
}

// ------------------------------------------------------------------------------------------------------------ numbers

namespace {

/// Element `at` as one of ours; false for another type.
bool read(const attn::ConstView<1>& from, int64_t at, int64_t* to) {
  if (from.dtype == attn::DType::int32) *to = static_cast<const int32_t*>(from.data)[at];
  else if (from.dtype == attn::DType::int64) *to = static_cast<const int64_t*>(from.data)[at];
  else return false;
  return true;
}

bool read(const attn::ConstView<1>& from, int64_t at, float* to) {
  if (from.dtype == attn::DType::float32) *to = static_cast<const float*>(from.data)[at];
  else if (from.dtype == attn::DType::float64) *to = static_cast<float>(static_cast<const double*>(from.data)[at]);
  else if (from.dtype == attn::DType::bfloat16) *to = static_cast<const attn::bfloat16*>(from.data)[at];
  else if (from.dtype == attn::DType::float16) *to = static_cast<const attn::float16*>(from.data)[at];
  else return false;
  return true;
}

}  // namespace

template <class T>
std::span<const T> Arguments::values(const char* name, nb::handle object, const char* what,
                                     std::vector<std::vector<T>>& kept) {
  if (object.is_none()) return {};
  std::vector<T> values;
  bool good = true;
  if (is_sequence(object)) {
    good = nb::try_cast(object, values);
  } else if (const attn::ConstView<1> array = input<1>(name, object); array) {
    values.resize(static_cast<size_t>(array.size[0]));
    for (int64_t n = 0; n < array.size[0] && good; ++n)
      good = read(array, n * array.stride[0], &values[static_cast<size_t>(n)]);
  }
  if (!good) wrong_type(std::string(name) + " must hold " + what);
  kept.push_back(std::move(values));
  return kept.back();
}

std::span<const int64_t> Arguments::integers(const char* name, nb::handle object) {
  return values(name, object, "whole numbers: a list, or int32 or int64", integers_);
}

std::span<const float> Arguments::numbers(const char* name, nb::handle object) {
  return values(name, object, "numbers: a list, or a floating type", numbers_);
}

// ------------------------------------------------------------------------------------------------------------ options

template <class T>
bool Arguments::read_scalar(const char* name, nb::handle value, const char* expected, T* to) {
  if (nb::try_cast(value, *to)) return true;
  wrong_type(std::string(name) + " must be " + expected + ", not " + kind_of(value));
  return false;
}

template <class Enum, size_t N>
void Arguments::read_choice(const char* name, nb::handle value, const char* const (&choices)[N], int first, Enum* to) {
  std::string chosen;
  if (!read_scalar(name, value, "a string", &chosen)) return;
  const auto found = std::find(choices, choices + N, chosen);
  if (found == choices + N) return wrong_value(std::string(name) + " is '" + chosen + "', must be " + listed(choices));
  *to = static_cast<Enum>(first + (found - choices));
}

/// Reads the value of an option as what the option's type is.
struct Arguments::Read {
  Arguments& in;
  nb::handle value;

  void operator()(const char* name, bool& to) const { in.read_scalar(name, value, "True or False", &to); }
  void operator()(const char* name, double& to) const { in.read_scalar(name, value, "a number", &to); }
  void operator()(const char* name, std::optional<double>& to) const { (*this)(name, to.emplace()); }
  void operator()(const char* name, uint64_t& to) const {
    in.read_scalar(name, value, "a whole number in [0, 2^64)", &to);
  }
  void operator()(const char* name, attn::Alignment& to) const { in.read_choice(name, value, kAlignments, 1, &to); }
  void operator()(const char* name, attn::Float32Precision& to) const {
    in.read_choice(name, value, kPrecisions, 0, &to);
  }
  void operator()(const char* name, std::span<const int64_t>& to) const { to = in.integers(name, value); }
  void operator()(const char* name, std::span<const float>& to) const { to = in.numbers(name, value); }
  template <int Rank>
  void operator()(const char* name, attn::ConstView<Rank>& to) const {
    to = in.input<Rank>(name, value);
  }
  void operator()(const char* name, attn::Window& to) const {
    std::vector<int64_t> sides;
    if (nb::try_cast(value, sides) && sides.size() == 2) to = {sides[0], sides[1]};
    else in.wrong_type(std::string(name) + " must be (left, right), -1 = no limit");
  }
  void operator()(const char* name, attn::Shard& to) const {
    std::vector<int64_t> n;
    if (nb::try_cast(value, n) && n.size() == 6) to = {n[0], n[1], n[2], n[3], n[4], n[5]};
    else
      in.wrong_type(std::string(name) +
                    " must be six whole numbers: (first_batch, first_head, first_query, first_key, queries, keys)");
  }
  void operator()(const char* name, attn::BlockLayout& to) const {
    const size_t parts = nb::isinstance<nb::tuple>(value) ? nb::len(value) : 0;
    if (parts != 3 && parts != 4)
      return in.wrong_type(std::string(name) +
                           " must be (allowed, query_block, key_block) or (offsets, indices, query_block, key_block)");
    if (parts == 3) to.allowed = in.input<4>("blocks.allowed", value[0]);
    if (parts == 4) to.offsets = in.input<3>("blocks.offsets", value[0]);
    if (parts == 4) to.indices = in.input<1>("blocks.indices", value[1]);
    in.read_scalar("blocks.query_block", value[parts - 2], "a whole number", &to.query_block);
    in.read_scalar("blocks.key_block", value[parts - 1], "a whole number", &to.key_block);
  }
};

void set_float32_precision(const std::string& name) {
  const auto found = std::find(std::begin(kPrecisions), std::end(kPrecisions), name);
  if (found == std::end(kPrecisions))
    throw attn::Error("float32_precision", {"unknown precision '" + name + "'; known are: " + listed(kPrecisions)});
  default_precision.store(static_cast<attn::Float32Precision>(found - kPrecisions), std::memory_order_relaxed);
}

std::string float32_precision() {
  return kPrecisions[static_cast<size_t>(default_precision.load(std::memory_order_relaxed))];
}

attn::AttentionOptions Arguments::options(nb::handle given) {
  attn::AttentionOptions options;
  options.float32_precision = default_precision.load(std::memory_order_relaxed);
  for (const auto& [key, value] : given_of(given)) {
    if (value.is_none()) continue;
    const std::string_view name = nb::cast<const char*>(key);
    bool is_known = false;
    attn::each_option(
        [&](const attn::AttentionOption& option, auto& to) {
          if (is_known || name != option.name) return;
          is_known = true;
          Read{*this, value}(option.name, to);
        },
        options);
    if (!is_known) wrong_type("unknown option '" + std::string(name) + "'");
  }
  return options;
}

attn::AttentionOptions Arguments::options(nb::handle given, const attn::ConstView<4>& q, const attn::ConstView<4>& k) {
  attn::AttentionOptions found = options(given);
  shorten_mask(found, q, k, integers_.emplace_back());
  return found;
}

attn::LinearAttentionOptions Arguments::linear_options(const nb::dict& given) {
  attn::LinearAttentionOptions options;
  const auto read = [&](const char* name, auto& to) {
    const nb::object value = item_of(given, name);
    if (!value.is_none()) Read{*this, value}(name, to);
  };
  read("scale", options.scale);
  read("log_decay", options.log_decay);
  read("beta", options.beta);
  read("delta", options.delta);
  read("l2norm", options.l2norm);
  read("l2norm_epsilon", options.l2norm_epsilon);
  read("normalize", options.normalize);
  read("initial_state", options.initial_state);
  read("cu_seqlens", options.cu_seqlens);
  return options;
}

nb::dict given_of(nb::handle options) {
  PyObject* const given = PyObject_GenericGetDict(options.ptr(), nullptr);  // 30 ns less than a look-up by name
  if (!given) throw nb::python_error();
  return nb::steal<nb::dict>(given);
}

nb::list option_list() {
  nb::list list;
  attn::AttentionOptions options;
  attn::each_option([&](const attn::AttentionOption& o,
                        const auto&) { list.append(nb::make_tuple(o.name, o.type, o.shape, o.otherwise, o.meaning)); },
                    options);
  return list;
}

void Arguments::done() const {
  if (reasons_.empty()) return;
  const attn::Error error(operation_, reasons_);
  if (is_type_error_) throw nb::type_error(error.what());
  throw error;
}

}  // namespace bindings
