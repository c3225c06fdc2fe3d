// Dense products on vectors: who packs what when. kernels/products.kernel.h multiplies.
//
//   for each block of rows of a and group of panels of b, a task
//     for each cut of the terms:  sums (+)= rows x panels        then  c = f(sums (+ bias) (+ addend))
//
// Of few rows, a task takes its panels one after the other, each with all cuts, which is the order of packed memory.
// Rows of a are taken in place where they can be. A b that is not packed is packed as a whole first, by all threads, or
// each task packs its own panels and goes through all rows of a, where a has few rows or b very many columns. The sum
// over the terms is cut at fixed places, so the threads may cut rows and columns as suits them.
#include "ops/panel_matmul.h"

#include <algorithm>
#include <array>

#include "ops/product_result.h"

namespace attn::ops {
namespace {

using kernels::TileKernels;

// A sum longer than this is added up in parts: closer to the exact sum than one chain. A panel of a cut is 192 KiB of
// float32 on AVX-512 and stays in the second-level cache while 64 rows meet it.
constexpr int64_t kCut = 1024;
constexpr int64_t kRows = 64;
constexpr int64_t kPanels = 8;                    // of a task that finds b packed,
constexpr int64_t kOwnPanels = 3;                 // and of one that packs them itself
constexpr int64_t kLeastWork = int64_t{1} << 21;  // multiply-adds of a task: 20 to 40 us
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewRowsBytes = int64_t{1} << 17;  // of weights that few rows read: 6 to 12 us from memory
constexpr int64_t kMostCopied = int64_t{1} << 24;    // bytes of b that are packed as a whole for one product

const TileKernels& kernels_of(DType dtype) {
  const kernels::Isa& isa = active_kernels();
  if (dtype == DType::float64) return *isa.f64;
  return dtype == DType::bfloat16 && isa.bf16_dense ? *isa.bf16_dense : *isa.f32_dense;
}

int64_t element_bytes(int type) { return size_of(static_cast<DType>(type)); }

/// Rows of user memory for the packing kernels: `count` of n elements each, the last of them again up to `padded`.
class Lines {
 public:
  Lines(const ConstView<2>& x, int axis, const Shape<2>& first, int64_t count, int64_t n, int64_t padded = 0) {
    padded = std::max(count, padded);
    const int64_t bytes = size_of(x.dtype);
    const auto* base = static_cast<const char*>(x.data) + (first[0] * x.stride[0] + first[1] * x.stride[1]) * bytes;
    for (int64_t i = 0; i < padded; ++i)
      at_[static_cast<size_t>(i)] = const_cast<char*>(base + std::min(i, count - 1) * x.stride[axis] * bytes);
    args_.row = at_.data();
    args_.rows = padded;
    args_.stride = x.stride[1 - axis];
    args_.type = static_cast<int>(x.dtype);
    args_.n = n;
    args_.scale = 1;
    args_.far = true;
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  kernels::RowsArgs into(void* panel, int64_t width) const {
    kernels::RowsArgs args = args_;
    args.dense = panel;
    args.dense_stride = width;
    return args;
  }

 private:
  std::array<void*, kCut> at_;
  kernels::RowsArgs args_{};
};

/// [steps][width][key_step] of `count` lines of x and some terms, both from `first` on. Lines are rows or columns.
void pack_lines(const TileKernels& k, const ConstView<2>& x, int line_axis, const Shape<2>& first, int64_t count,
                int64_t terms, void* panel, int64_t width) {
  const int term_axis = 1 - line_axis;
  if (x.stride[term_axis] == 1) k.pack_query(Lines(x, line_axis, first, count, terms).into(panel, width));
  else k.outer_rows.pack(Lines(x, term_axis, first, terms, count).into(panel, width));
}

/// Where the panels of a packed b are.
struct PanelLayout {
  const TileKernels& k;
  int type;  // of the packed numbers
  int64_t terms, columns;

