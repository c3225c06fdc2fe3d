// arguments: Python objects as the library's views and options. What cannot be taken is collected and raised at once.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/attention.h"

namespace bindings {

namespace nb = nanobind;

/// The arrays of one call. Nothing is copied: every view stays valid as long as this object, which keeps its owner.
///
/// An array is anything that speaks DLPack or the buffer protocol and lies in the memory of the CPU, or a tuple
/// (address, dtype name, shape, strides in elements) of an array that the caller keeps alive. Missing leading axes
/// count as 1, so that a single head may be given as [L, D].
class Arguments {
 public:
  explicit Arguments(std::string operation) : operation_(std::move(operation)) {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// A view without data for None.
  template <int Rank>
  attn::ConstView<Rank> input(const char* name, nb::handle object) {
    return typed<Rank>(take(name, object, Rank, false));
  }
  template <int Rank>
  attn::View<Rank> output(const char* name, nb::handle object) {
    return typed<Rank>(take(name, object, Rank, true));
  }
  /// Whole numbers from a list, a tuple or a one-dimensional array; none for None.
  std::span<const int64_t> integers(const char* name, nb::handle object);
  std::span<const float> numbers(const char* name, nb::handle object);

  /// The options of attention(), by their names in attn::AttentionOptions.
  attn::AttentionOptions options(const nb::dict& given);

  /// Raises TypeError or ValueError if anything could not be taken. To be called before the views are used.
  void done() const;

 private:
  struct Taken {
    void* data = nullptr;
    attn::DType dtype = attn::DType::float32;
    std::vector<int64_t> size, stride;
  };

  template <int Rank>
  static attn::View<Rank> typed(const Taken& array) {
    attn::View<Rank> view;
    if (!array.data) return view;
    view.data = array.data;
    view.dtype = array.dtype;
    for (int axis = 0; axis < Rank; ++axis) {
      view.size[axis] = array.size[axis];
      view.stride[axis] = array.stride[axis];
    }
    return view;
  }

  Taken take(const char* name, nb::handle object, int rank, bool writable);
  Taken take_raw(const char* name, const nb::tuple& raw, int rank);
  Taken take_array(const char* name, nb::handle object, int rank, bool writable);
  /// A reason, and nothing is read, where the type is none of ours or there are too many or too few axes.
  bool has_type(const char* name, const std::string& type, attn::DType* to);
  bool has_axes(const char* name, size_t given, int rank);
  template <class T>
  std::span<const T> values(const char* name, nb::handle object, const char* what, std::vector<std::vector<T>>& kept);
  void set_option(attn::AttentionOptions& options, const std::string& name, nb::handle value);
  /// The value of an option; a reason where it has another type.
  template <class T>
  T scalar(const char* name, nb::handle value, const char* expected);
  void wrong_value(std::string reason) { reasons_.push_back(std::move(reason)); }
  void wrong_type(std::string reason) {
    is_type_error_ = true;
    reasons_.push_back(std::move(reason));
  }

  std::string operation_;
  std::vector<std::string> reasons_;
  bool is_type_error_ = false;
  std::vector<nb::object> owners_;
  std::vector<nb::ndarray<nb::ro>> arrays_;
  std::vector<nb::ndarray<>> writable_arrays_;
  std::vector<std::vector<int64_t>> integers_;
  std::vector<std::vector<float>> numbers_;
};

/// The type of this name; raises ValueError that lists the choices.
attn::DType dtype_named(const std::string& operation, const std::string& name);

}  // namespace bindings
