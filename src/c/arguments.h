// What a C function is given, checked and turned into what the C++ operator takes; what that throws, turned back.
#pragma once

#include <functional>

#include "attn/attention_statistics.h"
#include "attn/c_linear.h"
#include "attn/c_statistics.h"
#include "attn/linear_attention.h"
#include "attn/linear_convolution.h"
#include "core/checker.h"

struct attn_kv_cache {
  attn::KVCache cache;
};

namespace attn::c {

/// The status of the exception being handled; its text becomes what attn_last_error() says on this thread.
attn_status status_of_exception() noexcept;

template <class Body>
attn_status guarded(const Body& body) noexcept {
  try {
    body();
    return ATTN_OK;
  } catch (...) {
    return status_of_exception();
  }
}

/// Collects what is wrong with the arguments of one function, by their names. What is wrong comes back empty.
class Arguments {
 public:
  explicit Arguments(const char* function) : checker_(function) {}
  /// Throws Error with every reason.
  void done() const { checker_.done(); }
  /// body() calls the C++ function. Where something is wrong already that is a dry run, and what the function finds
  /// wrong with the other arguments joins the Error.
  template <class Body>
  void call(const Body& body) {
    if (!checker_.ok()) run_dry(body);
    done();
    body();
  }

  void require(bool condition, const char* reason) { checker_.require(condition, reason); }
  /// A pointer that may not be null.
  bool given(const char* name, const void* pointer);
  /// One without which there is no call.
  void needed(const char* name, const void* pointer) { can_run_dry_ = given(name, pointer) && can_run_dry_; }
  template <int Rank>
  View<Rank> tensor(const char* name, const attn_tensor* tensor) {
    return given(name, tensor) ? optional<Rank>(name, tensor) : View<Rank>();
  }
  /// One that the shapes of all others are judged by.
  template <int Rank>
  View<Rank> base(const char* name, const attn_tensor* pointer) {
    can_run_dry_ = pointer && pointer->rank == Rank && can_run_dry_;
    return tensor<Rank>(name, pointer);
  }
  /// A null pointer is a view without data.
  template <int Rank>
  View<Rank> optional(const char* name, const attn_tensor* tensor);
  std::span<const int64_t> span(const char* name, const attn_int64s& values);
  AttentionOptions options(const attn_options* options);
  LinearAttentionOptions options(const attn_linear_options* options);
  CausalConvolutionOptions options(const attn_convolution_options* options);
  /// Of any rank from 1 to 4.
  attn_tensor any_rank(const char* name, const attn_tensor* tensor);
  DType dtype(const char* name, int32_t value);
  attn_executor executor(const attn_executor* executor);
  AttentionGradients gradients(const attn_gradients* gradients);
  LinearAttentionGradients gradients(const attn_linear_gradients* gradients);
  CausalConvolutionGradients gradients(const attn_convolution_gradients* gradients);
  KVCacheConfig config(const attn_kv_cache_config* config);
  AttentionStatistics statistics(const attn_statistics* statistics, std::vector<KeyBand>& bands);
  template <class Statistics>
  Statistics rows(const char* name, const attn_row_statistics* rows);
  /// The size in front of a struct of `known` bytes; 0 if it is none.
  size_t struct_size(const char* name, const void* pointer, size_t known);

 private:
  template <class T>
  T copy(const char* name, const T* pointer);
  template <class T>
  std::span<const T> values(const char* name, const T* data, int64_t count);
  bool flag(const char* name, int32_t value);
  /// `type` is what C calls the enumeration; both number it from 0 to `last`.
  template <class Enum>
  Enum enumerator(const char* name, int32_t value, const char* type, Enum last);
  struct Convert;
  /// Records `reason` about the argument of this name.
  template <class Reason>
  bool require_of(const char* name, bool condition, const Reason& reason);
  void run_dry(const std::function<void()>& call);

  Checker checker_;
  std::string within_;              // is before names in messages: "options."
  std::vector<std::string> wrong_;  // names of what has come back empty
  bool can_run_dry_ = true;
  AttentionOptions options_;
};

}  // namespace attn::c
