// What the openers of the library say of a path that holds no model or tokenizer; tests/cli/test_foreign.py has the
// kinds of files and all commands.
#include <sys/stat.h>
#include <unistd.h>

#include "attn/models_embed.h"
#include "support/errors.h"
#include "support/hub.h"

namespace attn::test {
namespace {

using namespace models;

/// What each of them says.
std::vector<std::string> answers(const std::string& path) {
  return {error_of([&] { open(path); }), error_of([&] { read_config(path); }), error_of([&] { load_model(path); }),
          error_of([&] { Embedder embedder(path); }), error_of([&] { text::open_tokenizer(path); })};
}

void expect_all(const std::string& path, const std::string& words) {
  for (const std::string& answer : answers(path))
    EXPECT_NE(answer.find(words), std::string::npos) << path << ": \"" << answer << "\" lacks \"" << words << '"';
}

TEST(Openers, AllNameWhatThePathHolds) {
  const Folder folder;
  folder.put("x.ggml", "lmgg").put("empty", "");
  expect_all(folder / "x.ggml", folder / "x.ggml" + ": is a GGML file of llama.cpp, which is not read: take");
  expect_all(folder / "empty", "is an empty file");
  expect_all(folder / "none", folder / "none" + ": there is no such file or folder");
  expect_all(folder / "x.ggml/deeper", "a part of this path is a file, not a folder");
  expect_all("", "the path is empty");
  expect_all(std::string("a\0b", 3), "goes on after a zero byte");
  expect_all("no-such-model/of-the-hub", "nothing is downloaded");
}

/// Each field is allowed, but not beside the others.
TEST(Openers, AConfigurationThatContradictsItselfIsNamed) {
  const Folder folder;
  folder.put("config.json", R"({"model": "gpt", "vocab_size": 8, "embed_dim": 16, "heads": 3})");
  const std::string file = folder / "config.json";
  const std::string said = "[config] " + file + ": heads 3 must divide embed_dim 16, or head_dim must be given";
  EXPECT_EQ(error_of([&] { read_config(folder.path()); }), said);
  EXPECT_EQ(error_of([&] { load_model(folder.path()); }), said);
  EXPECT_EQ(error_of([&] { open(folder.path()); }), said);
}

TEST(Openers, AFolderWithoutAModelIsRefused) {
  EXPECT_NE(error_of([] { Embedder embedder("/tmp"); }).find("/tmp: is not a folder of a model: it has no config.json"),
            std::string::npos);
}

TEST(Openers, FilesWithoutPermissionAreNamed) {
  const Folder folder;
  put_llama(folder).put("tokenizer.json", text::bytes()->to_json());
  const uid_t was = ::geteuid();
  for (const std::string& path : {folder.path(), folder / "config.json"}) {
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    ASSERT_EQ(was == 0 ? ::seteuid(65534) : 0, 0);  // root may read everything
    std::vector<std::string> said = answers(folder.path());
    ASSERT_EQ(::seteuid(was), 0);
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
    if (path != folder.path()) said.pop_back();  // the tokenizer needs no config.json
    for (const std::string& answer : said)
      EXPECT_NE(answer.find("its permissions, or those of a folder above it, do not allow this"), std::string::npos)
          << answer;
  }
}

TEST(Openers, AConfigurationIsOursIfItsModelFieldSaysSo) {
  const Folder folder;
  folder.put("config.json", R"({"alignment_heads": [[1, 0]], "suppress_ids": [1]})");
  folder.put("model.bin", std::string("\6\0\0\0\x0c\0WhisperSpec\0", 18));
  const std::string said = error_of([&] { open(folder.path()); });
  EXPECT_NE(said.find("config.json names no model_type, as transformers writes it, and is none that attn train wrote, "
                      "but model.bin, a model of CTranslate2, which is not read"),
            std::string::npos)
      << said;
  Config config = family("llama");
  config.vocab_size = 13;
  folder.put("config.json", to_json(config));
  EXPECT_EQ(to_json(read_config(folder.path())), to_json(config));
}

TEST(Openers, AFamilyBringsItsDefaults) {
  std::vector<std::string> names = families();
  for (const std::string name : {"bert", "qwen3"}) names.push_back(name);
  for (const std::string& name : names) {
    const std::string text = "{\"model\": \"" + name + "\"}";
    Config applied = family("encoder"), set = family("encoder");
    apply_json(applied, text, "x");
    set_field(set, "model", name);
    EXPECT_EQ(to_json(applied), to_json(set)) << name;
    EXPECT_EQ(applied.model, name);
    applied.vocab_size = 8;
    applied.source_vocab_size = applied.encoder_layers ? 8 : 0;
    const Folder folder;
    folder.put("config.json", "{\"model\": \"" + name + "\", \"vocab_size\": 8, \"source_vocab_size\": " +
                                  std::to_string(applied.source_vocab_size) + "}");
    EXPECT_EQ(to_json(read_config(folder.path())), to_json(applied)) << name;
  }
  for (const std::string& name : families()) {
    Config applied = family("encoder");
    apply_json(applied, "{\"model\": \"" + name + "\"}", "x");
    EXPECT_EQ(to_json(applied), to_json(family(name)));
  }
  Config bert, llama;
  apply_json(bert, R"({"model": "bert"})", "x");
  EXPECT_FALSE(bert.causal);
  apply_json(llama, R"({"bias": true, "model": "llama", "positions": "alibi"})", "x");
  Config wanted = family("llama");
  wanted.bias = true;
  wanted.positions = PositionEncoding::alibi;
  EXPECT_EQ(to_json(llama), to_json(wanted)) << "what is said beside the family wins, before it and after";
}

}  // namespace
}  // namespace attn::test
