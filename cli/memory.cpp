#include "memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "attn/models_ranks.h"
#include "commands.h"
#include "job.h"
#include "numbers.h"
#include "output.h"

namespace cli {
namespace {

constexpr double kClose = 0.9;  // of what there is: the rest of the machine moves too

/// On the machine, with another batch.
double needed(TrainingShape shape, int64_t batch, bool recompute) {
  shape.batch = batch;
  shape.recompute = recompute;
  return memory_of(shape).total() * static_cast<double>(shape.on_machine);
}

/// The most sequences a batch that fit into so many bytes; 0 if not even one does.
int64_t largest_batch(const TrainingShape& shape, bool recompute, double bytes) {
  int64_t fits = 0, too_many = shape.batch + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    if (needed(shape, middle, recompute) <= bytes) fits = middle;
    else too_many = middle;
  }
  return fits;
}

std::string what_fits(const TrainingShape& shape, double bytes) {
  const int64_t plain = shape.recompute ? 0 : largest_batch(shape, false, bytes);
  const int64_t recomputed = largest_batch(shape, true, bytes);
  if (plain > 0 && recomputed > plain)
    return fmt::format("It fits with --batch {}, or with --batch {} --recompute", plain, recomputed);
  if (plain > 0) return fmt::format("It fits with --batch {}", plain);
  if (recomputed > 0) return fmt::format("It fits with --batch {} --recompute", recomputed);
  return "Not even --batch 1 --recompute fits: take a smaller model or --context";
}

/// For one sequence.
double exchange_bytes(const TrainingShape& shape) {
  using attn::cluster::Schedule;
  std::vector<Schedule> schedules = {Schedule::ring, Schedule::gather, Schedule::heads()};
  if (shape.schedule != kAuto) schedules = {Schedule::named(shape.schedule)};
  const attn::DType dtype = attn::nn::Parameters({.precision = shape.precision}).dtype();
  double most = 0;
  for (const Schedule& schedule : schedules)
    most = std::max(most, attn::models::exchange_bytes(shape.config, shape.length, dtype, shape.ranks, schedule));
  return most;
}

}  // namespace

attn::models::TrainingMemory memory_of(const TrainingShape& shape) {
  const int64_t length = (shape.length - 1) / shape.ranks.sequence + 1;
  attn::models::TrainingMemory memory =
      attn::models::training_memory(shape.config, shape.precision, shape.batch, length, shape.recompute, shape.trains);
  const double replicas = double{1} * shape.ranks.data * shape.ranks.sequence, parts = shape.ranks.tensor;
  for (double* bytes : {&memory.weights, &memory.gradients, &memory.moments}) *bytes /= parts;
  if (replicas > 1 || parts > 1) memory.gradients += memory.gradients / replicas;
  memory.moments /= replicas;
  for (double* bytes : {&memory.activations, &memory.validation})
    *bytes *= 0.25 + 0.75 / parts;  // of a block's results a quarter is what all ranks have
  memory.activations += static_cast<double>(shape.batch) * exchange_bytes(shape);
  return memory;
}

std::string describe(const attn::models::TrainingMemory& memory) {
  const auto bytes = [](double count) { return short_number(count) + "B"; };
  return fmt::format("{}: {} weights, {} gradients, {} moments, {} activations, {} validation", bytes(memory.total()),
                     bytes(memory.weights), bytes(memory.gradients), bytes(memory.moments), bytes(memory.activations),
                     bytes(memory.validation));
}

void require_memory(const TrainingShape& shape, bool force) {
  const double total = needed(shape, shape.batch, shape.recompute), available = attn::models::available_memory();
  if (total <= kClose * available) return;
  const std::string ranks = shape.on_machine == 1 ? "" : fmt::format(", {} times", shape.on_machine);
  const std::string numbers =
      fmt::format("needs about {}{}; there are {}B", describe(memory_of(shape)), ranks, short_number(available));
  if (total <= available || force) return say("attn: this training {}\n", numbers);
  throw UsageError(
      fmt::format("this training {}. {}; --force tries all the same", numbers, what_fits(shape, kClose * available)));
}

}  // namespace cli
