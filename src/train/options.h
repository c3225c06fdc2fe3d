// What the options of a training decide together.
#pragma once

#include <nlohmann/json.hpp>

#include "attn/train.h"

namespace attn::train {

using OrderedJson = nlohmann::ordered_json;

/// The ranks of the options; of this process alone, where there are none.
const cluster::RankGrid& grid_of(const TrainerOptions& options);
/// True if the loss is scaled.
bool scales(const TrainerOptions& options, nn::Precision precision);
/// The options that decide the numbers: a resumed training must have the same. Null is what is absent.
OrderedJson decisive(const TrainerOptions& options, nn::Precision precision);

}  // namespace attn::train
