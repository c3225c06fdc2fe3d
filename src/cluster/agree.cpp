// Before a call sends anything: do all ranks make the same one, and is it right on each?
#include <algorithm>
#include <cstring>
#include <string>

#include "cluster/call.h"

namespace attn::cluster {
namespace {

/// A sum of everything that is added, in its order (FNV-1a by words).
class Sum {
 public:
  void add(uint64_t word) { sum_ = (sum_ ^ word) * 0x100000001b3U; }
  void add(int64_t word) { add(static_cast<uint64_t>(word)); }
  void add(bool flag) { add(uint64_t{flag}); }
  void add(double x) {
    uint64_t word = 0;
    std::memcpy(&word, &x, sizeof word);
    add(word);
  }
  void add(const std::optional<double>& x) {
    add(x.has_value());
    add(x.value_or(0));
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum x) { add(static_cast<uint64_t>(x)); }
  template <class T>
  void add(std::span<const T> values) {
    add(uint64_t{values.size()});
    for (const T value : values) add(value);
  }
  void add(const Window& window) {
    add(window.left);
    add(window.right);
  }
  void add(const BlockLayout& blocks) {
    add(blocks.allowed);
    add(blocks.offsets);
    add(blocks.indices);
    add(blocks.query_block);
    add(blocks.key_block);
  }
  void add(const Shard& shard) {
    add(shard.first_batch);
    add(shard.first_head);
  }
  void add(const std::string& text) {
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
  }
  void add(const Placement& placement) {
    for (int64_t place = 0; place < placement.chunks(); ++place) add(placement.chunk(place).begin);
    for (int rank = 0; rank <= placement.ranks(); ++rank) add(placement.first_place(rank));
    add(placement.tokens());
  }
  /// Elements of a boolean or integer array.
  template <int Rank>
  void add(const ConstView<Rank>& view) {
    add(view.data != nullptr);
    for (const int64_t n : view.size) add(n);
    if (!view) return;
    Shape<Rank> at{};
    for (int64_t count = view.count(); count > 0; --count) {
      int64_t offset = 0;
      for (int axis = 0; axis < Rank; ++axis) offset += at[axis] * view.stride[axis];
      add(element(view, offset));
      for (int axis = Rank - 1; axis >= 0 && ++at[axis] == view.size[axis]; --axis) at[axis] = 0;
    }
  }
  uint64_t value() const { return sum_; }

 private:
  template <int Rank>
  static int64_t element(const ConstView<Rank>& view, int64_t offset) {
    if (view.dtype == DType::boolean) return static_cast<const uint8_t*>(view.data)[offset] != 0;
    if (view.dtype == DType::int32) return static_cast<const int32_t*>(view.data)[offset];
    return static_cast<const int64_t*>(view.data)[offset];
  }

