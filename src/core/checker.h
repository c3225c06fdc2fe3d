// The collector after every public boundary: all that is wrong with a call goes into one Error.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/core.h"

namespace attn {

/// What a message says after a shape to which an array is broadcast.
inline constexpr const char* kAxesMayBeOne = " (each axis may be 1)";

/// Collects violated conditions and throws them all at once. Exported for attn::models.
class [[gnu::visibility("default")]] Checker {
 public:
  explicit Checker(std::string_view operation) : operation_(operation) {}  // borrowed
  /// Records `reason`, a text or a callable that makes one, unless `condition` holds; returns `condition`.
  template <class Reason>
  bool require(bool condition, const Reason& reason) {
    if constexpr (std::is_invocable_v<const Reason&>) {
      if (!condition) reasons_.push_back(reason());
    } else if (!condition) {
      reasons_.emplace_back(reason);
    }
    return condition;
  }
  bool ok() const { return reasons_.empty(); }
  /// Throws Error if anything was recorded, or while a DryRun lives on this thread.
  void done() const;

 private:
  std::string_view operation_;
  std::vector<std::string> reasons_;
};

/// While one lives, every done() of its thread throws: a call can be tried for what it finds wrong, and writes nothing.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;
};

}  // namespace attn
