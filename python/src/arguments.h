// arguments: Python objects as the library's views and options. What cannot be taken is collected and raised at once.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/linear_attention.h"

namespace bindings {

namespace nb = nanobind;

/// The value of a key of a dictionary; None if the key is missing.
inline nb::object item_of(const nb::dict& dictionary, const char* key) {
  return dictionary.contains(key) ? nb::object(dictionary[key]) : nb::object(nb::none());
}

/// What calls take that do not say a float32_precision: "full" at first. Raises Error for a name that there is not.
void set_float32_precision(const std::string& name);
std::string float32_precision();

/// The arrays of one call. Nothing is copied: every view stays valid as long as this object, which keeps its owner.
///
/// An array is anything that speaks DLPack or the buffer protocol and is in the memory of the CPU. Of two kinds it is
/// the caller who keeps them alive: tensors that are read through DLPack's C functions (exchange.h), and tuples
/// (address, dtype name, shape, strides in elements). Destroyed under the GIL. Missing leading axes count as 1, so that
/// a single head may be given as [L, D].
class Arguments {
 public:
  explicit Arguments(const char* operation) : operation_(operation) {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments();

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

  /// Options of Python as those of C++; without a float32_precision that of the process, see set_float32_precision().
  attn::AttentionOptions options(nb::handle given);
  /// The same for a call over q and k, with a mask that is only padding as key_length.
  attn::AttentionOptions options(nb::handle given, const attn::ConstView<4>& q, const attn::ConstView<4>& k);

  /// The options of linear_attention(), by name; one of None is not given.
  attn::LinearAttentionOptions linear_options(const nb::dict& given);

  /// Raises TypeError or ValueError if anything could not be taken. To be called before the views are used.
  void done() const;

 private:
  static constexpr int kMaxRank = 4;
  struct Taken {
    void* data = nullptr;
    attn::DType dtype = attn::DType::float32;
    int rank = 0;  // 0: nothing was taken
    std::array<int64_t, kMaxRank> size{}, stride{};
  };

  template <int Rank>
  static attn::View<Rank> typed(const Taken& array) {
    attn::View<Rank> view;
    if (!array.data) return view;
    view.data = array.data;
    view.dtype = array.dtype;
    for (int axis = 0; axis < Rank; ++axis) {
      const int given = axis - (Rank - array.rank);
      view.size[axis] = given < 0 ? 1 : array.size[static_cast<size_t>(given)];
      view.stride[axis] = given < 0 ? 0 : array.stride[static_cast<size_t>(given)];
    }
    return view;
  }

  Taken take(const char* name, nb::handle object, int rank, bool writable);
  Taken take_raw(const char* name, const nb::tuple& raw, int rank);
  Taken take_exchanged(const char* name, nb::handle object, int rank);
  /// What DLPack says of a tensor.
  Taken described(const char* name, const nb::dlpack::dtype& type, void* data, int32_t axes, const int64_t* size,
                  const int64_t* stride, int rank);
  Taken take_array(const char* name, nb::handle object, int rank, bool writable);
  /// By the buffer protocol, in a tenth of the time that DLPack takes in Python. False for what take_array() has to
  /// read or to refuse.
  bool take_buffer(const char* name, nb::handle object, int rank, bool writable, Taken* to);
  /// A reason where there are too many or too few axes: these are not read.
  bool has_axes(const char* name, size_t given, int rank);
  void not_on_cpu(const char* name) { wrong_value(std::string(name) + " is not in the memory of the CPU"); }
  template <class T>
  std::span<const T> values(const char* name, nb::handle object, const char* what, std::vector<std::vector<T>>& kept);
  struct Read;
  /// The value of an option; false, and a reason, where it has another type.
  template <class T>
  bool read_scalar(const char* name, nb::handle value, const char* expected, T* to);
  /// One of the choices, of which the enumeration calls the first `first`; a reason where it is none.
  template <class Enum, size_t N>
  void read_choice(const char* name, nb::handle value, const char* const (&choices)[N], int first, Enum* to);
  void wrong_value(std::string reason) { reasons_.push_back(std::move(reason)); }
  void wrong_type(std::string reason) {
    is_type_error_ = true;
    reasons_.push_back(std::move(reason));
  }

  const char* operation_;
  std::vector<std::string> reasons_;
  bool is_type_error_ = false;
  std::deque<Py_buffer> buffers_;  // which stay where they are: exporters may point into them
  std::vector<nb::object> owners_;
  std::vector<nb::ndarray<nb::ro>> arrays_;
  std::vector<nb::ndarray<>> writable_arrays_;
  std::vector<std::vector<int64_t>> integers_;
  std::vector<std::vector<float>> numbers_;
};

/// What the call throws, without what it says of arrays that the package has made: the caller has not given them, and
/// they are wrong because others are.
template <class Call>
void blaming_given(std::initializer_list<std::string_view> made, const Call& call) {
  try {
    call();
  } catch (const attn::Error& error) {
    std::vector<std::string> reasons;
    for (const std::string& reason : error.reasons())
      if (std::find(made.begin(), made.end(), reason.substr(0, reason.find(' '))) == made.end())
        reasons.push_back(reason);
    if (reasons.empty()) throw;
    throw attn::Error(error.operation(), reasons);
  }
}

/// What an attention_cpp._options.Options was given, by name.
nb::dict given_of(nb::handle options);

/// (name, type, shape, default, meaning) of every option.
nb::list option_list();

/// The type of this name; raises ValueError that lists the choices.
attn::DType dtype_named(const std::string& operation, const std::string& name);

}  // namespace bindings
