// Errors: one exception type, and a collector so that a caller learns everything that is wrong at once.
#include <algorithm>
#include <utility>

#include "attn/core.h"
#include "core/checker.h"

namespace attn {
namespace {

std::string message_of(std::string_view operation, const std::vector<std::string>& reasons) {
  std::string message = "[" + std::string(operation) + "]";
  const char* separator = " ";
  for (const std::string& reason : reasons) {
    message += separator + reason;
    separator = "; ";
  }
  return message;
}

}  // namespace

std::string to_string(const int64_t* size, int rank) {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(size[axis]);
  }
  return text + "]";
}

void refuse_shape(const int64_t* size, int rank) {
  const bool negative = std::any_of(size, size + rank, [](int64_t extent) { return extent < 0; });
  throw Error("shape",
              {to_string(size, rank) + (negative ? " has a negative extent" : " is larger than 2^63 - 1 bytes")});
}

int64_t offset_of_slice(const int64_t* size, const int64_t* stride, int rank, DType dtype, int axis, int64_t begin,
                        int64_t end) {
  if (axis < 0 || axis >= rank)
    throw Error("slice", {"the axis is " + std::to_string(axis) + ", must be in [0, " + std::to_string(rank) +
                          ") for " + to_string(size, rank)});
  if (begin < 0 || end < begin || end > size[axis])
    throw Error("slice",
                {std::to_string(begin) + " to " + std::to_string(end) + ", the end not included, is not in axis " +
                 std::to_string(axis) + " of " + to_string(size, rank)});
  return begin < end ? begin * stride[axis] * size_of(dtype) : 0;
}

void require_permutation(const int* axes, int rank) {
  std::vector<int64_t> given(axes, axes + rank), sorted = given;
  std::sort(sorted.begin(), sorted.end());
  for (int axis = 0; axis < rank; ++axis)
    if (sorted[axis] != axis)
      throw Error("permute", {"the axes are " + to_string(given.data(), rank) + ", must name each of 0 to " +
                              std::to_string(rank - 1) + " once"});
}

int64_t width_of_heads(int64_t columns, int64_t heads) {
  if (heads < 1 || columns % heads != 0)
    throw Error("heads", {"the count is " + std::to_string(heads) + ", must divide the " + std::to_string(columns) +
                          " columns"});
  return columns / heads;
}

Error::Error(std::string_view operation, std::vector<std::string> reasons)
    : std::runtime_error(message_of(operation, reasons)), operation_(operation), reasons_(std::move(reasons)) {}

namespace {

thread_local bool dry_run = false;

}  // namespace

void Checker::done() const {
  if (!ok() || dry_run) throw Error(operation_, reasons_);
}

DryRun::DryRun() { dry_run = true; }
DryRun::~DryRun() { dry_run = false; }

}  // namespace attn
