// config.json, of transformers and of our own, and generation_config.json beside one that is good.
#include "attn/models.h"
#include "support/folder.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  static const test::Folder folder, good;
  const std::string text = fuzz::bytes_of(data, size);
  folder.put("config.json", text);
  fuzz::read_or_refuse([] {
    const models::Config config = models::read_config(folder.path());
    models::check(config);
    models::Config again;
    models::apply_json(again, models::to_json(config), "again");
    fuzz::require(models::to_json(again) == models::to_json(config));
  });
  good.put("config.json", R"({"model_type": "t5", "vocab_size": 13, "d_model": 8, "num_layers": 1, "num_heads": 2})");
  good.put("generation_config.json", text);
  fuzz::read_or_refuse([] { models::open(good.path()); });  // there are no weights: an error at the latest there
  return 0;
}
