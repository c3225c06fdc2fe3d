// models: GGUF files that are damaged or hostile. tests/parity/test_gguf.py has the content of whole ones.
#include "attn/models.h"

#include <cstring>

#include "support/errors.h"
#include "support/hub.h"

namespace attn::test {
namespace {

/// The bytes of a file, entry by entry.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& text(const std::string& text) {
    number<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  GgufBytes& entry(const std::string& key, const std::string& value) {
    ++entries_;
    return text(key).number<uint32_t>(8).text(value);
  }
  GgufBytes& entry(const std::string& key, uint32_t value) {
    ++entries_;
    return text(key).number<uint32_t>(4).number(value);
  }
  GgufBytes& entry(const std::string& key, float value) {
    ++entries_;
    return text(key).number<uint32_t>(6).number(value);
  }
  GgufBytes& list(const std::string& key, const std::vector<std::string>& values) {
    ++entries_;
    text(key).number<uint32_t>(9).number<uint32_t>(8).number<uint64_t>(values.size());
    for (const std::string& value : values) text(value);
    return *this;
  }
  GgufBytes& tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type, int64_t bytes) {
    GgufBytes one;
    one.text(name).number(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) one.number(extent);
    one.number(type).number(static_cast<uint64_t>(data_));
    tensor_bytes_ += one.bytes_;
    data_ += (bytes + 31) / 32 * 32;
    ++tensors_;
    return *this;
  }
  std::string whole(uint32_t version = 3) const {
    GgufBytes all;
    all.bytes_ = "GGUF";
    all.number(version).number(tensors_).number(entries_);
    all.bytes_ += bytes_ + tensor_bytes_;
    all.bytes_.resize((all.bytes_.size() + 31) / 32 * 32);
    all.bytes_.append(static_cast<size_t>(data_), '\x11');
    return all.bytes_;
  }

 private:
  std::string bytes_, tensor_bytes_;
  uint64_t entries_ = 0, tensors_ = 0;
  int64_t data_ = 0;
};

