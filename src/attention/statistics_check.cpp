// What attention_statistics() asks of its arguments.
#include "attention/statistics.h"

#include <cmath>
#include <string>

#include "attention/elements.h"

namespace attn::detail {
namespace {

/// The checks of one call.
class StatisticsChecks {
 public:
  StatisticsChecks(Checker& checker, const Problem& p, const AttentionStatistics& wanted, ValueTypes types)
      : checker_(checker), p_(p), wanted_(wanted), types_(types) {}

  /// Values: of lse's type, or of any floating one.
  template <class Pointer, int Rank>
  void values(const char* name, const BasicView<Pointer, Rank>& view, const std::type_identity_t<Shape<Rank>>& size) {
    const DType dtype = p_.q.dtype == DType::float64 ? DType::float64 : DType::float32;
    array(name, view, size, types_ == ValueTypes::any ? is_floating(view.dtype) : view.dtype == dtype,
          types_ == ValueTypes::any ? "a floating type" : name_of(dtype));
  }
  template <int Rank>
  void keys(const char* name, const View<Rank>& view, const std::type_identity_t<Shape<Rank>>& size) {
    if (view) array(name, view, size, view.dtype == DType::int64, "int64");
  }
  template <class Pointer, int Rank>
  void results(const char* name, const BasicView<Pointer, Rank>& view, const std::type_identity_t<Shape<Rank>>& size) {
    if (view) values(name, view, size);
  }

  template <int Rank, class Pointer>
  void row_statistics(const std::string& prefix, const RowStatistics<Rank, Pointer>& s,
                      const std::type_identity_t<Shape<Rank>>& size) {
    const auto in_sets = [&](int64_t sets) {
      Shape<Rank + 1> with{};
      std::copy(size.begin(), size.end(), with.begin());
      with[Rank] = sets;
      return with;
    };
    const auto one = [&](const char* name, const BasicView<Pointer, Rank>& view) {
      results((prefix + name).c_str(), view, size);
    };
    one("sum", s.sum);
    one("entropy", s.entropy);
    one("participation", s.participation);
    one("maximum", s.maximum);
    one("distance", s.distance);
    one("same_token", s.same_token);
    results((prefix + "bands").c_str(), s.bands, in_sets(static_cast<int64_t>(wanted_.sets.bands.size())));
    results((prefix + "labels").c_str(), s.labels, in_sets(label_count(wanted_)));
  }

  /// Whose gradient is given must be there.
  void forward_of(const RowStatisticsGradients& drows) {
    const RowStatistics<3>& rows = wanted_.rows;
    const auto one = [&](const char* name, bool gradient, bool there) {
      checker_.require(!gradient || there, [&] {
        return "drows." + std::string(name) + " is given, but not statistics." + name + " of the forward";
      });
    };
    one("entropy", bool(drows.entropy), bool(rows.entropy));
    one("participation", bool(drows.participation), bool(rows.participation));
    one("maximum", bool(drows.maximum), rows.maximum && wanted_.argmax_key);
    one("distance", bool(drows.distance), bool(rows.distance));
    one("same_token", bool(drows.same_token), bool(rows.same_token));
    one("bands", bool(drows.bands), bool(rows.bands));
    one("labels", bool(drows.labels), bool(rows.labels));
  }

  void sets() {
    const KeySets& sets = wanted_.sets;
    checker_.require(static_cast<int64_t>(sets.bands.size()) <= kMaxKeySets,
                     [&] { return "there are " + std::to_string(sets.bands.size()) + " bands, must be at most 64"; });
    for (size_t n = 0; n < sets.bands.size(); ++n)
      checker_.require(sets.bands[n].low <= sets.bands[n].high, [&] {
        return "sets.bands[" + std::to_string(n) + "] is " + std::to_string(sets.bands[n].low) + " to " +
               std::to_string(sets.bands[n].high) + ", must not end before it begins";
      });
    const bool masses = wanted_.rows.labels || wanted_.means.labels;
    checker_.require(!masses || sets.labels, "masses on labels are requested, but there are no sets.labels");
    checker_.require(label_count(wanted_) <= kMaxKeySets, [&] {
      return "there are " + std::to_string(label_count(wanted_)) + " labels, must be at most 64";
    });
    if (sets.labels) check_labels(masses);
    checker_.require(bool(sets.query_token_ids) == bool(sets.key_token_ids),
                     "query_token_ids and key_token_ids must be given together");
    checker_.require(!(wanted_.rows.same_token || wanted_.means.same_token) || sets.query_token_ids,
                     "same_token is requested, but there are no query_token_ids and key_token_ids");
    if (sets.query_token_ids) check_ids(checker_, "sets.query_token_ids", sets.query_token_ids, p_.B, p_.Lq);
    if (sets.key_token_ids) check_ids(checker_, "sets.key_token_ids", sets.key_token_ids, p_.B, p_.Lk);
  }

