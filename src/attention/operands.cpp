#include "attention/operands.h"

#include <algorithm>

namespace attn::detail {

KeyRows::KeyRows(const ConstView<4>& view, int64_t n, const Sequence& s, const void* const* pages, int64_t kv_head)
    : pages_(pages), page_size_(s.pages.page_size), n_(n), dtype_(view.dtype) {
  const int64_t element = size_of(view.dtype);
  if (pages) {
    row_stride_ = n;
    page_offset_ = kv_head * page_size_ * n * element;
  } else {
    base_ = at(view, s.batch, kv_head, s.key_begin);
    row_stride_ = view.size[2] == 1 ? 0 : view.stride[2];
    stride_ = n == 1 ? 1 : view.stride[3];
  }
  row_bytes_ = row_stride_ * element;
}

const void* KeyRows::row(int64_t j) const {
  if (!pages_) return base_ + j * row_bytes_;
  return static_cast<const char*>(pages_[j / page_size_]) + page_offset_ + j % page_size_ * row_bytes_;
}

kernels::RowsArgs KeyRows::list(int64_t begin, int64_t end, void** rows) const {
  for (int64_t j = begin; j < end; ++j) rows[j - begin] = const_cast<void*>(row(j));
  return rows_args(rows, end - begin, stride_, dtype_, n_);
}

bool KeyRows::in_place(const kernels::Operand& operand) const {
  const bool whole_runs = !pages_ || page_size_ % operand.row_step == 0;
  return whole_runs && operand.in_place(static_cast<int>(dtype_), n_, stride_, row_stride_);
}

void BlockOperand::layout(Arena& arena, const kernels::Operand& operand, const TileKernels& tk, int64_t keys,
                          int64_t n) {
  operand_ = &operand;
  tk_ = &tk;
  n_ = n;
  dense_ = arena.take(operand.bytes(keys, n));
}

void BlockOperand::start(const KeyRows& source, int64_t begin, int64_t end) {
  source_ = &source;
  begin_ = begin;
  end_ = end;
  in_place_ = source.in_place(*operand_);
  packed_ = finite_known_ = false;
}

KeyRun BlockOperand::run(int64_t first, int64_t count) {
  if (in_place_ && source_->run(first) >= count) return {source_->row(first), source_->row_stride(), first, count};
  pack(false);
  return packed_run(first, count);
}

KeyRun BlockOperand::packed_run(int64_t first, int64_t count) const {
  return {static_cast<const char*>(dense_) + operand_->bytes(first - begin_, n_), operand_->stride(n_), first, count};
}

void BlockOperand::pack(bool finite_only) {
  if (packed_ && packed_finite_only_ == finite_only) return;
  void* rows[kernels::kMaxBlockKeys];
  kernels::RowsArgs args = source_->list(begin_, end_, rows);
  args.dense = dense_;
  args.dense_stride = operand_->stride(n_);
  args.finite_only = finite_only;
  operand_->pack(args);
  packed_ = true;
  packed_finite_only_ = finite_only;
}

bool BlockOperand::finite() {
  if (!finite_known_) {
    void* rows[kernels::kMaxBlockKeys];
    finite_ = tk_->all_finite(source_->list(begin_, end_, rows));
    finite_known_ = true;
  }
  return finite_;
}

}  // namespace attn::detail
