// The forward schedule, for every caller that has a Problem: attention(), KVCache::attend(), explain().
#pragma once

#include "attention/problem.h"
#include "attn/profile.h"

namespace attn::detail {

/// How a forward call is cut up: into chunks of keys by shape alone, as they decide about bits, into groups of rows so
/// that every thread finds some.
struct ForwardPlan {
  // With fewer groups than this, chunks of keys become tasks of their own.
  static constexpr int64_t kFewGroups = 16;
  static constexpr int64_t kGroupsAThread = 4;  // at least, where groups could be larger
  struct Group {  // one unit of work: rows of one sequence and key/value head, or all rows of several heads
    int32_t sequence = 0;
    int64_t kv_head = 0;
    int64_t first_row = 0, rows = 0;
    int heads = 1;
  };
  ShortList<Group, kFewGroups> groups;
  int group_panels = 0;    // panels of a full group
  int group_heads = 1;     // heads of one that has several
  int64_t chunk_keys = 0;  // keys of a chunk
  int64_t chunks = 1;      // of the longest sequence
  bool split = false;      // chunks are tasks of their own
  int64_t tasks = 0;
  int64_t thread_bytes = 0;   // scratch a thread
  int64_t row_stride = 0;     // Dv padded to whole vectors
  int64_t partial_bytes = 0;  // states of all chunks, where they are tasks
};

ForwardPlan plan_forward(const Problem& p);
void run_forward(const Problem& p, const ForwardPlan& plan, const View<4>& out, const View<3>& lse);

// What calls report to a profile: of a forward, of a backward (backward.h), and of what computes scores alone.
OperationWork forward_work(const Problem& p, const View<4>& out, const View<3>& lse);
OperationWork scores_work(const Problem& p);

}  // namespace attn::detail
