// What a C function is given, checked and turned into what the C++ operator takes; what that throws, turned back.
#pragma once

#include "attn/attention.h"
#include "attn/c.h"
#include "core/checker.h"

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

  void require(bool condition, const char* reason) { checker_.require(condition, reason); }
  /// A pointer that may not be null.
  bool given(const char* name, const void* pointer);
  template <int Rank>
  View<Rank> tensor(const char* name, const attn_tensor* tensor) {
    return given(name, tensor) ? optional<Rank>(name, tensor) : View<Rank>();
  }
  /// A null pointer is a view without data.
  template <int Rank>
  View<Rank> optional(const char* name, const attn_tensor* tensor);
  std::span<const int64_t> span(const char* name, const attn_int64s& values);
  AttentionOptions options(const attn_options* options);
  AttentionGradients gradients(const attn_gradients* gradients);
  KvCache::Config config(const attn_cache_config* config);
  /// The size in front of a struct of `known` bytes; 0 if it is none.
  size_t struct_size(const char* name, const void* pointer, size_t known);

 private:
  template <class T>
  T copy(const char* name, const T* pointer);
  template <class T>
  std::span<const T> values(const char* name, const T* data, int64_t count);
  bool flag(const char* name, int32_t value);
  DType dtype(const char* name, int32_t value);

  Checker checker_;
};

}  // namespace attn::c