  uint64_t sum_ = 0xcbf29ce484222325U;
};

/// What must be the same on all ranks, in the order in which it is named.
enum Part { kShapes, kSharding, kOptions, kMaskOrBias, kArithmetic, kSchedule, kParts };
constexpr const char* kNames[kParts] = {"the shapes or the type of the arrays",
                                        "the sharding",
                                        "the options",
                                        "the presence or shape of a mask or a bias",
                                        "the instruction set (set ATTN_ISA on all ranks)",
                                        "the schedule"};

struct Status {
  uint64_t sums[kParts];
  int64_t reason_bytes;
  Wants wants;
};

Status status_of(const Whole& whole, const AttentionOptions& rows, Schedule schedule) {
  Sum sums[kParts];
  const ClusterShape& shape = whole.shape();
  for (const int64_t n : {shape.B, shape.H, shape.Hk, shape.D, shape.Dv}) sums[kShapes].add(n);
  sums[kShapes].add(shape.dtype);
  sums[kSharding].add(whole.sharding().queries);
  sums[kSharding].add(whole.sharding().keys);
  each_option([&](const AttentionOption&, const auto& value) { sums[kOptions].add(value); }, whole.options());
  for (const ConstView<4>& view : {rows.mask, rows.bias})
    for (const int axis : {0, 1, 3}) sums[kMaskOrBias].add(view.size[axis]);  // the rows of a rank are its own
  sums[kArithmetic].add(active_isa());
  sums[kSchedule].add(schedule);
  Status status{};
  for (int part = 0; part < kParts; ++part) status.sums[part] = sums[part].value();
  return status;
}

std::string joined(const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : "; ") + reason;
  return text;
}

/// The status of every rank. Throws the reasons of the first rank that has some.
std::vector<Status> gather(Communicator& ranks, const char* operation, Status mine, std::string text) {
  mine.reason_bytes = static_cast<int64_t>(text.size());
  std::vector<Status> all(ranks.size());
  ranks.all_gather(&mine, sizeof mine, all.data());
  int64_t longest = 0;
  for (const Status& status : all) longest = std::max(longest, status.reason_bytes);
  if (longest == 0) return all;
  text.resize(longest);
  std::string texts(longest * ranks.size(), ' ');
  ranks.all_gather(text.data(), longest, texts.data());
  int rank = 0;
  while (all[rank].reason_bytes == 0) ++rank;
  throw Error(operation,
              {"rank " + std::to_string(rank) + ": " + texts.substr(rank * longest, all[rank].reason_bytes)});
}

Error differ(const char* operation, const char* what, int rank, int first) {
  return {operation,
          {std::string("rank ") + std::to_string(rank) + " and rank " + std::to_string(first) + " differ in " + what +
           ", must be the same on all ranks"}};
}

}  // namespace

uint32_t agree(Communicator& ranks, const char* operation, const std::vector<std::string>& reasons, const Whole& whole,
               const AttentionOptions& rows, Schedule schedule, Wants wants) {
  if (ranks.size() == 1) {
    if (!reasons.empty()) throw Error(operation, reasons);
    return wants.bits;
  }
  Status mine = reasons.empty() ? status_of(whole, rows, schedule) : Status{};
  mine.wants = wants;
  const std::vector<Status> all = gather(ranks, operation, mine, joined(reasons));
  uint32_t all_bits = 0;
  for (const Status& status : all) all_bits |= status.wants.bits;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Status& status = all[rank];
    for (int part = 0; part < kParts; ++part) {
      if (status.sums[part] != all[0].sums[part]) throw differ(operation, kNames[part], rank, 0);
    }
    if (status.wants.bits != (all_bits & status.wants.known))
      throw differ(operation, "the gradients that they want or have", rank, rank == 0 ? 1 : 0);
  }
  return all_bits;
}

void agree_on_shape(Communicator& ranks, const char* operation, const std::vector<std::string>& reasons,
                    const Shape<4>& size, DType dtype) {
  if (ranks.size() == 1) {
    if (!reasons.empty()) throw Error(operation, reasons);
    return;
  }
  Sum sum;
  for (const int64_t n : size) sum.add(n);
  sum.add(dtype);
  Status mine{};
  mine.sums[kShapes] = sum.value();
  const std::vector<Status> all = gather(ranks, operation, mine, joined(reasons));
  for (int rank = 1; rank < ranks.size(); ++rank)
    if (all[rank].sums[kShapes] != all[0].sums[kShapes]) throw differ(operation, kNames[kShapes], rank, 0);
}

void synchronize(Communicator& ranks, const std::string& step) {
  if (ranks.size() == 1) return;
  Sum sum;
  sum.add(step);
  Status mine{};
  mine.sums[kShapes] = sum.value();
  for (const std::vector<Status> all = gather(ranks, "cluster", mine, ""); const Status& status : all)
    if (status.sums[kShapes] != mine.sums[kShapes])
      throw Error("cluster", {"the ranks make different calls: this one is at the step '" + step + "'"});
}

void refuse(Communicator& ranks, const std::string& reason) {
  if (ranks.size() > 1) gather(ranks, "cluster", {}, reason);
  throw Error("cluster", {reason});
}

std::vector<std::string> reasons_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.reasons();
  }
  return {};
}

}  // namespace attn::cluster
