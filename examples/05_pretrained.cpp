// A model of the Hugging Face hub: embeds two sentences, or, where the model is one that writes, continues a text.
//
// usage: 05_pretrained FOLDER
#include <cstdio>
#include <numeric>

#include "attn/generate_text.h"
#include "attn/models_embed.h"

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  if (attn::models::read_config(argv[1]).causal) {
    const attn::generate::TextGenerator generator(argv[1]);
    generator.write("Once upon a time", {.max_new_tokens = 20, .temperature = 0, .return_full_text = true},
                    [](std::string_view text) { return std::printf("%.*s", int(text.size()), text.data()) >= 0; });
    std::printf("\n");
  } else {
    const attn::models::Embedder embedder(argv[1]);
    const std::vector<std::string> sentences = {"A cat sits on a mat.", "A kitten rests on a rug."};
    const attn::Array rows = embedder(sentences);
    const float *a = rows.data<float>(), *b = a + embedder.width();
    std::printf("cosine %.4f\n", std::inner_product(a, a + embedder.width(), b, 0.0));
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
