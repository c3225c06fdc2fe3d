// Everything of linear attention that is no product of matrices, and its table.
//
//   elements, scale_rows, row_dots, exponentials   element by element, or one sum a row
//   running, decays     products of decays along the tokens
//   pairs, pairs_grad   products of few rows whose distance decays by column: the decayed row k_j E(i, j) stays in a
//                       register while i rises, so that no exponential and no quotient of decays is needed
//   step                one token: a pass that reads the state, with the delta rule, and one that reads and writes it
// Loops: rows, vectors of columns. Requires: what linear_table.h says.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/linear_convolution.kernel.h"
#include "kernels/linear_products.kernel.h"
#include "kernels/math.kernel.h"

namespace attn::kernels {
namespace {

/// body(j) for the first column j of each vector.
template <class V, class Body>
inline __attribute__((always_inline)) void for_vectors(int64_t columns, const Body& body) {
  for (int64_t j = 0; j < columns; j += V::W) body(j);
}

template <class V>
void elements(const ElementsArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T *x = row_at<T>(args.x, r), *z = row_at<T>(args.z, r);
    T* y = row_at<T>(args.y, r);
    for_vectors<V>(args.lower ? r + 1 : args.columns, [&](int64_t j) {
      const Reg product = V::mul(V::load(x + j), V::load(z + j));
      if (args.into == Into::kSet) V::store(y + j, product);
      else if (args.into == Into::kAdd) V::store(y + j, V::add(V::load(y + j), product));
      else V::store(y + j, V::sub(V::load(y + j), product));
    });
  }
}

template <class V>
void scale_rows(const ScaleRowsArgs& args) {
  using T = typename V::T;
  for (int64_t r = 0; r < args.rows; ++r) {
    const typename V::Reg factor = V::set1(static_cast<const T*>(args.factor)[r]);
    const T* x = row_at<T>(args.x, r);
    T* y = row_at<T>(args.y, r);
    for_vectors<V>(args.columns, [&](int64_t j) { V::store(y + j, V::mul(factor, V::load(x + j))); });
  }
}

template <class V>
void running(const RunningArgs& args) {
  using T = typename V::T;
  for_vectors<V>(args.columns, [&](int64_t j) {
    typename V::Reg product = V::set1(1);
    for (int64_t n = 0; n < args.rows; ++n) {
      const int64_t r = args.backward ? args.rows - 1 - n : n;
      const typename V::Reg w = V::load(row_at<T>(args.w, r) + j), x = V::load(row_at<T>(args.x, r) + j);
      const typename V::Reg before = product;
      product = V::mul(product, w);
      V::store(row_at<T>(args.y, r) + j, V::mul(x, args.backward ? before : product));
    }
    if (args.total) V::store(static_cast<T*>(args.total) + j, product);
  });
}

template <class V>
void decays(const DecayArgs& args) {
  using T = typename V::T;
  const T* w = static_cast<const T*>(args.w);
  for (int64_t i = 0; i < args.rows; ++i) {
    T* y = row_at<T>(args.y, i);
    const typename V::Reg factor = V::set1(w[i]);
    if (i > 0) for_vectors<V>(i, [&](int64_t j) { V::store(y + j, V::mul(factor, V::load(y - args.y.row + j))); });
    y[i] = 1;
  }
}

template <class V>
void row_dots(const RowDotsArgs& args) {
  using T = typename V::T;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T *x = row_at<T>(args.x, r), *z = row_at<T>(args.z, r);
    typename V::Reg sum = V::zero();
    for_columns<V>(0, args.columns,
                   [&](int64_t j, auto lanes) { sum = V::fma(lanes.load(x, j), lanes.load(z, j), sum); });
    static_cast<T*>(args.out)[r] = V::sum(sum);
  }
}

template <class V>
void exponentials(const void* x, void* y, int64_t n) {
  using T = typename V::T;
  const typename V::Reg log2e = V::set1(static_cast<T>(kLog2e));
  for_vectors<V>(n, [&](int64_t j) {
    V::store(static_cast<T*>(y) + j, V::exp2(V::mul(log2e, V::load(static_cast<const T*>(x) + j))));
  });
}

template <class V>
void pairs(const PairsArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  for (int64_t j = 0; j < args.rows; ++j) {
    Reg qk[kMostPairRows], kk[kMostPairRows];
    for (int64_t i = j; i < args.rows; ++i) qk[i] = kk[i] = V::zero();
    for_columns<V>(0, args.columns, [&](int64_t c, auto lanes) {
      Reg key = lanes.load(row_at<T>(args.k, j), c);
      for (int64_t i = j; i < args.rows; ++i) {
        if (i > j) key = V::mul(key, lanes.load(row_at<T>(args.w, i), c));
        if (args.qk.data) qk[i] = V::fma(lanes.load(row_at<T>(args.q, i), c), key, qk[i]);
        if (args.kk.data) kk[i] = V::fma(lanes.load(row_at<T>(args.k, i), c), key, kk[i]);
      }
    });
    for (int64_t i = j; i < args.rows; ++i) {
      if (args.qk.data) row_at<T>(args.qk, i)[j] = V::sum(qk[i]);
      if (args.kk.data) row_at<T>(args.kk, i)[j] = V::sum(kk[i]);
    }
  }
}

