#include "cluster/wait_limit.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "attn/cluster_mpi.h"

namespace attn::cluster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr std::chrono::milliseconds kPatience{50};   // after which a rank that waits leaves its core idle
constexpr std::chrono::microseconds kNap{500};       // between two looks then
constexpr std::chrono::milliseconds kInterval{100};  // between two calls of receive()
constexpr seconds kAnswers{3};                       // for messages of other ranks that wait
constexpr seconds kFirst{10};                        // for the first of these ranks to end the job
constexpr int kTag = 0;

/// "rank 1 hangs, or computes for longer" or "ranks 1, 4 hang, or compute for longer".
std::string hanging(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return ranks.size() == 1 ? "rank " + list + " hangs, or computes for longer"
                           : "ranks " + list + " hang, or compute for longer";
}

std::string reason(const std::vector<int>& absent, double limit) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", limit);
  const std::string waited = std::string("ranks have waited for ") + text + " s, which is the limit: ";
  return waited + (absent.empty() ? "each waits for another" : hanging(absent));
}

}  // namespace

WaitLimit::WaitLimit(MPI_Comm all, double limit) : limit_(limit) {
  if (!is_set()) return;
  MPI_Comm_dup(all, &all_);
  int size = 1;
  MPI_Comm_rank(all_, &rank_);
  MPI_Comm_size(all_, &size);
  waits_.resize(size);
}

WaitLimit::~WaitLimit() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (all_ != MPI_COMM_NULL && !finished) MPI_Comm_free(&all_);
}

bool WaitLimit::receive() {
  for (int found = 1; found;) {
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, all_, &found, &status);
    if (!found) break;
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kTag, all_, MPI_STATUS_IGNORE);
    waits_[status.MPI_SOURCE] = true;
  }
  return std::find(waits_.begin(), waits_.end(), true) != waits_.end();
}

void WaitLimit::wait(const std::function<bool()>& complete) {
  if (has_passed()) throw RankHangs(reason_);
  const Clock::time_point start = Clock::now();
  Clock::time_point next = start + kInterval;
  while (!complete()) {
    const Clock::time_point now = Clock::now();
    if (now - start < kPatience) std::this_thread::yield();
    else std::this_thread::sleep_for(kNap);
    if (now < next) continue;
    next = now + kInterval;
    if (receive() || std::chrono::duration<double>(now - start).count() > limit_) throw_rank_hangs();
  }
}

void WaitLimit::throw_rank_hangs() {
  const int size = static_cast<int>(waits_.size());
  for (int rank = 0; rank < size; ++rank) {
    if (rank == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, rank, kTag, all_, &request);
    MPI_Request_free(&request);
  }
  waits_[rank_] = true;
  for (const Clock::time_point end = Clock::now() + kAnswers; Clock::now() < end;) {
    receive();
    std::this_thread::sleep_for(kInterval / 10);
  }
  std::vector<int> absent;
  for (int rank = 0; rank < size; ++rank)
    if (!waits_[rank]) absent.push_back(rank);
  reason_ = reason(absent, limit_);
  // The first rank that waits throws at once, the others later: a program that ends the job prints one message.
  if (std::find(waits_.begin(), waits_.end(), true) - waits_.begin() < rank_) std::this_thread::sleep_for(kFirst);
  throw RankHangs(reason_);
}

}  // namespace attn::cluster
