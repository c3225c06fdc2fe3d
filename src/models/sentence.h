// The files of a sentence encoder, as sentence-transformers reads them, and what its modules compute.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/models_embed.h"
#include "io/json.h"

namespace attn::models {

/// An object of a file. Its fields are asked for one by one; done() refuses those that nobody has asked for.
class FileFields {
 public:
  /// `place` names the object in errors: a path, and what of the file it is.
  FileFields(io::Json object, std::string place);

  /// Throws Error "place: field is VALUE, must be `must`".
  [[noreturn]] void refuse(const std::string& field, const std::string& must) const;
  [[noreturn]] void refuse(const std::string& reason) const;
  /// The field; nothing where it is absent. null is a value, which only those allow who ask here.
  const io::Json* find(const std::string& field);
  bool flag(const std::string& field, bool fallback);
  /// From 1.
  std::optional<int64_t> count(const std::string& field);
  int64_t needed(const std::string& field);
  std::optional<std::string> text(const std::string& field);
  /// The object, empty where there is none.
  FileFields object(const std::string& field);
  /// The field must be absent or null.
  void unset(const std::string& field);
  /// Fields without effect on the vectors of a text: whatever they say.
  void pass_over(std::initializer_list<const char*> fields);
  void done() const;

 private:
  io::Json object_;
  std::string place_;
  std::vector<std::string> known_;
};

/// What a batch has become so far, by the names that modules give it: rows of tokens [R, C] and of texts [B, C], in
/// float32.
struct Features {
  std::map<std::string, Array> arrays = {};
  std::span<const int64_t> starts = {};  ///< [B + 1] where the rows of each text begin, and their number
  int64_t prompt = 0;                    ///< rows at the beginning of each text that are the prompt's
};
inline constexpr const char* kTokenRows = "token_embeddings";
inline constexpr const char* kTextRows = "sentence_embedding";

/// The shape of one of these, as far as it does not depend on the batch.
struct FeatureShape {
  int64_t width = 0;
  bool of_tokens = false;
};
using FeatureShapes = std::map<std::string, FeatureShape>;

/// What one module does. It has been made for the shapes that it meets.
using Stage = std::function<void(Features&)>;

/// The module `kind` whose files are in `folder`; changes `shapes` as it will change the features. Throws Error that
/// names file and field for what is not supported; null for a module that changes nothing.
Stage module_stage(const std::string& kind, const std::string& folder, std::optional<Pooling> pooling,
                   FeatureShapes& shapes);
/// Of a folder without files: one pooling.
Stage pooling_stage(std::vector<Pooling> kinds, bool with_prompt, FeatureShapes& shapes);
bool is_supported_module(const std::string& kind);
/// Each row to length 1.
void normalise_rows(const Array& rows);

inline constexpr int64_t kUnbounded = int64_t{1} << 40;  ///< more tokens than any text has

/// What a folder says.
struct SentenceFiles {
  std::string model;                       ///< the folder of the model and its tokenizer
  bool lower_case = false;                 ///< texts, before the tokenizer has them
  std::optional<int64_t> longest = {};     ///< tokens of a text, whatever the context is
  std::optional<int64_t> tokenizers = {};  ///< the same as the tokenizer says it, up to the context
  std::string length_field = {};           ///< file and field that say it, for errors
  std::map<std::string, std::string> prompts = {};
  std::string prompt = {};                                        ///< that of default_prompt_name
  int64_t dimensions = 0;                                         ///< truncate_dim; 0 = all
  std::vector<std::pair<std::string, std::string>> modules = {};  ///< kind and folder of those after the model
  Pooling pooling = Pooling::mean;                                ///< where no modules are named
  bool has_modules = false;
};
/// `pooling` is the caller's, who then need not agree with what a folder without modules.json would be.
SentenceFiles read_sentence_files(const std::string& folder, std::optional<Pooling> pooling);

/// The same tokenizer after a lower-casing, unless it has that as a step of its own.
std::unique_ptr<text::Tokenizer> lower_cased(const text::Tokenizer& tokenizer, const std::string& folder);

}  // namespace attn::models
