// Dense products on vectors: who packs what when. kernels/products.kernel.h multiplies.
//
//   for each block of rows of a and group of panels of b, a task
//     for each cut of the terms:  sums (+)= rows x panels        then  c = f(sums (+ bias) (+ addend))
//
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
constexpr int64_t kPanels = 8;                       // of a task that finds b packed,
constexpr int64_t kOwnPanels = 3;                    // and of one that packs them itself
constexpr int64_t kLeastWork = int64_t{1} << 21;     // multiply-adds of a task: 20 to 40 us
constexpr int64_t kFewRowsBytes = int64_t{1} << 17;  // of weights that few rows read: 6 to 12 us from memory
constexpr int64_t kMostCopied = int64_t{1} << 24;    // bytes of b that are packed as a whole for one product

const TileKernels& kernels_of(DType dtype) {
  const kernels::Isa& isa = active_kernels();
  if (dtype == DType::float64) return *isa.f64;
  return dtype == DType::bfloat16 && isa.bf16_dense ? *isa.bf16_dense : *isa.f32_dense;
}

int64_t element_bytes(int type) { return size_of(static_cast<DType>(type)); }

/// Rows of user memory for the packing kernels: `count` of n elements each.
class Lines {
 public:
  Lines(const ConstView<2>& x, int axis, const Shape<2>& first, int64_t count, int64_t n) {
    const int64_t bytes = size_of(x.dtype);
    const auto* base = static_cast<const char*>(x.data) + (first[0] * x.stride[0] + first[1] * x.stride[1]) * bytes;
    for (int64_t i = 0; i < count; ++i)
      at_[static_cast<size_t>(i)] = const_cast<char*>(base + i * x.stride[axis] * bytes);
    args_.row = at_.data();
    args_.rows = count;
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

/// Rows first .. first + count - 1 of a, one cut of the terms: in place as far as they can be, the others packed.
class Left {
 public:
  Left(const TileKernels& k, const ConstView<2>& a, int64_t first, int64_t count, int64_t term, int64_t terms,
       char* packed)
      : k_(k), count_(count), terms_(terms), packed_(packed) {
    const bool dense = a.stride[1] == 1;
    if (dense && static_cast<int>(a.dtype) == k.type && terms % k.key_step == 0) whole_ = count / k.lanes * k.lanes;
    if (whole_ > 0) {
      data_ = static_cast<const char*>(a.data) + (first * a.stride[0] + term) * element_bytes(k.type);
      stride_ = a.stride[0];
    }
    width_ = dense ? k.lanes : round_up(count, k.lanes);
    for (int64_t row = whole_; row < count; row += width_)
      pack_lines(k, a, 0, {first + row, term}, std::min(width_, count - row), terms, at(row), width_);
  }
  static int64_t bytes(const TileKernels& k, int64_t count, int64_t terms) {
    return round_up(count, k.lanes) * round_up(terms, k.key_step) * element_bytes(k.type);
  }

  /// Calls multiply(args, row) for groups of rows.
  template <class Multiply>
  void for_groups(const Multiply& multiply) const {
    kernels::PanelProductArgs args{};
    args.terms = terms_;
    if (whole_ > 0) {
      args.a = data_;
      args.rows = whole_;
      args.row_stride = stride_;
      args.term_stride = k_.key_step;
      multiply(args, 0);
    }
    args.row_stride = k_.key_step;
    args.term_stride = k_.key_step * width_;
    for (int64_t row = whole_; row < count_; row += width_) {
      args.a = at(row);
      args.rows = tiles_of(std::min(width_, count_ - row));
      multiply(args, row);
    }
  }

 private:
  /// The rest of a group is one tile, of a power of two rows: another tile would read the panel again.
  static int64_t tiles_of(int64_t rows) {
    constexpr int64_t kTile = 8;
    int64_t rest = rows % kTile ? 1 : 0;
    while (rest < rows % kTile) rest *= 2;
    return rows / kTile * kTile + rest;
  }
  char* at(int64_t row) const {
    return packed_ + (row - whole_) * round_up(terms_, k_.key_step) * element_bytes(k_.type);
  }

  const TileKernels& k_;
  int64_t count_, terms_, width_ = 0, whole_ = 0, stride_ = 0;
  const char* data_ = nullptr;
  char* packed_;
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
    parallel_for_flushed(down * div_up(layout_.panel_count(), panels), [&](int64_t task) {
      const int64_t row = task % down * rows, panel = task / down * panels;
      const int64_t column = panel * k_.panel, columns = std::min(panels * k_.panel, c_.size[1] - column);
      multiply(row, std::min(rows, c_.size[0] - row), panel, std::min(panels, layout_.panel_count() - panel));
      activate_block(c_, options_, {row, std::min(rows, c_.size[0] - row), column, columns});
    });
  }

 private:
  /// A task's scratch.
  struct Memory {
    char *left, *right, *sums;
    int64_t sums_stride;
  };

  int64_t own_panel_bytes() const {
    return k_.panel * round_up(std::min(kCut, layout_.terms), k_.key_step) * element_bytes(k_.type);
  }
  Memory memory_of(int64_t rows, int64_t panel, int64_t panels) const {
    Memory memory{};
    const int64_t columns = std::min(panels * k_.panel, layout_.columns - panel * k_.panel);
    memory.sums_stride = round_up(columns, k_.lanes);
    const auto take = [&](Arena arena) {
      memory.left = arena.take<char>(Left::bytes(k_, std::min(rows, kRows), std::min(kCut, layout_.terms)));
      memory.right = arena.take<char>(packed_ ? 0 : panels * own_panel_bytes());
      memory.sums = arena.take<char>((rows + k_.lanes) * memory.sums_stride * k_.acc_bytes);
      return arena.used();
    };
    take(Arena(thread_scratch(take(Arena(nullptr)))));
    return memory;
  }

  void multiply(int64_t row, int64_t rows, int64_t panel, int64_t panels) const {
    const Memory memory = memory_of(rows, panel, panels);
    for (int64_t term = 0; term < layout_.terms; term += kCut) {
      const int64_t terms = std::min(kCut, layout_.terms - term);
      const auto right = [&](int64_t n) -> char* {
        if (packed_) return const_cast<char*>(packed_) + layout_.offset(panel + n, term);
        return memory.right + n * own_panel_bytes();
      };
      for (int64_t n = 0; n < panels && !packed_; ++n) layout_.pack(b_, panel + n, term, right(n));
      for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        const Left left(k_, a_, row + first, count, term, terms, memory.left);
        for (int64_t n = 0; n < panels; ++n) {
          char* sums = memory.sums + (first * memory.sums_stride + n * k_.panel) * k_.acc_bytes;
          left.for_groups([&](kernels::PanelProductArgs args, int64_t at) {
            args.panel = right(n);
            args.panel_type = layout_.type;
            args.width = layout_.width(panel + n);
            args.sums = sums + at * memory.sums_stride * k_.acc_bytes;
            args.sums_stride = memory.sums_stride;
            args.add = term > 0;
            if (term + terms == layout_.terms) finish(args, row + first + at, panel + n, count - at);
            k_.multiply_panel(args);
          });
        }
      }
    }
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

/// A thread's copy of a b that is not packed: memory that grows and stays.
void* copied_memory(int64_t bytes) {
  static thread_local Buffer memory;
  if (memory.bytes() < bytes) {
    memory = {};
    memory = Buffer(bytes);
  }
  return memory.data();
}

}  // namespace

PackedColumns::PackedColumns(const ConstView<2>& b) : kernels_(&kernels_of(b.dtype)) {
  if (b.empty()) return;
  const PanelLayout layout = PanelLayout::kept(*kernels_, b);
  memory_ = Buffer(layout.bytes());
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
  void* copy = copied_memory(layout.bytes());
  layout.pack_all(b, copy);
  PanelMatmul(layout, a, b, c, options, copy).run(kRows, panels_of_task(layout, kRows, M, kPanels));
}

}  // namespace attn::ops