  /// Of float32 kernels, numbers of 16 bits that are to be kept stay as they are.
  static PanelLayout kept(const TileKernels& k, const ConstView<2>& b) {
    return {k, static_cast<int>(b.dtype), b.size[0], b.size[1]};
  }
  static PanelLayout passing(const ConstView<2>& b) {
    const TileKernels& k = kernels_of(b.dtype);
    return {k, k.type, b.size[0], b.size[1]};
  }

  int64_t panel_count() const { return div_up(columns, k.panel); }
  int64_t columns_of(int64_t panel) const { return std::min<int64_t>(k.panel, columns - panel * k.panel); }
  int width(int64_t panel) const { return static_cast<int>(round_up(columns_of(panel), k.lanes)); }
  int64_t offset(int64_t panel, int64_t term) const {
    const int64_t before = panel * k.panel * round_up(terms, k.key_step);
    return (before + (term > 0 ? term * width(panel) : 0)) * element_bytes(type);
  }
  int64_t bytes() const {
    const int64_t last = panel_count() - 1;
    return offset(last, 0) + round_up(terms, k.key_step) * width(last) * element_bytes(type);
  }

  /// One cut of one panel. The task must not use its scratch.
  void pack(const ConstView<2>& b, int64_t panel, int64_t term, void* out) const {
    const int64_t count = std::min(kCut, terms - term), n = width(panel);
    if (type == k.type) return pack_lines(k, b, 1, {term, panel * k.panel}, columns_of(panel), count, out, n);
    void* wide = thread_scratch(count * n * element_bytes(k.type));
    pack_lines(k, b, 1, {term, panel * k.panel}, columns_of(panel), count, wide, n);
    active_kernels().f32_elements->scale(
        {.rows = count, .columns = n, .x = {wide, n, k.type}, .factor = 1, .y = {out, n, type}});
  }
  void pack_all(const ConstView<2>& b, void* memory) const {
    const int64_t cuts = div_up(terms, kCut);
    parallel_for(panel_count() * cuts, [&](int64_t task) {
      const int64_t panel = task / cuts, term = task % cuts * kCut;
      pack(b, panel, term, static_cast<char*>(memory) + offset(panel, term));
    });
  }
};

/// Rows first .. first + count - 1 of a, terms term .. term + terms - 1: in place as far as they can be, the others
/// packed.
class Left {
 public:
  Left(const TileKernels& k, const ConstView<2>& a, const Shape<2>& first, int64_t rows, int64_t terms, char* packed)
      : k_(k), rows_(rows), packed_(packed) {
    const bool dense = a.stride[1] == 1;
    if (dense && static_cast<int>(a.dtype) == k.type && terms % k.key_step == 0) {
      whole_ = padded(rows) == rows ? rows : rows / kTile * kTile;
      data_ = static_cast<const char*>(a.data) + (first[0] * a.stride[0] + first[1]) * element_bytes(k.type);
      stride_ = a.stride[0];
    }
    const int64_t rest = rows - whole_;
    if (rest == 0) return;
    if (dense) {
      packed_stride_ = stride(k, terms);
      packed_step_ = k.key_step;
      const Lines lines(a, 0, {first[0] + whole_, first[1]}, rest, terms, padded(rest));
      k.key_rows.pack(lines.into(packed, packed_stride_));
    } else {
      packed_stride_ = k.key_step;
      packed_step_ = k.key_step * round_up(rows, k.lanes);
      pack_lines(k, a, 0, first, rows, terms, packed, round_up(rows, k.lanes));
    }
  }
  static int64_t bytes(const TileKernels& k, int64_t rows, int64_t terms) {
    return std::max(padded(rows), round_up(rows, k.lanes)) * stride(k, terms) * element_bytes(k.type);
  }
  int64_t rows() const { return rows_; }

  /// Calls multiply(args, row) for groups of rows, of `terms` terms from `term` on, a multiple of key_step.
  template <class Multiply>
  void for_groups(int64_t term, int64_t terms, const Multiply& multiply) const {
    kernels::PanelProductArgs args{};
    args.terms = terms;
    if (whole_ > 0) {
      args.a = data_ + term * element_bytes(k_.type);
      args.rows = whole_;
      args.row_stride = stride_;
      args.term_stride = k_.key_step;
      multiply(args, 0);
    }
    if (whole_ == rows_) return;
    args.a = packed_ + term / k_.key_step * packed_step_ * element_bytes(k_.type);
    args.rows = padded(rows_ - whole_);
    args.row_stride = packed_stride_;
    args.term_stride = packed_step_;
    multiply(args, whole_);
  }

