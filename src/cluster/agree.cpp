// Before a call sends anything: do all ranks make the same one, and is it right on each?
#include "cluster/status.h"
#include "cluster/sum.h"

namespace attn::cluster {
namespace {

Status status_of_arrays(const char* operation, const Whole& whole, const AttentionOptions& rows, Schedule schedule) {
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
  sums[kSchedule].add(schedule.keys);
  sums[kSchedule].add(int64_t{schedule.heads_group});
  Status status = status_of(operation);
  for (int part = kShapes; part < kParts; ++part) status.sums[part] = sums[part].value();
  return status;
}

}  // namespace

uint32_t agree(Communicator& ranks, const char* operation, const std::vector<std::string>& reasons, const Whole& whole,
               const AttentionOptions& rows, Schedule schedule, Wants wants) {
  if (ranks.size() == 1) {
    if (!reasons.empty()) throw Error(operation, reasons);
    return wants.bits;
  }
  Status mine = reasons.empty() ? status_of_arrays(operation, whole, rows, schedule) : refusal();
  mine.wants = wants;
  const std::vector<Status> all = exchange_status(ranks, operation, mine, joined(reasons)).statuses;
  uint32_t all_bits = 0;
  for (const Status& status : all) all_bits |= status.wants.bits;
  for (int rank = 0; rank < ranks.size(); ++rank)
    if (all[rank].wants.bits != (all_bits & all[rank].wants.known))
      throw differ(ranks, operation, "the arrays that they want or have", rank, rank == 0 ? 1 : 0);
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
  Status mine = reasons.empty() ? status_of(operation) : refusal();
  mine.sums[kShapes] = sum.value();
  exchange_status(ranks, operation, mine, joined(reasons));
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
