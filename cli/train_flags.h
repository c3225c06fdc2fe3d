// The options of attn train, except those of the model and of fine-tuning.
#pragma once

#include "settings.h"

namespace CLI {
class App;
}

namespace cli {

void add_train_options(CLI::App& command, Settings& settings);

}  // namespace cli
