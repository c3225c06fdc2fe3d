// tokenize: what tokenizers make of texts, for test_tokenizers.py, and how fast, for bench/benchmarks/tokenizing.py.
//
// usage: tokenize FOLDER_OR_FILE < REQUEST > ANSWER
//        tokenize - < REQUESTS > ANSWERS   a request a line, whose "path" is the folder or file, an answer a line:
//                                          {"texts": .., "pairs": .., "batch": ..}, each perhaps {"error": "..."}
//
// A file's name says how it is read: .model is SentencePiece's, vocab.txt WordPiece's, any other a tokenizer.json.
// REQUEST is one JSON object:
//   {"texts": [...]}                     for each text: ids without and with special tokens, text, pieces of a stream
//   {"pairs": [[...]], "max_length": N}  ids and token types of two texts, truncated to N tokens if N is given
//   {"batch": [...]}                     rows of ids, token types and attention mask, as the file says
//   {"decode": [[id, ...]]}              texts, whole and in pieces
//   {"rounds": N, "texts": [...]}        seconds of the fastest of N rounds over all texts
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "attn/core.h"
#include "attn/io.h"
#include "attn/text.h"

namespace attn {
namespace {

using Json = nlohmann::json;
using text::Encoding;
using text::Tokenizer;

std::unique_ptr<Tokenizer> opened(const std::string& path) {
  const auto ends = [&](const char* suffix) { return path.ends_with(suffix); };
  if (ends(".model")) return text::load_sentencepiece(io::read_file(path), path);
  if (ends("vocab.txt")) return text::load_wordpiece(io::read_file(path), true, path);
  if (ends(".json")) return text::load_tokenizer(io::read_file(path), path);
  return text::open_tokenizer(path);
}

Json of(const Encoding& encoding) { return {{"ids", encoding.ids}, {"types", encoding.token_type_ids}}; }

Json decoded(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  text::TextStream stream(tokenizer);
  Json pieces = Json::array();
  for (int64_t id : ids) pieces.push_back(stream.push(id));
  pieces.push_back(stream.finish());
  return {{"text", tokenizer.decode(ids)}, {"pieces", pieces}};
}

Json answers(const Tokenizer& tokenizer, const Json& request) {
  Json all = Json::array();
  const text::EncodeOptions options = {.max_length = request.value("max_length", int64_t{0})};
  for (const auto& entry : request.value("texts", Json::array())) {
    const std::string& text = entry.get_ref<const std::string&>();
    Json answer = decoded(tokenizer, tokenizer.encode_ids(text));
    answer["ids"] = tokenizer.encode_ids(text);
    const Encoding marked = tokenizer.encode(text, options);
    answer["marked"] = of(marked);
    answer["marked_text"] = tokenizer.decode(marked.ids);
    all.push_back(answer);
  }
  for (const auto& entry : request.value("pairs", Json::array())) {
    const std::string first = entry[0], second = entry[1];
    all.push_back(of(tokenizer.encode_pair(first, second, options)));
  }
  if (request.contains("batch")) {
    const text::EncodedBatch batch = text::encode_batch(tokenizer, request["batch"].get<std::vector<std::string>>());
    for (int64_t b = 0; b < batch.sequences; ++b) {
      const auto row = [&](const std::vector<int64_t>& of) {
        return std::vector<int64_t>(of.begin() + b * batch.length, of.begin() + (b + 1) * batch.length);
      };
      all.push_back(
          {{"ids", row(batch.ids)}, {"types", row(batch.token_type_ids)}, {"mask", row(batch.attention_mask)}});
    }
  }
  for (const auto& ids : request.value("decode", Json::array()))
    all.push_back(decoded(tokenizer, ids.get<std::vector<int64_t>>()));
  return all;
}

/// Of many in one process: what is refused does not end it.
Json answer_line(const Json& request) {
  Json answer;
  std::unique_ptr<Tokenizer> tokenizer;
  const auto guarded = [](const auto& make) -> Json {
    try {
      return make();
    } catch (const Error& error) {
      return {{"error", error.what()}};
    }
  };
  const Json opening = guarded([&] {
    tokenizer = opened(request["path"]);
    return Json();
  });
  if (!tokenizer) return opening;
  for (const char* key : {"texts", "pairs", "batch"})
    answer[key] = guarded([&] { return answers(*tokenizer, {{key, request[key]}}); });
  answer["size"] = tokenizer->vocab_size();
  return answer;
}

double seconds(const Tokenizer& tokenizer, const Json& request) {
  const auto texts = request["texts"].get<std::vector<std::string>>();
  double best = 1e9;
  for (int64_t round = 0; round < request["rounds"].get<int64_t>(); ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& text : texts) tokenizer.encode_ids(text);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    if (std::string(argv[1]) == "-") {
      for (std::string line; std::getline(std::cin, line);)
        std::cout << attn::answer_line(nlohmann::json::parse(line)).dump() << std::endl;
      return 0;
    }
    const auto tokenizer = attn::opened(argv[1]);
    const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
    const auto request = nlohmann::json::parse(input);
    if (request.contains("rounds")) std::cout << attn::seconds(*tokenizer, request);
    else std::cout << attn::answers(*tokenizer, request).dump();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
