#include "attention/operands.h"

#include <algorithm>

#include "core/numbers.h"

namespace attn::detail {

KeyRows::KeyRows(const void* rows, int64_t first, DType dtype, int64_t n)
    : base_(static_cast<const char*>(rows)),
      first_(-first),
      row_stride_(n),
      row_bytes_(n * size_of(dtype)),
      n_(n),
      type_(static_cast<int>(dtype)) {}

KeyRows::KeyRows(const Problem& p, const ConstView<4>& view, int64_t n, const Sequence& s, const void* const* pages,
                 int64_t kv_head)
    : pages_(pages),
      page_size_(s.pages.page_size),
      first_(s.pages.first),
      n_(n),
      type_(p.storage == KVStorage::int8 ? int{kernels::kInt8} : static_cast<int>(view.dtype)),
      far_(p.key_bytes >= 2 * far_array_bytes()) {
  const int64_t element = is_int8() ? 1 : size_of(view.dtype);
  if (pages) {
    row_bytes_ = row_bytes(p.storage, view.dtype, n);
    row_stride_ = row_bytes_ / element;
    page_offset_ = kv_head * page_size_ * row_bytes_;
  } else {
    base_ = at(view, s.batch, kv_head, s.key_begin);
    row_stride_ = view.size[2] == 1 ? 0 : view.stride[2];
    stride_ = n == 1 ? 1 : view.stride[3];
    row_bytes_ = row_stride_ * element;
  }
}

const void* KeyRows::row(int64_t j) const {
  const int64_t at = first_ + j;
  if (!pages_) return base_ + at * row_bytes_;
  return static_cast<const char*>(pages_[at / page_size_]) + page_offset_ + at % page_size_ * row_bytes_;
}

kernels::RowsArgs KeyRows::list(int64_t begin, int64_t end, void** rows) const {
  for (int64_t j = begin; j < end; ++j) rows[j - begin] = const_cast<void*>(row(j));
  kernels::RowsArgs args = rows_args(rows, end - begin, stride_, type_, n_);
  args.far = far_;
  return args;
}

bool KeyRows::in_place(const kernels::Operand& operand) const {
  const bool whole_runs = !pages_ || (page_size_ % operand.row_step == 0 && first_ % operand.row_step == 0);
  return whole_runs && operand.in_place(type_, n_, stride_, row_stride_);
}

void BlockOperand::layout(Arena& arena, const Problem& p, const kernels::Operand& operand, const TileKernels& tk,
                          int64_t keys, int64_t n, int64_t kept) {
  operand_ = &operand;
  tk_ = &tk;
  n_ = n;
  block_keys_ = keys;
  kept_ = kept;
  const int64_t rows = std::max(keys, kept);
  base_ = arena.take<char>(operand.bytes(rows, n));
  states_ = arena.take<State>(div_up(rows, keys));
  decoded_type_ = p.q.dtype;
  if (p.storage == KVStorage::int8 && tk.type != kernels::kInt8)
    decoded_rows_ = arena.take<char>(keys * n * size_of(decoded_type_));
}

void BlockOperand::reset() { std::fill(states_, states_ + div_up(kept_, block_keys_), State::not_packed); }

void BlockOperand::start(const KeyRows& source, int64_t begin, int64_t end) {
  source_ = &source;
  begin_ = begin;
  end_ = end;
  finite_known_ = false;
  if (kept_ > 0) {
    // Whole blocks: another group may see other keys of it.
    pack_begin_ = round_down(begin, block_keys_);
    pack_end_ = std::min(pack_begin_ + block_keys_, kept_);
    dense_ = base_ + operand_->bytes(pack_begin_, n_);
    state_ = states_ + pack_begin_ / block_keys_;
  } else {
    pack_begin_ = begin;
    pack_end_ = end;
    dense_ = base_;
    state_ = states_;
    *state_ = State::not_packed;
  }
  coded_ = nullptr;
  if (source.is_int8() && tk_->type != kernels::kInt8) {
    coded_ = &source;
    decoded_ = KeyRows(decoded_rows_, pack_begin_, decoded_type_, n_);
    source_ = &decoded_;
  }
  in_place_ = source_->in_place(*operand_);
}

void BlockOperand::decode() {
  if (!coded_) return;
  void* rows[kernels::kMaxBlockKeys];
  kernels::RowsArgs args = coded_->list(pack_begin_, pack_end_, rows);
  args.dense = decoded_rows_;
  args.dense_stride = n_;
  tk_->decode_rows(args, static_cast<int>(decoded_type_));
  coded_ = nullptr;
}

KeyRun BlockOperand::run(int64_t first, int64_t count) {
  if (in_place_) decode();
  if (in_place_ && source_->run(first) >= count) return {source_->row(first), source_->row_stride(), first, count};
  pack(false);
  return packed_run(first, count);
}

KeyRun BlockOperand::packed_run(int64_t first, int64_t count) const {
  return {dense_ + operand_->bytes(first - pack_begin_, n_), operand_->stride(n_), first, count};
}

void BlockOperand::pack(bool finite_only) {
  const State wanted = finite_only ? State::packed_finite_only : State::packed;
  if (*state_ == wanted) return;
  decode();
  void* rows[kernels::kMaxBlockKeys];
  kernels::RowsArgs args = source_->list(pack_begin_, pack_end_, rows);
  args.dense = dense_;
  args.dense_stride = operand_->stride(n_);
  args.finite_only = finite_only;
  operand_->pack(args);
  *state_ = wanted;
}

bool BlockOperand::finite() {
  if (!finite_known_) {
    decode();
    void* rows[kernels::kMaxBlockKeys];
    finite_ = tk_->all_finite(source_->list(begin_, end_, rows));
    finite_known_ = true;
  }
  return finite_;
}

int64_t kept_rows(const KeyRows& rows, const kernels::Operand& operand, int64_t count, int64_t n) {
  constexpr int64_t kMost = int64_t{2} << 20;
  return !rows.in_place(operand) && operand.bytes(count, n) <= kMost ? count : 0;
}

}  // namespace attn::detail
