// Training with a communicator: of one rank. tests/cluster has more of them.
#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

/// A job of one rank sums gradients as several ranks do, and sends no messages.
TEST(TrainingRanks, OneRankTrainsAsAProcessAlone) {
  const TextDataset data = text();
  TrainerOptions alone = short_run();
  alone.epsilon = 1;  // then an update is nearly linear in the gradient, and its error is that of the gradient
  TrainerOptions of_rank = alone;
  const cluster::RankGrid grid;
  of_rank.ranks = &grid;
  models::Model a(tiny(0), nn::Precision::float64, 1), b(tiny(0), nn::Precision::float64, 1);
  const Folder folder;
  Trainer(a, data, alone, "").run();
  Trainer first(b, data, of_rank, folder.path());
  first.run({.stop = [&] { return first.steps_done() == 9; }});
  Trainer second(b, data, of_rank, folder.path());
  second.resume(nullptr);
  second.run();
  for (size_t n = 0; n < a.parameters().all().size(); ++n)
    EXPECT_TRUE(close_float64(numbers(a.parameters().all()[n].master), numbers(b.parameters().all()[n].master)))
        << a.parameters().all()[n].name;
}

}  // namespace
}  // namespace attn::test