GgufBytes llama_header() {
  GgufBytes file;
  file.entry("general.architecture", std::string("llama"))
      .entry("llama.block_count", 1u)
      .entry("llama.context_length", 16u)
      .entry("llama.embedding_length", 32u)
      .entry("llama.feed_forward_length", 32u)
      .entry("llama.attention.head_count", 2u)
      .entry("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .entry("tokenizer.ggml.model", std::string("gpt2"))
      .entry("tokenizer.ggml.pre", std::string("gpt-2"))
      .list("tokenizer.ggml.tokens", {"a", "b", "ab"})
      .list("tokenizer.ggml.merges", {"a b"});
  return file;
}

/// Whole, with weights of Q8_0 and Q4_0.
GgufBytes llama_file() {
  GgufBytes file = llama_header();
  const auto matrix = [&](const std::string& name, uint64_t rows, bool four_bits) {
    const auto bytes = static_cast<int64_t>(rows) * (four_bits ? 18 : 34);
    file.tensor(name, {32, rows}, four_bits ? 2 : 8, bytes);
  };
  matrix("token_embd.weight", 3, false);
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
    file.tensor(std::string(norm) + ".weight", {32}, 0, 128);
  for (const char* weight : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    matrix("blk.0." + std::string(weight) + ".weight", 32, std::strlen(weight) > 6);
  return file;
}

std::string error_of_file(const std::string& bytes) {
  const Folder folder;
  folder.put("x.gguf", bytes);
  return error_of([&] { models::open(folder / "x.gguf"); });
}

void expect_refused(const GgufBytes& file, const std::string& words) {
  const std::string said = error_of_file(file.whole());
  EXPECT_NE(said.find(words), std::string::npos) << said << " lacks " << words;
}

TEST(GgufFiles, AWholeFileOpens) {
  const Folder folder;
  folder.put("x.gguf", llama_file().whole());
  const models::Loaded loaded = models::open_with_tokenizer(folder / "x.gguf");
  EXPECT_EQ(loaded.tokenizer->encode_ids("abb"), (std::vector<int64_t>{2, 1}));
  EXPECT_TRUE(loaded.model->parameters().find("tokens.weight")->value.packed().is_quantized());
  autograd::Tape tape;
  const models::Value logits = loaded.model->forward(tape, {.tokens = {0, 1, 2}, .sequences = 1, .length = 3});
  EXPECT_EQ(logits.shape(), (std::vector<int64_t>{1, 3, 3}));
  EXPECT_EQ(models::read_config(folder / "x.gguf").layers, 1);
  folder.put("old.gguf", llama_file().whole(2));
  EXPECT_EQ(models::open(folder / "old.gguf").model->config().embed_dim, 32);
}

/// Every shorter file, and files with one byte changed, are refused or read.
TEST(GgufFiles, DamagedFilesAreRefused) {
  const std::string whole = llama_file().whole();
  for (size_t length = 0; length < whole.size(); length += 1 + length / 40)
    EXPECT_NE(error_of_file(whole.substr(0, length)), "") << length;
  for (size_t at = 4; at < whole.size(); at += 1 + at / 80)
    for (const char byte : {'\0', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[at] = byte;
      error_of_file(changed);
    }
}

TEST(GgufFiles, LengthsBeyondTheFileAreRefused) {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  EXPECT_NE(error_of_file("GGUF").find("is no whole GGUF file: the version of 4 bytes, where 0 are left, at byte 4"),
            std::string::npos);
  EXPECT_NE(error_of_file(llama_header().whole(7)).find("the version is 7, must be 2 or 3"), std::string::npos);
  const auto counts = [](uint64_t tensors, uint64_t entries) {
    GgufBytes bytes;
    bytes.number(tensors).number(entries);
    return "GGUF\x03" + std::string(3, '\0') + bytes.whole().substr(24, 16);
  };
  EXPECT_NE(error_of_file(counts(kHuge, 1)).find("the number of tensors is 1152921504606846976, must be at most"),
            std::string::npos);
  EXPECT_NE(error_of_file(counts(1, kHuge)).find("the number of entries is 1152921504606846976"), std::string::npos);
  const auto entry = [](const std::string& key, uint32_t type) {
    GgufBytes bytes;
    bytes.entry("a", 1u);
    return bytes.text(key).number(type);
  };
  const auto expect_header_error = [](GgufBytes bytes, const std::string& words) {
    std::string header = bytes.whole();
    const uint64_t entries = 2;
    std::memcpy(header.data() + 16, &entries, sizeof entries);
    EXPECT_NE(error_of_file(header).find(words), std::string::npos) << error_of_file(header) << " lacks " << words;
  };
  expect_header_error(entry("s", 8).number(kHuge), "s of 1152921504606846976 bytes, where");
  expect_header_error(entry("l", 9).number<uint32_t>(8).number(kHuge),
                      "the length of the list l is 1152921504606846976");
  expect_header_error(entry("l", 9).number<uint32_t>(9).number<uint64_t>(1), "has lists, which are not read");
  expect_header_error(entry("t", 77), "\"t\" has the unknown type 77");
  expect_header_error(entry("a", 4).number<uint32_t>(1), "the key \"a\" occurs twice");
}

TEST(GgufFiles, TensorsBeyondTheFileAreRefused) {
  constexpr uint64_t kHuge = uint64_t{1} << 49;
  expect_refused(llama_header().tensor("x", {32, kHuge, kHuge, kHuge}, 0, 0), "\"x\" has an impossible shape");
  expect_refused(llama_header().tensor("x", {32, kHuge}, 0, 0), "\"x\" has an impossible shape");
  expect_refused(llama_header().tensor("x", {1, kHuge}, 0, 64), "the file is cut off, or its header is wrong");
  expect_refused(llama_header().tensor("x", {33, 4}, 8, 64), "rows of 33 numbers, must be whole blocks of 32");
  expect_refused(llama_header().tensor("x", {}, 0, 64), "\"x\" has 0 axes, must have 1 to 4");
  expect_refused(llama_header().tensor("x", {1}, 0, 64).tensor("x", {1}, 0, 64), "there are two tensors \"x\"");
  expect_refused(llama_header().tensor("token_embd.weight", {32, 3}, 16, 64),
                 "tensor token_embd.weight is of the type IQ2_XXS, which is not read; read are F32");
}

TEST(GgufFiles, ModelsThatAreNotSupportedAreNamed) {
  GgufBytes other;
  expect_refused(
      other.entry("general.architecture", std::string("mamba")),
      "general.architecture is \"mamba\", which is not supported; supported are: llama, qwen2, qwen3, gemma2");
  expect_refused(llama_header().entry("llama.expert_count", 8u), "llama.expert_count is 8, which is not supported");
  expect_refused(llama_file().entry("llama.attention.value_length", 8u),
                 "llama.attention.value_length is 8, must be the width of a head, 16");
  expect_refused(llama_header().entry("llama.rope.scaling.type", std::string("longrope")),
                 "llama.rope.scaling.type is \"longrope\", must be none, linear or yarn");
  expect_refused(llama_header().tensor("token_embd.weight", {32, 3}, 8, 102).tensor("rope_freqs.weight", {8}, 0, 32),
                 "rope_freqs.weight has other factors");
  expect_refused(llama_header(), "there is no token_embd.weight");
  expect_refused(llama_header().tensor("token_embd.weight", {32, 3}, 8, 102), "there is no tensor blk.0.attn_q.weight");
  expect_refused(llama_header().tensor("token_embd.weight", {32, 3}, 8, 102).tensor("output_norm.weight", {64}, 0, 256),
                 "output_norm.weight [64]: must make norm.weight [32]");
}

/// A model of 2^50 numbers that the file does not have.
TEST(GgufFiles, SizesAreCheckedBeforeMemoryIsTaken) {
  GgufBytes file;
  file.entry("general.architecture", std::string("llama"))
      .entry("llama.block_count", 4096u)
      .entry("llama.context_length", 16u)
      .entry("llama.embedding_length", 65536u)
      .entry("llama.feed_forward_length", 1048576u)
      .entry("llama.attention.head_count", 64u)
      .tensor("token_embd.weight", {65536, 4}, 0, 4 * 65536 * 4);
  expect_refused(file, "there is no tensor blk.0.attn_q.weight");
  expect_refused(file, " more");
}

TEST(GgufFiles, TokenizersThatAreNotSupportedAreNamed) {
  const auto expect_tokenizer_error = [](const GgufBytes& file, const std::string& words) {
    const Folder folder;
    folder.put("x.gguf", file.whole());
    const std::string said = error_of([&] { text::open_tokenizer(folder / "x.gguf"); });
    EXPECT_NE(said.find(words), std::string::npos) << said << " lacks " << words;
  };
  const auto with = [](const std::string& model, const std::string& pre) {
    GgufBytes file;
    return file.entry("tokenizer.ggml.model", model).entry("tokenizer.ggml.pre", pre);
  };
  const std::vector<std::string> tokens = {"a", "b"};
  expect_tokenizer_error(GgufBytes(), "tokenizer.ggml.tokens is missing: the file has no tokenizer");
  expect_tokenizer_error(with("rwkv", "x").list("tokenizer.ggml.tokens", tokens),
                         "tokenizer.ggml.model is \"rwkv\", must be \"gpt2\" or \"llama\"");
  expect_tokenizer_error(with("gpt2", "poro-chat").list("tokenizer.ggml.tokens", tokens),
                         "tokenizer.ggml.pre is \"poro-chat\", which is not supported; supported are: gpt-2, smollm");
  expect_tokenizer_error(with("gpt2", "gpt-2").list("tokenizer.ggml.tokens", {"a", "a"}), "has \"a\" twice");
  expect_tokenizer_error(with("gpt2", "gpt-2").list("tokenizer.ggml.tokens", tokens), "merges is missing");
  expect_tokenizer_error(with("llama", "").list("tokenizer.ggml.tokens", tokens), "token_type and scores are missing");
  expect_tokenizer_error(with("gpt2", "gpt-2")
                             .list("tokenizer.ggml.tokens", tokens)
                             .list("tokenizer.ggml.merges", {})
                             .entry("tokenizer.ggml.add_bos_token", 1u),
                         "tokenizer.ggml.add_bos_token is 1, must be true or false");
}

TEST(GgufFiles, AreForInference) {
  const Folder folder;
  folder.put("x.gguf", llama_file().whole());
  EXPECT_NE(
      error_of([&] { models::open(folder / "x.gguf", {.adapter = "a"}); }).find("an adapter of PEFT is for a folder"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              models::open(folder / "x.gguf",
                           {.quantization = models::Quantization::int8, .purpose = nn::Purpose::training});
            }).find("weights of int8 are for inference alone"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              models::load_model(folder / "x.gguf");
            }).find("is a GGUF file of llama.cpp, which is read for inference alone: give its own path"),
            std::string::npos);
  const models::Loaded numbers = models::open(folder / "x.gguf", {.purpose = nn::Purpose::training});
  EXPECT_FALSE(numbers.model->parameters().find("tokens.weight")->value.is_freed());
}

}  // namespace
}  // namespace attn::test
