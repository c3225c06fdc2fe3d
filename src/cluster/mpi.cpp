// The communicator over MPI: point-to-point messages without blocking, and one collective.
#include <algorithm>
#include <exception>
#include <limits>

#include "attn/cluster_mpi.h"
#include "cluster/wait_limit.h"

namespace attn::cluster {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error("cluster", {std::string(what) + ": " + text});
}

// A count is an int in MPI 3.1.
constexpr int64_t kLargest = int64_t{1} << 30;

class MpiTransfer : public Transfer {
 public:
  MpiTransfer(MPI_Comm ranks, WaitLimit& limit, std::span<const Message> sent, std::span<const Message> received,
              int tag)
      : limit_(limit) {
    for (const Message& message : received)
      each_piece(message, [&](void* data, int bytes, MPI_Request* request) {
        return MPI_Irecv(data, bytes, MPI_BYTE, message.rank, tag, ranks, request);
      });
    receives_ = requests_.size();
    for (const Message& message : sent)
      each_piece(message, [&](void* data, int bytes, MPI_Request* request) {
        return MPI_Isend(data, bytes, MPI_BYTE, message.rank, tag, ranks, request);
      });
  }

  /// An exception may leave messages under way, which borrow memory that is freed next: the destructor waits for them.
  ~MpiTransfer() override {
    try {
      if (!limit_.has_passed()) wait();
    } catch (const std::exception&) {  // another one passes already
    }
    abandon();
  }

  bool progress() override {
    if (requests_.empty()) return true;
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (done) requests_.clear();
    return done != 0;
  }

  void wait() override {
    if (limit_.is_set()) return limit_.wait([this] { return progress(); });
    std::vector<MPI_Request> requests;
    requests.swap(requests_);
    if (!requests.empty())
      check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  }

 private:
  /// Gives up messages that have not been received; those that are sent may still arrive.
  void abandon() {
    for (size_t n = 0; n < requests_.size(); ++n) {
      if (requests_[n] == MPI_REQUEST_NULL) continue;
      if (n < receives_) MPI_Cancel(&requests_[n]);
      MPI_Request_free(&requests_[n]);
    }
  }

  template <class Start>
  void each_piece(const Message& message, const Start& start) {
    for (int64_t done = 0; done < message.bytes; done += kLargest) {
      const int bytes = static_cast<int>(std::min(kLargest, message.bytes - done));
      MPI_Request request = MPI_REQUEST_NULL;
      check(start(static_cast<char*>(message.data) + done, bytes, &request), "a message cannot be started");
      requests_.push_back(request);
    }
  }

  WaitLimit& limit_;
  std::vector<MPI_Request> requests_;
  size_t receives_ = 0;  // so many requests, the first, are of messages to receive
};

class MpiRanks : public Communicator {
 public:
  MpiRanks(MPI_Comm from, double wait_limit) : limit_(std::make_shared<WaitLimit>(from, wait_limit)) {
    check(MPI_Comm_dup(from, &ranks_), "MPI_Comm_dup");
    complete();
    for (int rank = 0; rank < size_; ++rank) job_ranks_.push_back(rank);
  }
  MpiRanks(const MpiRanks& from, int color) : limit_(from.limit_) {
    check(MPI_Comm_split(from.ranks_, color, from.rank_, &ranks_), "MPI_Comm_split");
    complete();
    job_ranks_.resize(size_);
    all_gather(&from.job_ranks_[from.rank_], sizeof(int), job_ranks_.data());
  }
  ~MpiRanks() override {
    int finished = 0;
    MPI_Finalized(&finished);
    if (!finished) MPI_Comm_free(&ranks_);
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received, int tag) override {
    return std::make_unique<MpiTransfer>(ranks_, *limit_, sent, received, tag);
  }
  void all_gather(const void* from, int64_t bytes, void* to) override {
    if (bytes > std::numeric_limits<int>::max())
      throw Error("cluster", {"all_gather() of " + std::to_string(bytes) + " bytes a rank, must be less than 2 GiB"});
    const int count = static_cast<int>(bytes);
    if (!limit_->is_set()) {
      check(MPI_Allgather(from, count, MPI_BYTE, to, count, MPI_BYTE, ranks_), "MPI_Allgather");
      return;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(from, count, MPI_BYTE, to, count, MPI_BYTE, ranks_, &request), "MPI_Iallgather");
    limit_->wait([&] {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
  }
  std::unique_ptr<Communicator> split(int color) override { return std::make_unique<MpiRanks>(*this, color); }
  int job_rank(int rank) const override { return job_ranks_[rank]; }

 private:
  void complete() {
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(ranks_, &rank_);
    MPI_Comm_size(ranks_, &size_);
  }

  std::shared_ptr<WaitLimit> limit_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<int> job_ranks_;
};

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv, double wait_limit) : exceptions_(std::uncaught_exceptions()) {
  int running = 0, provided = MPI_THREAD_FUNNELED;
  MPI_Initialized(&running);
  if (running) MPI_Query_thread(&provided);
  else check(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  started_ = !running;
  if (provided < MPI_THREAD_FUNNELED)
    throw Error("cluster", {"MPI was started for processes of one thread, must be MPI_THREAD_FUNNELED or more"});
  world_ = mpi_ranks(MPI_COMM_WORLD, wait_limit);
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_) MPI_Abort(MPI_COMM_WORLD, 1);
  world_.reset();
  if (started_) MPI_Finalize();
}

std::unique_ptr<Communicator> mpi_ranks(MPI_Comm communicator, double wait_limit) {
  return std::make_unique<MpiRanks>(communicator, wait_limit);
}

}  // namespace attn::cluster
