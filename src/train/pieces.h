// How ranks that share an update divide the parameters.
#pragma once

#include "attn/cluster.h"
#include "attn/nn_parameters.h"

namespace attn::train {

/// Elements first .. first + count - 1 of a parameter. A piece of sum_of_squares(), so that a norm is that of the
/// whole.
struct Piece {
  size_t parameter = 0;
  int64_t first = 0, count = 0;
  int owner = 0;
  int64_t offset = 0;  // among the elements of its owner
  bool counts = true;  // in the norm; not where another tensor rank has the same rows
};

/// The part of an array that a piece is.
inline View<2> part_of(const Array& array, int64_t first, int64_t count) {
  return {static_cast<char*>(array.data()) + first * size_of(array.dtype()), array.dtype(), {1, count}};
}
inline View<2> part_of(const Array& array, const Piece& piece) { return part_of(array, piece.first, piece.count); }
/// The part among the elements of its owner.
inline View<2> own_part(const Array& array, const Piece& piece) { return part_of(array, piece.offset, piece.count); }

inline cluster::Message message(int rank, const View<2>& part) {
  return {rank, part.data, part.size[1] * size_of(part.dtype)};
}

template <class Each>
void each_other_rank(const cluster::Communicator& ranks, const Each& each) {
  for (int rank = 0; rank < ranks.size(); ++rank)
    if (rank != ranks.rank()) each(rank);
}

/// Message tags.
enum Tag { kGradients = 16, kValues = 17, kMoments = 18 };

}  // namespace attn::train