 private:
  static constexpr int64_t kTile = 8;

  /// The rest of a group is one tile, of a power of two rows: another tile would read the panel again.
  static int64_t padded(int64_t rows) {
    int64_t rest = rows % kTile ? 1 : 0;
    while (rest < rows % kTile) rest *= 2;
    return rows / kTile * kTile + rest;
  }
  /// Of packed rows: not all in one set of the first-level cache.
  static int64_t stride(const TileKernels& k, int64_t terms) {
    constexpr int64_t kLine = 64;
    return round_up(terms, k.key_step) + kLine / element_bytes(k.type);
  }

  const TileKernels& k_;
  int64_t rows_, whole_ = 0;
  const char* data_ = nullptr;  // of the first whole_ rows, in place,
  int64_t stride_ = 0;
  const char* packed_;  // and of the others
  int64_t packed_stride_ = 0, packed_step_ = 0;
};

class PanelMatmul {
 public:
  PanelMatmul(const PanelLayout& layout, const ConstView<2>& a, const ConstView<2>& b, const View<2>& c,
              const MatmulOptions& options, const void* packed)
      : layout_(layout),
        k_(layout.k),
        a_(a),
        b_(b),
        c_(c),
        options_(options),
        packed_(static_cast<const char*>(packed)) {}

  /// In tasks of `rows` rows and `panels` panels.
  void run(int64_t rows, int64_t panels) const {
    const int64_t down = div_up(c_.size[0], rows);
    parallel_for_flushed(down * div_up(layout_.panel_count(), panels), [&](int64_t number) {
      const int64_t row = number % down * rows, panel = number / down * panels;
      Task task{row, std::min(rows, c_.size[0] - row), panel, std::min(panels, layout_.panel_count() - panel)};
      const int64_t column = panel * k_.panel, columns = std::min(panels * k_.panel, c_.size[1] - column);
      take_scratch(task, columns);
      multiply(task);
      activate_block(c_, options_, {row, task.rows, column, columns});
    });
  }

 private:
  struct Task {
    int64_t row, rows, panel, panels;
    char *left = nullptr, *right = nullptr, *sums = nullptr;  // scratch
    int64_t sums_stride = 0;
  };

  /// Terms for which a task packs rows of a at once. Few rows stay in the cache as a whole: each packed panel is then
  /// read from its beginning to its end.
  int64_t span(int64_t rows) const { return packed_ && rows <= kFewRows && a_.stride[1] == 1 ? layout_.terms : kCut; }

  int64_t own_panel_bytes() const {
    return k_.panel * round_up(std::min(kCut, layout_.terms), k_.key_step) * element_bytes(k_.type);
  }
  void take_scratch(Task& task, int64_t columns) const {
    task.sums_stride = round_up(columns, k_.lanes);
    const auto take = [&](Arena arena) {
      const int64_t terms = std::min(span(task.rows), layout_.terms);
      task.left = arena.take<char>(Left::bytes(k_, std::min(task.rows, kRows), terms));
      task.right = arena.take<char>(packed_ ? 0 : task.panels * own_panel_bytes());
      task.sums = arena.take<char>((task.rows + k_.lanes) * task.sums_stride * k_.acc_bytes);
      return arena.used();
    };
    take(Arena(thread_scratch(take(Arena(nullptr)))));
  }

