// How the gradients of each batch come to the ranks that own them.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "train/pieces.h"

namespace attn::train {

/// Sends the gradients of each batch to the owners of their pieces, and adds up what comes, in the order of the
/// batches.
///
/// A gradient is sent while the backward still runs if all ranks had it in the last batch, and no step of the tape has
/// a handle of its parameter any more. The other gradients follow after the backward, and those of which several tensor
/// ranks have the same rows, which are added up first. All ranks send in the order of the pieces, so that messages
/// meet.
class GradientExchange {
 public:
  /// Borrows all; `sum` has the own pieces.
  GradientExchange(cluster::Communicator& ranks, nn::Parameters& parameters, const std::vector<Piece>& pieces,
                   Array sum);

  void begin_update();
  /// Before the forward of a batch, whose steps take handles of the parameters.
  void begin_batch();
  /// Between two steps of the backward.
  void send_complete();
  /// After the backward. Throws RanksError on all ranks if it has thrown on one of them: `failure` is that, or null.
  void end_batch(const std::exception_ptr& failure);

  /// True if a batch of the update has had a gradient of this parameter, on any rank.
  bool has_sum(size_t parameter) const { return has_sum_[parameter]; }

 private:
  /// For each rank, which parameters it sends.
  using Senders = std::vector<std::string>;
  /// Gradients of consecutive pieces on their way.
  struct Bucket {
    size_t begin = 0, end = 0;
    Array received = {};  // own pieces in order, from each rank but this one in order
    std::unique_ptr<cluster::Transfer> transfer = {};
  };

  bool is_own(const Piece& piece) const { return piece.owner == ranks_.rank(); }
  const nn::Parameter& parameter_of(const Piece& piece) const { return parameters_.all()[piece.parameter]; }
  View<2> gradient_of(const Piece& piece) const;
  bool is_complete(const Piece& piece) const;
  size_t end_of_bucket(size_t begin) const;
  void start_bucket(const Senders& senders);
  void finish_bucket(const Senders& senders);
  void finish_all(const Senders& senders);
  std::string state_of_gradients() const;

  cluster::Communicator& ranks_;
  nn::Parameters& parameters_;
  const std::vector<Piece>& pieces_;
  const Array sum_, zeros_;
  std::vector<bool> has_sum_;  // of each parameter
  Senders early_;              // of gradients that all ranks had in the last batch, and send during the backward
  std::vector<int64_t> handles_, sent_additions_;  // of each parameter, at the begin of the batch and when it was sent
  std::deque<Bucket> buckets_;                     // on their way
  size_t next_ = 0;                                // the piece at which the next bucket begins
};

}  // namespace attn::train
