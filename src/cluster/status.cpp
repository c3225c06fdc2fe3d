// Statuses and texts of ranks, and what programs do with them.
#include "cluster/status.h"

#include <algorithm>
#include <cstring>

#include "cluster/sum.h"

namespace attn::cluster {
namespace {

constexpr const char* kNames[kParts] = {"the call that they make",
                                        "the shapes or the type of the arrays",
                                        "the sharding",
                                        "the options",
                                        "the presence or shape of a mask or a bias",
                                        "the instruction set (set ATTN_ISA on all ranks)",
                                        "the schedule"};

/// The texts of all ranks: each sends as many bytes as the longest has.
std::vector<std::string> exchange_texts(Communicator& ranks, const std::vector<Status>& statuses, std::string text) {
  int64_t longest = 0;
  for (const Status& status : statuses) longest = std::max(longest, status.text_bytes);
  std::vector<std::string> texts(ranks.size());
  if (longest == 0) return texts;
  text.resize(longest);
  std::string all(longest * ranks.size(), ' ');
  ranks.all_gather(text.data(), longest, all.data());
  for (int rank = 0; rank < ranks.size(); ++rank) texts[rank] = all.substr(rank * longest, statuses[rank].text_bytes);
  return texts;
}

std::string rank_text(const Communicator& ranks, int rank) { return "rank " + std::to_string(ranks.job_rank(rank)); }

class OneRank : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Transfer> start(std::span<const Message>, std::span<const Message>, int) override {
    return std::make_unique<Done>();
  }
  void all_gather(const void* from, int64_t bytes, void* to) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  struct Done : Transfer {  // nobody else is there to send to
    bool progress() override { return true; }
    void wait() override {}
  };
};

}  // namespace

Status status_of(const std::string& call) {
  Sum sum;
  sum.add(call);
  Status status{};
  status.sums[kCall] = sum.value();
  return status;
}

Status refusal() {
  Status status{};
  status.refuses = true;
  return status;
}

RanksError differ(const Communicator& ranks, const char* operation, const std::string& what, int rank, int other) {
  return {ranks,
          operation,
          {rank_text(ranks, rank) + " and " + rank_text(ranks, other) + " differ in " + what +
           ", must be the same on all ranks"}};
}

Said exchange_status(Communicator& ranks, const char* operation, Status mine, std::string text) {
  mine.text_bytes = static_cast<int64_t>(text.size());
  Said said{std::vector<Status>(ranks.size()), {}};
  ranks.all_gather(&mine, sizeof mine, said.statuses.data());
  said.texts = exchange_texts(ranks, said.statuses, std::move(text));
  for (int rank = 0; rank < ranks.size(); ++rank)
    if (said.statuses[rank].refuses)
      throw RanksError(ranks, operation,
                       {(said.statuses[rank].is_passed ? "" : rank_text(ranks, rank) + ": ") + said.texts[rank]});
  for (int rank = 1; rank < ranks.size(); ++rank)
    for (int part = 0; part < kParts; ++part)
      if (said.statuses[rank].sums[part] != said.statuses[0].sums[part])
        throw differ(ranks, operation, kNames[part], rank, 0);
  return said;
}

std::string joined(const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : "; ") + reason;
  return text;
}

std::unique_ptr<Communicator> Communicator::split(int) { throw Error("cluster", {"these ranks cannot be split"}); }

Communicator& one_rank() {
  static OneRank ranks;
  return ranks;
}

std::vector<std::string> gather(Communicator& ranks, const std::string& mine) {
  if (ranks.size() == 1) return {mine};
  return exchange_status(ranks, "cluster", status_of("gather"), mine).texts;
}

void require_same(Communicator& ranks, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = gather(ranks, mine);
  for (int rank = 1; rank < ranks.size(); ++rank)
    if (all[rank] != all[0])
      throw RanksError(ranks, "cluster",
                       {rank_text(ranks, rank) + " has " + what + " " + all[rank] + ", and " + rank_text(ranks, 0) +
                        " " + all[0] + ": must be the same on all ranks"});
}

void synchronize(Communicator& ranks, const std::string& step) {
  if (ranks.size() == 1) return;
  exchange_status(ranks, "cluster", status_of(step), "");
}

void refuse(Communicator& ranks, const std::string& reason) {
  if (ranks.size() > 1) exchange_status(ranks, "cluster", refusal(), reason);
  throw RanksError(ranks, "cluster", {reason});
}

namespace {

/// Says to these ranks what ranks of another communicator have found, and throws it.
[[noreturn]] void pass_on(Communicator& ranks, const RanksError& found) {
  Status mine = refusal();
  mine.is_passed = true;
  try {
    exchange_status(ranks, found.operation().c_str(), mine, joined(found.reasons()));
  } catch (RanksError& error) {
    error.add(found);
    throw;
  }
  throw found;
}

}  // namespace

void on_all_ranks(Communicator& ranks, const std::string& step, const std::function<void()>& work) {
  if (ranks.size() == 1) return work();
  std::optional<RanksError> found;
  std::optional<std::string> reason;
  try {
    work();
  } catch (const RanksError& error) {
    if (error.is_known_to(ranks)) throw;
    found = error;
  } catch (const Error& error) {
    reason = joined(error.reasons());
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (found) pass_on(ranks, *found);
  if (reason) refuse(ranks, *reason);
  synchronize(ranks, step);
}

}  // namespace attn::cluster