  void multiply(const Task& task) const {
    for (int64_t term = 0; term < layout_.terms; term += span(task.rows)) {
      const int64_t terms = std::min(span(task.rows), layout_.terms - term);
      for (int64_t n = 0; n < task.panels && !packed_; ++n)
        layout_.pack(b_, task.panel + n, term, task.right + n * own_panel_bytes());
      for (int64_t row = 0; row < task.rows; row += kRows) {
        const int64_t rows = std::min(kRows, task.rows - row);
        const Left left(k_, a_, {task.row + row, term}, rows, terms, task.left);
        for (int64_t n = 0; n < task.panels; ++n)
          for (int64_t cut = term; cut < term + terms; cut += kCut) multiply_cut(task, row, n, cut, left, cut - term);
      }
    }
  }

  /// The terms of one cut: the rows of `left`, from the task's row `row` on, times the task's panel n. The cut begins
  /// at the left's term `left_term`.
  void multiply_cut(const Task& task, int64_t row, int64_t n, int64_t cut, const Left& left, int64_t left_term) const {
    const int64_t terms = std::min(kCut, layout_.terms - cut), panel = task.panel + n;
    char* sums = task.sums + (row * task.sums_stride + n * k_.panel) * k_.acc_bytes;
    left.for_groups(left_term, terms, [&](kernels::PanelProductArgs args, int64_t at) {
      args.panel = packed_ ? packed_ + layout_.offset(panel, cut) : task.right + n * own_panel_bytes();
      args.panel_type = layout_.type;
      args.width = layout_.width(panel);
      args.sums = sums + at * task.sums_stride * k_.acc_bytes;
      args.sums_stride = task.sums_stride;
      args.add = cut > 0;
      if (cut + terms == layout_.terms) finish(args, task.row + row + at, panel, left.rows() - at);
      k_.multiply_panel(args);
    });
  }

  /// The last cut: where the sums go, of at most `rows` rows from `row` on.
  void finish(kernels::PanelProductArgs& args, int64_t row, int64_t panel, int64_t rows) const {
    const int64_t column = panel * k_.panel;
    args.result = product_result(c_, options_, row, column);
    args.result_rows = rows;
    args.columns = layout_.columns_of(panel);
  }

  const PanelLayout& layout_;
  const TileKernels& k_;
  const ConstView<2>&a_, &b_;
  const View<2>& c_;
  const MatmulOptions& options_;
  const char* packed_;
};

/// Panels of a task of so many rows, so that there are a few tasks for each thread, none of them too small.
int64_t panels_of_task(const PanelLayout& layout, int64_t rows, int64_t M, int64_t most) {
  const int64_t all = layout.panel_count(), one = rows * layout.terms * layout.k.panel;
  const int64_t bytes = layout.terms * layout.k.panel * element_bytes(layout.type);
  const int64_t wanted = div_up(4 * thread_count(), div_up(M, rows));
  const int64_t least = std::min(div_up(kLeastWork, one), div_up(kFewRowsBytes, bytes));
  return std::clamp<int64_t>(std::max(div_up(all, wanted), least), 1, most);
}

}  // namespace

PackedColumns::PackedColumns(const ConstView<2>& b) : kernels_(&kernels_of(b.dtype)) {
  if (b.empty()) return;
  const PanelLayout layout = PanelLayout::kept(*kernels_, b);
  memory_ = SharedBuffer(layout.bytes());
  layout.pack_all(b, memory_.data());
}

void multiply_panels(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                     const PackedColumns* packed) {
  const int64_t M = c.size[0];
  if (packed) {
    const PanelLayout layout = PanelLayout::kept(*packed->kernels_, b);
    const int64_t rows = std::min(M, kRows);
    return PanelMatmul(layout, a, b, c, options, packed->memory_.data())
        .run(rows, panels_of_task(layout, rows, M, kPanels));
  }
  const PanelLayout layout = PanelLayout::passing(b);
  if (M <= kRows || layout.bytes() > kMostCopied)
    return PanelMatmul(layout, a, b, c, options, nullptr).run(M, panels_of_task(layout, M, M, kOwnPanels));
  static thread_local GrowingBuffer memory;
  void* copy = memory.at_least(layout.bytes());
  layout.pack_all(b, copy);
  PanelMatmul(layout, a, b, c, options, copy).run(kRows, panels_of_task(layout, kRows, M, kPanels));
}

}  // namespace attn::ops
