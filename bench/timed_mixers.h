// The layers that attn_bench mixers times: from a width and a length to something that it can call.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "attn/nn.h"

namespace bench {

using TapeFunction = std::function<attn::autograd::Value(attn::autograd::Tape& tape, const attn::autograd::Value& x)>;

/// A layer [1, L, C] -> [1, L, C].
struct TimedMixer {
  TapeFunction forward;     ///< on the tape; where `segment` is given, of one text segment after those before it
  TapeFunction second;      ///< the same values from the start of a text, computed by other means, in inference
  double kept_bytes = NAN;  ///< what generation keeps of n tokens; NaN: the layer cannot generate
  int64_t segment = 0;      ///< tokens of one call; 0 = all
  std::function<void()> restart = [] {};  ///< before the first text segment
};

/// Makes a layer of width C, a multiple of 64, for n tokens, with its parameters in `scope`.
struct NamedMixer {
  std::string name;
  std::function<TimedMixer(const attn::nn::Scope& scope, int64_t width, int64_t n)> make;
};
std::vector<NamedMixer> timed_mixers();

}  // namespace bench
