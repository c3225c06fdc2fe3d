// Embedding of token ids, and the mean over the tokens of a sequence.
//
// The backward of the embedding shares out the rows of the table: a task reads all ids and adds up those that are its
// own, in order.
#include <cstring>
#include <vector>

#include "attn/ops_quantized.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/packed_matrix.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

void require_ids(Checker& checker, std::span<const int64_t> ids, int64_t rows, int64_t table_rows) {
  checker.require(static_cast<int64_t>(ids.size()) == rows, [&] {
    return "there are " + std::to_string(ids.size()) + " ids for " + std::to_string(rows) + " rows";
  });
  for (size_t r = 0; r < ids.size(); ++r) {
    if (!checker.require(ids[r] >= 0 && ids[r] < table_rows, [&] {
          return "ids[" + std::to_string(r) + "] is " + std::to_string(ids[r]) + ", must be in [0, " +
                 std::to_string(table_rows) + ")";
        }))
      return;
  }
}

/// Where the sequences of pooled rows are.
class PooledSequences {
 public:
  PooledSequences(std::span<const int64_t> lengths, std::span<const int64_t> starts, int64_t count, int64_t rows)
      : lengths_(lengths), starts_(starts), count_(count), rows_(rows) {}

  void check(Checker& checker) const {
    checker.require(static_cast<int64_t>(lengths_.size()) == count_, [&] {
      return "there are " + std::to_string(lengths_.size()) + " lengths for " + std::to_string(count_) + " sequences";
    });
    const bool whole = checker.require(!starts_.empty() || (count_ > 0 ? rows_ % count_ == 0 : rows_ == 0), [&] {
      return "x has " + std::to_string(rows_) + " rows, must be a multiple of " + std::to_string(count_) + " sequences";
    });
    const bool rising = std::is_sorted(starts_.begin(), starts_.end());
    const bool within =
        starts_.empty() || (std::ssize(starts_) == count_ && rising && starts_.front() >= 0 && starts_.back() <= rows_);
    checker.require(within, [&] {
      return "starts must be " + std::to_string(count_) + " rising rows from 0 to " + std::to_string(rows_);
    });
    for (int64_t b = 0; whole && within && b < std::min<int64_t>(count_, std::ssize(lengths_)); ++b)
      if (!checker.require(length(b) >= 1 && length(b) <= end(b) - begin(b), [&] {
            return "lengths[" + std::to_string(b) + "] is " + std::to_string(length(b)) + ", must be from 1 to " +
                   std::to_string(end(b) - begin(b));
          }))
        return;
  }

  int64_t length(int64_t b) const { return lengths_[static_cast<size_t>(b)]; }
  int64_t begin(int64_t b) const { return starts_.empty() ? b * (rows_ / count_) : starts_[static_cast<size_t>(b)]; }
  /// Of the rows up to the next sequence.
  int64_t end(int64_t b) const { return b + 1 < count_ ? begin(b + 1) : rows_; }

 private:
  std::span<const int64_t> lengths_, starts_;
  int64_t count_, rows_;
};

}  // namespace

void embedding(std::span<const int64_t> ids, const PackedMatrix& table, View<2> out) {
  if (!table.is_quantized()) throw Error("embedding", {"the table is not a packed quantized matrix"});
  const QuantizedColumns& rows = *table.form_->quantized;
  Checker checker("embedding");
  require_ids(checker, ids, out.size[0], rows.size()[1]);
  checker.require(out.dtype != DType::float64, "out is float64, must be float32, bfloat16 or float16");
  require_output(checker, "out", out, out.dtype, {out.size[0], rows.size()[0]});
  checker.done();
  const ProfileSpan span("embedding", [&] { return work_on(out.size, out); });
  for_row_blocks(out.size[0], out.size[1], [&](const RowBlock& b) {
    std::vector<float> row(static_cast<size_t>(b.columns));
    for (int64_t r = b.row; r < b.row + b.rows; ++r) {
      rows.unpack(ids[static_cast<size_t>(r)], row.data());
      kernels_for(out.dtype).scale({.rows = 1,
                                    .columns = b.columns,
                                    .x = {row.data(), b.columns, kernels::kFloat32},
                                    .factor = 1,
                                    .y = rows_at(out, {.row = r})});
    }
  });
}

