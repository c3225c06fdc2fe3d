#include "cluster/roll_call.h"

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

constexpr std::chrono::milliseconds kInterval{100};  // between two looks at what others say
constexpr seconds kAnswers{3};                       // for those that wait as well
constexpr seconds kFirst{10};                        // for the first of them to end the job
constexpr int kTag = 0;

/// "rank 1 hangs" or "ranks 1, 4 hang".
std::string hanging(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return ranks.size() == 1 ? "rank " + list + " hangs" : "ranks " + list + " hang";
}

std::string reason(const std::vector<int>& absent, double limit) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", limit);
  const std::string waited = std::string("ranks have waited for ") + text + " s, which is the limit: ";
  return waited + (absent.empty() ? "each waits for another" : hanging(absent) + ", or computes for longer");
}

}  // namespace

RollCall::RollCall(MPI_Comm all, double limit) : limit_(limit) {
  if (!has_limit()) return;
  MPI_Comm_dup(all, &all_);
  int size = 1;
  MPI_Comm_rank(all_, &rank_);
  MPI_Comm_size(all_, &size);
  waits_.resize(size);
}

RollCall::~RollCall() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (all_ != MPI_COMM_NULL && !finished) MPI_Comm_free(&all_);
}

bool RollCall::listen() {
  for (int found = 1; found;) {
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, all_, &found, &status);
    if (!found) break;
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kTag, all_, MPI_STATUS_IGNORE);
    waits_[status.MPI_SOURCE] = true;
  }
  return std::find(waits_.begin(), waits_.end(), true) != waits_.end();
}

void RollCall::wait(const std::function<bool()>& complete) {
  if (gave_up()) throw RankHangs(reason_);
  const Clock::time_point start = Clock::now();
  Clock::time_point next = start + kInterval;
  while (!complete()) {
    std::this_thread::yield();
    const Clock::time_point now = Clock::now();
    if (now < next) continue;
    next = now + kInterval;
    if (listen() || std::chrono::duration<double>(now - start).count() > limit_) give_up();
  }
}

void RollCall::give_up() {
  const int size = static_cast<int>(waits_.size());
  for (int rank = 0; rank < size; ++rank) {
    if (rank == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, rank, kTag, all_, &request);
    MPI_Request_free(&request);
  }
  waits_[rank_] = true;
  for (const Clock::time_point end = Clock::now() + kAnswers; Clock::now() < end;) {
    listen();
    std::this_thread::sleep_for(kInterval / 10);
  }
  std::vector<int> absent;
  for (int rank = 0; rank < size; ++rank)
    if (!waits_[rank]) absent.push_back(rank);
  reason_ = reason(absent, limit_);
  // The first of those that wait throws at once: a program that ends the job then says why only once.
  if (std::find(waits_.begin(), waits_.end(), true) - waits_.begin() < rank_) std::this_thread::sleep_for(kFirst);
  throw RankHangs(reason_);
}

}  // namespace attn::cluster
