// Mixers of a model by name: "window:256", and every fourth layer "full".
#include <algorithm>
#include <charconv>
#include <optional>

#include "attn/models_config.h"
#include "models/folder.h"

namespace attn::models {
namespace {

using nn::LinearMixerOptions;

/// A name, the letter in Config::mixers, and the options of linear attention; heads 0 are those of attention.
struct NamedMixer {
  const char* name;
  char letter;
  std::optional<LinearMixerOptions> linear = {};
};

/// Mamba 2's proportions: values twice as wide as the model, 64 features of q and k, one head of them.
LinearMixerOptions mamba2_of(const Config& config) {
  const int64_t heads = std::max<int64_t>(config.heads, 1);
  return nn::mamba2(heads, std::max<int64_t>(2 * config.embed_dim / heads, 1), 64);
}

std::vector<NamedMixer> named_mixers(const Config& config) {
  LinearMixerOptions kimi = nn::gated_delta_net(0, 0);
  kimi.decay = nn::MixerDecay::row;
  kimi.gate = nn::MixerGate::sigmoid;
  LinearMixerOptions delta{.heads = 0, .convolution = 4, .delta = true, .beta = nn::MixerBeta::sigmoid};
  delta.l2norm = true;
  delta.norm = nn::MixerNorm::heads;
  LinearMixerOptions gla{.heads = 0, .decay = nn::MixerDecay::row, .norm = nn::MixerNorm::heads};
  gla.gate = nn::MixerGate::silu;
  LinearMixerOptions elu{.heads = 0, .features = nn::MixerFeatures::elu, .normalize = true};
  LinearMixerOptions performer{.heads = 0, .features = nn::MixerFeatures::performer, .normalize = true};
  return {{"full", 'f'},
          {"window", 'w'},
          {"linear", 'l'},
          {"gated_delta", 'l', nn::gated_delta_net(0, 0)},
          {"kimi_delta", 'l', kimi},
          {"delta", 'l', delta},
          {"gla", 'l', gla},
          {"retention", 'l', nn::retention(0, 0)},
          {"mamba2", 'l', mamba2_of(config)},
          {"elu", 'l', elu},
          {"performer", 'l', performer},
          {"convolution", 'c'},
          {"lstm", 'r'},
          {"moba", 'm'},
          {"nsa", 'n'},
          {"own", 'o'}};
}

/// The number after a colon.
std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Applies NAME or NAME:NUMBER to the configuration and returns its letter.
char apply_mixer(Config& config, std::string_view text, bool linear_is_set) {
  const size_t colon = text.find(':');
  const std::string name(text.substr(0, colon));
  const std::vector<NamedMixer> all = named_mixers(config);
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedMixer& each) { return each.name == name; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (const NamedMixer& each : all) names.emplace_back(each.name);
    throw Error("mixer", {"unknown mixer '" + name + "'; known are: " + joined(names)});
  }
  if (found->linear) {
    if (linear_is_set)
      throw Error("mixer", {"the mixers are two kinds of linear attention, and a model has the options of one"});
    config.linear = *found->linear;
  }
  if (colon == std::string_view::npos) {
    if (name == "window" && config.window == 0) throw Error("mixer", {"window needs its length, as window:256"});
    return found->letter;
  }
  const std::optional<int64_t> number = number_in(text.substr(colon + 1));
  if (!number || *number < 1)
    throw Error("mixer", {"'" + std::string(text) + "' must end in a whole number of at least 1"});
  if (name == "window") config.window = *number;
  else if (name == "convolution") config.short_convolution.width = *number;
  else if (name == "lstm") config.lstm.hidden_dim = *number;
  else if (name == "moba") config.moba.block = *number;
  else if (name == "nsa") config.nsa.block = *number;
  else throw Error("mixer", {name + " takes no number, but '" + std::string(text) + "' is given"});
  return found->letter;
}

}  // namespace

void set_mixers(Config& config, std::string_view mixer, std::string_view every) {
  const char common = apply_mixer(config, mixer, false);
  config.mixers = std::string(1, common);
  if (every.empty()) return;
  const size_t colon = every.find(':');
  const std::optional<int64_t> period = number_in(every.substr(0, colon));
  constexpr int64_t kLongest = 1 << 12;
  if (colon == std::string_view::npos || !period || *period < 1 || *period > kLongest)
    throw Error("mixer", {"'" + std::string(every) + "' must be N:MIXER with N from 1 to " + std::to_string(kLongest) +
                          ", as 4:full"});
  const char other = apply_mixer(config, every.substr(colon + 1), common == 'l');
  config.mixers = std::string(static_cast<size_t>(*period - 1), common) + other;
}

}  // namespace attn::models
