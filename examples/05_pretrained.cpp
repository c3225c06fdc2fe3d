// A model of the Hugging Face hub: embeds two sentences, or, where the model is one that writes, continues a text.
//
// usage: 05_pretrained FOLDER
#include <cstdio>
#include <numeric>

#include "attn/generate.h"
#include "attn/models_embed.h"

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  if (attn::models::read_config(argv[1]).causal) {
    const attn::models::Loaded loaded = attn::models::open(argv[1]);
    std::vector<int64_t> text = loaded.tokenizer->encode_marked("Once upon a time").ids;
    const auto written =
        attn::generate::generate(*loaded.model, text, {.sampling = {.temperature = 0}, .max_new_tokens = 20});
    text.insert(text.end(), written.tokens.begin(), written.tokens.end());
    std::printf("%s\n", loaded.tokenizer->decode(text).c_str());
  } else {
    const attn::models::Embedder embedder(argv[1]);
    const std::vector<std::string> sentences = {"A cat sits on a mat.", "A kitten rests on a rug."};
    const attn::nn::Array rows = embedder(sentences);
    const float *a = static_cast<const float*>(rows.data()), *b = a + embedder.width();
    std::printf("cosine %.4f\n", std::inner_product(a, a + embedder.width(), b, 0.0));
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
