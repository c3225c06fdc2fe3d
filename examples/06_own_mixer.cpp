// A mixer of your own in a model: RWKV's token shift (Peng et al. 2023, arXiv:2305.13048), which blends each token with
// the one before it by learned factors. The model trains on texts of two letters in turn, as "abababab": the next
// letter is always the one before the last.
#include <algorithm>
#include <cstdio>

#include "attn/autograd_linear.h"
#include "attn/models.h"
#include "attn/nn_adamw.h"

namespace {

using namespace attn;

constexpr int64_t kLetters = 8, kLength = 10, kBatch = 16;

/// y_t = a x_{t-1} + b x_t with learned a and b [C]: a causal convolution over two tokens.
class TokenShift : public nn::Mixer {
 public:
  TokenShift(const nn::Scope& scope, int64_t width)
      : Mixer("TokenShift", scope), factors_(scope.variable("factors", {width, 2}, nn::ParameterRole::convolution)) {}

  nn::Value operator()(nn::Tape& tape, const nn::Value& x, const nn::MixerInputs& inputs) const override {
    View<3> last;  // in generation, the token before x
    if (inputs.state) last = inputs.state->parts[0];
    return causal_convolution(tape, x, factors_, {}, false, inputs.cu_seqlens, last);
  }
  nn::MixerState new_state(int64_t B) const override { return {{Array(dtype(), {B, factors_.shape()[0], 1})}}; }

 private:
  nn::Value factors_;
};

models::Batch alternating(Random& random) {
  models::Batch batch{.sequences = kBatch, .length = kLength};
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t letters[] = {random.below(kLetters), random.below(kLetters)};
    for (int64_t n = 0; n < kLength; ++n) {
      batch.tokens.push_back(letters[n % 2]);
      batch.targets.push_back(n ? letters[(n + 1) % 2] : ops::kIgnoreIndex);  // the second letter cannot be known
    }
  }
  return batch;
}

}  // namespace

int main() {
  models::Config config = models::family("llama");
  config.vocab_size = kLetters;
  config.embed_dim = 32;
  config.layers = 1;
  config.positions = models::PositionEncoding::none;
  config.mixers = "o";
  config.own_mixer = [](const nn::Scope& scope, int64_t width) { return std::make_shared<TokenShift>(scope, width); };
  models::Model model(config, nn::Precision::float32, 1);
  nn::AdamW optimizer(model.parameters(), {.learning_rate = 0.01});
  Random random(2);
  for (int step = 0; step < 150; ++step) {
    model.parameters().clear_gradients();
    autograd::Tape tape({.record = true, .training = true});
    tape.backward(model.loss(tape, alternating(random)));
    optimizer.step();
  }

  // Generation token by token, with the mixer's state in the cache.
  models::ModelCache cache = model.new_cache();
  std::vector<int64_t> text = {5, 3};
  for (size_t n = 0; text.size() < 10; ++n) {
    autograd::Tape tape;
    const nn::Value logits = model.forward(tape, {.tokens = {text[n]}, .sequences = 1, .length = 1}, {.cache = &cache});
    const float* row = logits.data().data<float>();
    if (n > 0) text.push_back(std::max_element(row, row + kLetters) - row);
  }
  for (const int64_t letter : text) std::printf("%c", static_cast<char>('a' + letter));
  std::printf("\n");
}
