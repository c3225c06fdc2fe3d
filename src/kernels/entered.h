// The preparations that a kernel set asks for around a task: enter() and leave() of its table.
#pragma once

namespace attn::kernels {

/// While it lives, the kernels of `table`, a TileKernels or ProductKernels, may run on this thread.
template <class Table>
class Entered {
 public:
  explicit Entered(const Table& table) : table_(table) {
    if (table_.enter) table_.enter(before_);
  }
  ~Entered() {
    if (table_.leave) table_.leave(before_);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Table& table_;
  alignas(64) char before_[64];
};

}  // namespace attn::kernels