void embedding(std::span<const int64_t> ids, ConstView<2> table, View<2> out) {
  Checker checker("embedding");
  require_type(checker, "table", table.dtype);
  require_input(checker, "table", table, table.dtype, table.size);
  require_ids(checker, ids, out.size[0], table.size[0]);
  require_output(checker, "out", out, table.dtype, {out.size[0], table.size[1]});
  require_apart(checker, "out", out, "table", table, Sharing::none);
  checker.done();
  const ProfileSpan span("embedding", [&] { return work_on(out.size, out, out); });
  for_row_blocks(out.size[0], out.size[1], [&](const RowBlock& b) {
    for (int64_t r = b.row; r < b.row + b.rows; ++r)
      std::memcpy(rows_at(out, {.row = r}).data, rows_at(table, {.row = ids[static_cast<size_t>(r)]}).data,
                  static_cast<size_t>(b.columns * size_of(out.dtype)));
  });
}

void embedding_backward(std::span<const int64_t> ids, ConstView<2> dout, View<2> dtable) {
  Checker checker("embedding_backward");
  require_type(checker, "dout", dout.dtype);
  require_input(checker, "dout", dout, dout.dtype, dout.size);
  require_ids(checker, ids, dout.size[0], dtable.size[0]);
  const DType type = dtable.dtype == dout.dtype ? dout.dtype : parameter_type(dout.dtype);
  require_output(checker, "dtable", dtable, type, {dtable.size[0], dout.size[1]});
  require_apart(checker, "dtable", dtable, "dout", dout, Sharing::none);
  checker.done();
  const ProfileSpan span("embedding_backward", [&] { return work_on(dout.size, dout, dout, dout); });
  // Neighbouring ids to different tasks; not more of them than reading all ids again costs little for.
  const int64_t tasks = std::clamp<int64_t>(dout.count() / kBlock, 1, 16);
  const kernels::ElementKernels& k = kernels_for(dout.dtype);
  parallel_for(tasks, [&](int64_t task) {
    for (int64_t r = 0; r < dout.size[0]; ++r) {
      const int64_t id = ids[static_cast<size_t>(r)];
      if (id % tasks != task) continue;
      const kernels::Rows row = rows_at(dtable, {.row = id});
      k.add({.rows = 1,
             .columns = dout.size[1],
             .a = {row.data, row.stride, row.type},
             .b = rows_at(dout, {.row = r}),
             .y = row});
    }
  });
}

void mean_pool(ConstView<2> x, std::span<const int64_t> lengths, View<2> out, std::span<const int64_t> starts) {
  Checker checker("mean_pool");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  const PooledSequences sequences(lengths, starts, out.size[0], x.size[0]);
  sequences.check(checker);
  require_output(checker, "out", out, x.dtype, {out.size[0], x.size[1]});
  require_apart(checker, "out", out, "x", x, Sharing::none);
  checker.done();
  const ProfileSpan span("mean_pool", [&] { return work_on(x.size, x, out); });
  const DType sum_type = parameter_type(x.dtype);
  const int64_t B = out.size[0], C = x.size[1], bytes = C * size_of(sum_type);
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  parallel_for(B, [&](int64_t b) {
    const int64_t length = sequences.length(b);
    void* sum = thread_scratch(bytes);
    std::memset(sum, 0, static_cast<size_t>(bytes));
    k.add_rows({.rows = length, .columns = C, .x = rows_at(x, {.row = sequences.begin(b)}), .total = sum});
    k.scale({.rows = 1,
             .columns = C,
             .x = {sum, C, static_cast<int>(sum_type)},
             .factor = 1 / static_cast<double>(length),
             .y = rows_at(out, {.row = b})});
  });
}

void mean_pool_backward(ConstView<2> dout, std::span<const int64_t> lengths, View<2> dx,
                        std::span<const int64_t> starts) {
  Checker checker("mean_pool_backward");
  require_type(checker, "dout", dout.dtype);
  require_input(checker, "dout", dout, dout.dtype, dout.size);
  const PooledSequences sequences(lengths, starts, dout.size[0], dx.size[0]);
  sequences.check(checker);
  require_output(checker, "dx", dx, dout.dtype, {dx.size[0], dout.size[1]});
  require_apart(checker, "dx", dx, "dout", dout, Sharing::none);
  checker.done();
  const ProfileSpan span("mean_pool_backward", [&] { return work_on(dx.size, dout, dx); });
  const int64_t B = dout.size[0], C = dout.size[1];
  const kernels::ElementKernels& k = kernels_for(dout.dtype);
  parallel_for(B, [&](int64_t b) {
    const int64_t first = sequences.begin(b), length = sequences.length(b);
    kernels::ConstRows row = rows_at(dout, {.row = b});
    row.stride = 0;  // the same for every token
    k.scale({.rows = length,
             .columns = C,
             .x = row,
             .factor = 1 / static_cast<double>(length),
             .y = rows_at(dx, {.row = first})});
    fill_zero(dx, {.row = first + length, .rows = sequences.end(b) - first - length, .columns = C});
    if (b == 0) fill_zero(dx, {.row = 0, .rows = first, .columns = C});
  });
}

}  // namespace attn::ops