  void positions() {
    checker_.require(p_.shard() == Shard(), "shard does not apply to statistics: they are of whole rows and columns");
    bool wanted = wanted_.rows.distance || wanted_.means.distance || wanted_.column_position;
    if (wanted_.rows.bands || wanted_.means.bands)
      for (const KeyBand& band : wanted_.sets.bands) wanted = wanted || band.relative;
    checker_.require(!wanted || has_positions(p_), [&] { return unnamed_alignment(p_); });
  }

  void largest() {
    const Shape<4>&weights = wanted_.top_weight.size, &keys = wanted_.top_key.size;
    const int64_t n = std::max(weights[3], keys[3]);
    this->keys("argmax_key", wanted_.argmax_key, {p_.B, p_.H, p_.Lq});
    this->keys("top_key", wanted_.top_key, {p_.B, p_.H, p_.Lq, n});
    results("top_weight", wanted_.top_weight, {p_.B, p_.H, p_.Lq, n});
    checker_.require(n <= kMaxLargest, [&] {
      return "the " + std::to_string(n) + " largest weights of a row are requested, must be at most " +
             std::to_string(kMaxLargest);
    });
  }

  void picture() {
    const AttentionPicture& picture = wanted_.picture;
    if (!picture.cells) return;
    const int64_t R = picture.cells.size[2], C = picture.cells.size[3];
    results("picture.cells", picture.cells, {p_.B, p_.H, R, C});
    axis("queries", picture.first_query, picture.queries, p_.Lq, R, "rows");
    axis("keys", picture.first_key, picture.keys, p_.Lk, C, "columns");
  }

  void factors() {
    const ConstView<3>& factor = wanted_.key_factor;
    if (!factor) return;
    const Shape<3>& size = factor.size;
    const bool fits = (size[0] == p_.B || size[0] == 1) && (size[1] == p_.H || size[1] == p_.Hk || size[1] == 1);
    checker_.require(fits && size[2] == p_.Lk, [&] {
      return "key_factor has size " + to_string(size) + ", must be " + to_string(Shape<3>{p_.B, p_.H, p_.Lk}) +
             " (the first axis may be 1, the second Hk = " + std::to_string(p_.Hk) + " or 1)";
    });
    values("key_factor", factor, size);
    if (!checker_.ok()) return;
    for (int64_t b = 0; b < size[0]; ++b)
      for (int64_t h = 0; h < size[1]; ++h)
        for (int64_t j = 0; j < size[2]; ++j) {
          const double value = key_factor_at(factor, b, h, j);
          if (!checker_.require(value >= 0 && std::isfinite(value), [&] {
                return "key_factor[" + std::to_string(b) + ", " + std::to_string(h) + ", " + std::to_string(j) +
                       "] is " + std::to_string(value) + ", must be a number that is not negative";
              }))
            return;  // the first will do
        }
  }

 private:
  template <class Pointer, int Rank>
  void array(const char* name, const BasicView<Pointer, Rank>& view, const std::type_identity_t<Shape<Rank>>& size,
             bool has_type, std::string_view type) {
    checker_.require(has_type, [&] {
      return std::string(name) + " is " + std::string(name_of(view.dtype)) + ", must be " + std::string(type);
    });
    checker_.require(view.size == size, [&] {
      return std::string(name) + " has size " + to_string(view.size) + ", must be " + to_string(size);
    });
    check_layout(checker_, name, view);
    checker_.require(view.data || view.empty(), [&] { return std::string(name) + " must have data"; });
  }

  void check_labels(bool masses) {
    const ConstView<2>& labels = wanted_.sets.labels;
    check_ids(checker_, "sets.labels", labels, p_.B, p_.Lk);
    if (!checker_.ok() || !masses) return;
    for (int64_t b = 0; b < labels.size[0]; ++b)
      for (int64_t j = 0; j < labels.size[1]; ++j) {
        const int64_t label = id_at(labels, b, j);
        if (!checker_.require(label < label_count(wanted_), [&] {
              return "sets.labels[" + std::to_string(b) + ", " + std::to_string(j) + "] is " + std::to_string(label) +
                     ", must be below the number of sets, " + std::to_string(label_count(wanted_));
            }))
          return;  // the first will do
      }
  }

