// What the ranks say to each other before and between calls: the first message of every call of all ranks is a Status,
// so that a refusal reaches the other ranks wherever they are.
#pragma once

#include <string>
#include <vector>

#include "cluster/call.h"

namespace attn::cluster {

/// What must be the same on all ranks, in the order in which it is named.
enum Part { kCall, kShapes, kSharding, kOptions, kMaskOrBias, kArithmetic, kSchedule, kParts };

struct Status {
  uint64_t sums[kParts];
  int64_t text_bytes;
  Wants wants;
  bool refuses;    // the text is why,
  bool is_passed;  // and names the rank that has said it to ranks of another communicator
};

/// Of a call that is known by its name alone,
Status status_of(const std::string& call);
/// and of a rank that refuses to take part.
Status refusal();

/// The status of every rank, and its text.
struct Said {
  std::vector<Status> statuses;
  std::vector<std::string> texts;
};

/// Exchanges them. Throws, on all ranks, the text of the first rank that refuses, and Error if a part differs.
Said exchange_status(Communicator& ranks, const char* operation, Status mine, std::string text);

RanksError differ(const Communicator& ranks, const char* operation, const std::string& what, int rank, int other);
/// "a; b"
std::string joined(const std::vector<std::string>& reasons);

}  // namespace attn::cluster
