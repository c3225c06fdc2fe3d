// Sums over ranks, in the order of ranks.
//
//   few elements    every rank sends all of them to all, together with its status
//   more            the elements are cut into a part for each rank: it receives that part from all, adds it up, and
//                   sends the sum to all
#include <cstring>

#include "cluster/arrays.h"
#include "cluster/status.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

constexpr int kTermsTag = 5, kSumsTag = 6;
constexpr int64_t kMostBytesAtOnce = int64_t{1} << 14;

/// to[i] = the sum of terms[r][i] over r, in order.
template <class T>
void add_up(std::span<const T* const> terms, int64_t count, T* to) {
  constexpr int64_t kBlock = int64_t{1} << 14;
  parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t begin = block * kBlock, end = std::min(count, begin + kBlock);
    T sums[kBlock];
    std::copy(terms[0] + begin, terms[0] + end, sums);
    for (size_t rank = 1; rank < terms.size(); ++rank)
      for (int64_t i = begin; i < end; ++i) sums[i - begin] += terms[rank][i];
    std::copy(sums, sums + (end - begin), to + begin);
  });
}

void add_up(DType dtype, const std::vector<const void*>& terms, int64_t count, void* to) {
  const auto as = [&]<class T>(T*) {
    std::vector<const T*> typed;
    for (const void* term : terms) typed.push_back(static_cast<const T*>(term));
    add_up<T>(typed, count, static_cast<T*>(to));
  };
  if (dtype == DType::float64) as(static_cast<double*>(nullptr));
  else as(static_cast<float*>(nullptr));
}

/// Dense elements of this rank.
struct Elements {
  char* data;
  DType dtype;
  int64_t count;

  char* at(int64_t n) const { return data + n * size_of(dtype); }
  int64_t bytes(int64_t n) const { return n * size_of(dtype); }
};

void add_in_parts(Communicator& ranks, const Elements& x) {
  const int R = ranks.size(), own = ranks.rank();
  const auto first = [&](int rank) { return x.count * rank / R; };
  const auto count = [&](int rank) { return first(rank + 1) - first(rank); };
  const Buffer received(static_cast<size_t>(x.bytes(count(own)) * (R - 1)));
  std::vector<Message> sent, terms;
  std::vector<const void*> all;
  char* next = static_cast<char*>(received.data());
  for (int rank = 0; rank < R; ++rank) {
    all.push_back(rank == own ? x.at(first(own)) : next);
    if (rank == own) continue;
    sent.push_back({rank, x.at(first(rank)), x.bytes(count(rank))});
    terms.push_back({rank, next, x.bytes(count(own))});
    next += x.bytes(count(own));
  }
  start(ranks, sent, terms, kTermsTag)->wait();
  add_up(x.dtype, all, count(own), x.at(first(own)));
  std::vector<Message> sums, others;
  for (int rank = 0; rank < R; ++rank) {
    if (rank == own) continue;
    sums.push_back({rank, x.at(first(own)), x.bytes(count(own))});
    others.push_back({rank, x.at(first(rank)), x.bytes(count(rank))});
  }
  start(ranks, sums, others, kSumsTag)->wait();
}

}  // namespace

void all_reduce(Communicator& ranks, View<2> x) {
  Checker checker("all_reduce");
  checker.require(x.dtype == DType::float32 || x.dtype == DType::float64,
                  [&] { return "x is " + std::string(name_of(x.dtype)) + ", must be float32 or float64"; });
  checker.require(x.data || x.empty(), "x has no data");
  const bool dense = x.empty() || (x.stride[1] == 1 && (x.stride[0] == x.size[1] || x.size[0] == 1));
  checker.require(dense, "x must be dense");
  const std::vector<std::string> reasons = reasons_of([&] { checker.done(); });
  const Elements mine{static_cast<char*>(x.data), x.dtype, x.count()};
  if (ranks.size() == 1) {
    if (!reasons.empty()) throw Error("all_reduce", reasons);
    return;
  }
  const bool at_once = reasons.empty() && mine.bytes(mine.count) <= kMostBytesAtOnce;
  Status status = reasons.empty() ? status_of("all_reduce") : refusal();
  status.sums[kShapes] = static_cast<uint64_t>(mine.count) << 8 | static_cast<uint64_t>(mine.dtype);
  const Said said =
      exchange_status(ranks, "all_reduce", status,
                      at_once ? std::string(mine.data, static_cast<size_t>(mine.bytes(mine.count))) : joined(reasons));
  if (!at_once) return add_in_parts(ranks, mine);
  std::vector<const void*> terms;
  for (const std::string& text : said.texts) terms.push_back(text.data());
  add_up(mine.dtype, terms, mine.count, mine.data);
}

}  // namespace attn::cluster