  void axis(const char* name, int64_t first, int64_t given, int64_t length, int64_t bands, const char* kind) {
    const int64_t count = given < 0 ? length - first : given;
    const bool inside = first >= 0 && given >= -1 && count >= 0 && count <= length && first <= length - count;
    checker_.require(inside, [&] {
      return std::string("picture: the ") + name + " from " + std::to_string(first) + ", " + std::to_string(given) +
             " of them, must be within the " + std::to_string(length) + " that there are";
    });
    checker_.require(!inside || bands <= count, [&] {
      return "picture: there are " + std::to_string(bands) + " " + kind + " of cells, must be at most the " +
             std::to_string(count) + " " + name;
    });
  }

  Checker& checker_;
  const Problem& p_;
  const AttentionStatistics& wanted_;
  const ValueTypes types_;
};

}  // namespace

double key_factor_at(const ConstView<3>& factor, int64_t b, int64_t h, int64_t j) {
  const int64_t offset = b * factor.stride[0] + h * factor.stride[1] + j * factor.stride[2];
  return load_element(factor.dtype, static_cast<const char*>(factor.data) + offset * size_of(factor.dtype));
}

void check_statistics(Checker& checker, const Problem& p, const ConstView<3>& lse, const AttentionStatistics& wanted,
                      ValueTypes types) {
  StatisticsChecks checks(checker, p, wanted, types);
  checks.values("lse", lse, {p.B, p.H, p.Lq});
  checks.row_statistics<3>("rows.", wanted.rows, {p.B, p.H, p.Lq});
  checks.row_statistics<2>("means.", wanted.means, {p.B, p.H});
  checks.results("column_mass", wanted.column_mass, {p.B, p.H, p.Lk});
  checks.results("column_position", wanted.column_position, {p.B, p.H, p.Lk});
  checks.sets();
  checks.positions();
  checks.largest();
  checks.picture();
  checks.factors();
  if (!checker.ok()) return;
  const RowStatistics<3>& rows = wanted.rows;
  const RowStatistics<2>& means = wanted.means;
  check_overlap(checker,
                {region("rows.sum", rows.sum),
                 region("rows.entropy", rows.entropy),
                 region("rows.participation", rows.participation),
                 region("rows.maximum", rows.maximum),
                 region("rows.distance", rows.distance),
                 region("rows.same_token", rows.same_token),
                 region("rows.bands", rows.bands),
                 region("rows.labels", rows.labels),
                 region("means.sum", means.sum),
                 region("means.entropy", means.entropy),
                 region("means.participation", means.participation),
                 region("means.maximum", means.maximum),
                 region("means.distance", means.distance),
                 region("means.same_token", means.same_token),
                 region("means.bands", means.bands),
                 region("means.labels", means.labels),
                 region("argmax_key", wanted.argmax_key),
                 region("top_weight", wanted.top_weight),
                 region("top_key", wanted.top_key),
                 region("column_mass", wanted.column_mass),
                 region("column_position", wanted.column_position),
                 region("picture.cells", wanted.picture.cells)},
                {region("q", p.q), region("k", p.k), region("lse", lse), region("key_factor", wanted.key_factor),
                 region("sets.labels", wanted.sets.labels), region("sets.query_token_ids", wanted.sets.query_token_ids),
                 region("sets.key_token_ids", wanted.sets.key_token_ids)});
}

void check_statistics_backward(Checker& checker, const Problem& p, const ConstView<3>& lse,
                               const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                               const AttentionGradients& gradients, ValueTypes types) {
  check_statistics(checker, p, lse, statistics, types);
  StatisticsChecks checks(checker, p, statistics, types);
  checks.row_statistics<3>("drows.", drows, {p.B, p.H, p.Lq});
  checks.forward_of(drows);
  checker.require(!gradients.dv, "dv is requested, but there are no values");
  check_gradients(checker, p, gradients);
  if (!checker.ok()) return;
  const RowStatistics<3>& rows = statistics.rows;
  check_overlap(checker,
                {region("dq", gradients.dq), region("dk", gradients.dk), region("dbias", gradients.dbias),
                 region("dsink", gradients.dsink)},
                {region("q", p.q),
                 region("k", p.k),
                 region("lse", lse),
                 region("rows.entropy", rows.entropy),
                 region("rows.participation", rows.participation),
                 region("rows.maximum", rows.maximum),
                 region("rows.distance", rows.distance),
                 region("rows.same_token", rows.same_token),
                 region("rows.bands", rows.bands),
                 region("rows.labels", rows.labels),
                 region("argmax_key", statistics.argmax_key),
                 region("drows.sum", drows.sum),
                 region("drows.entropy", drows.entropy),
                 region("drows.participation", drows.participation),
                 region("drows.maximum", drows.maximum),
                 region("drows.distance", drows.distance),
                 region("drows.same_token", drows.same_token),
                 region("drows.bands", drows.bands),
                 region("drows.labels", drows.labels),
                 region("mask", p.options->mask),
                 region("bias", p.options->bias)});
}

}  // namespace attn::detail