template <class V>
void pairs_grad(const PairsGradArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  for_vectors<V>(args.columns, [&](int64_t c) {
    for (int64_t j = 0; j < args.rows; ++j) {
      Reg decay = V::set1(1);
      const Reg key = V::load(row_at<T>(args.k, j) + c);
      Reg dkey = V::load(row_at<T>(args.dkey, j) + c);
      for (int64_t i = j; i < args.rows; ++i) {
        if (i > j) decay = V::mul(decay, V::load(row_at<T>(args.w, i) + c));
        const Reg decayed = V::mul(key, decay);
        const Reg dqk = V::set1(row_at<T>(args.dqk, i)[j]);
        T* dq = row_at<T>(args.dq, i) + c;
        V::store(dq, V::fma(dqk, decayed, V::load(dq)));
        Reg other = V::mul(dqk, V::load(row_at<T>(args.q, i) + c));
        if (args.dkk.data && i > j) {
          const Reg dkk = V::set1(row_at<T>(args.dkk, i)[j]);
          T* dk = row_at<T>(args.dk, i) + c;
          V::store(dk, V::fma(dkk, decayed, V::load(dk)));
          other = V::fma(dkk, V::load(row_at<T>(args.k, i) + c), other);
        }
        dkey = V::fma(other, decay, dkey);
      }
      V::store(row_at<T>(args.dkey, j) + c, dkey);
    }
  });
}

template <class V>
double largest(const RowsArgs& args) {
  double most = -__builtin_huge_val();
  with_type(args.type, [&](auto type) {
    constexpr int kType = decltype(type)::kElement;
    typename V::Reg best = V::set1(static_cast<typename V::T>(most));
    for (int64_t r = 0; r < args.rows; ++r) {
      int64_t j = 0;
      if (args.stride == 1 && has_vector_access<V>(kType))
        for (; j + V::W <= args.n; j += V::W) {
          const typename V::Reg x = load_vector<V>(kType, args.row[r], j);
          best = V::select(V::greater(x, best), x, best);
        }
      for (; j < args.n; ++j) {
        const double x = load_element<double>(kType, args.row[r], j * args.stride);
        if (x > most) most = x;
      }
    }
    const double lanes = static_cast<double>(V::largest(best));
    if (lanes > most) most = lanes;
  });
  return most;
}

// -------------------------------------------------------------------------------------------------------------- step

/// for_columns, four vectors at a time.
template <class V, class Body>
inline __attribute__((always_inline)) void for_four_columns(int64_t end, const Body& body) {
  int64_t j = 0;
  for (; j + 4 * V::W <= end; j += 4 * V::W) {
    ATTN_UNROLL
    for (int n = 0; n < 4; ++n) body(j + n * V::W, Whole<V>{});
  }
  for_columns<V>(j, end, body);
}

/// A state goes row by row, in the order of memory: four rows at once take twice as long, whatever is prefetched.
template <class V>
class Step {
 public:
  using T = typename V::T;
  using Reg = typename V::Reg;
  explicit Step(const StepArgs& args) : args_(args) {}

  void run() const {
    T *u = static_cast<T*>(args_.u), *out = static_cast<T*>(args_.out);
    const Reg beta = V::set1(static_cast<T>(args_.beta));
    for_columns<V>(0, args_.columns, [&](int64_t j, auto lanes) { lanes.store(out, j, V::zero()); });
    for (int64_t d = 0; args_.delta && args_.state_in && d < args_.depth; ++d) add_returned(d, args_.columns, out);
    for_columns<V>(0, args_.columns, [&](int64_t j, auto lanes) {
      lanes.store(u, j, V::mul(beta, V::sub(lanes.load(u, j), lanes.load(out, j))));
      lanes.store(out, j, V::zero());
    });
    for (int64_t d = 0; d < args_.depth; ++d) update(d, args_.columns, u, out);
  }

 private:
  Reg factor(const void* of, int64_t d) const { return V::set1(of ? static_cast<const T*>(of)[d] : T{1}); }
  const T* row_in(int64_t d) const { return static_cast<const T*>(args_.state_in) + d * args_.in_row; }

  /// sums += row d's part of (decay S)^T k
  void add_returned(int64_t d, int64_t columns, T* sums) const {
    const Reg k = V::mul(factor(args_.k, d), factor(args_.decay, d));
    const T* in = row_in(d);
    for_four_columns<V>(columns, [&](int64_t j, auto lanes) {
      lanes.store(sums, j, V::fma(k, lanes.load(in, j), lanes.load(sums, j)));
    });
  }
  /// Row d of S becomes decay S + k u^T; sums += its part of S^T q.
  void update(int64_t d, int64_t columns, const T* u, T* sums) const {
    const Reg k = factor(args_.k, d), q = factor(args_.q, d), decay = factor(args_.decay, d);
    const T* in = args_.state_in ? row_in(d) : nullptr;
    T* to = static_cast<T*>(args_.state_out) + d * args_.out_row;
    for_four_columns<V>(columns, [&](int64_t j, auto lanes) {
      const Reg before = in ? V::mul(decay, lanes.load(in, j)) : V::zero();
      const Reg state = V::fma(k, lanes.load(u, j), before);
      lanes.store(to, j, state);
      lanes.store(sums, j, V::fma(q, state, lanes.load(sums, j)));
    });
  }

  const StepArgs& args_;
};

template <class V>
void step(const StepArgs& args) {
  Step<V>(args).run();
}

template <class V>
constexpr LinearKernels linear_kernels() {
  return {.multiply = multiply<V>,
          .solve = solve<V>,
          .elements = elements<V>,
          .scale_rows = scale_rows<V>,
          .running = running<V>,
          .decays = decays<V>,
          .pairs = pairs<V>,
          .pairs_grad = pairs_grad<V>,
          .row_dots = row_dots<V>,
          .transpose = transpose<V>,
          .exponentials = exponentials<V>,
          .step = step<V>,
          .largest = largest<V>,
          .convolve = convolve<V>,
          .convolve_grad = convolve_grad<V>};
}

constexpr LinearKernels f32_linear = linear_kernels<F32>();
constexpr LinearKernels f64_linear = linear_kernels<F64>();

}  // namespace
}  // namespace attn::kernels
