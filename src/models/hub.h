// hub: what a folder of the Hugging Face hub says and holds, in our own terms.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/models.h"
#include "io/json.h"
#include "models/families.h"
#include "models/folder.h"
#include "models/stored_weights.h"

namespace attn::models {

struct HubModel {
  const Family* family = nullptr;
  const HeadRule* head = nullptr;
  Config config;
  std::optional<StoredFormat> stored = {};  ///< of weights of 4 or 8 bits, where the folder has some
};
/// From config.json; `task` is "" for the head that the file names first, or the end of another class's name, as
/// "Model" or "ForMaskedLM". Throws Error with all that is wrong, or that is not supported.
HubModel read_hub_config(const io::Json& theirs, const std::string& source, const std::string& task);

/// What generation_config.json of a folder says, or, where there is none, its config.json: `generation`, `ends` and
/// `start`. Throws Error that lists all values that are none.
void read_generation(const std::string& folder, const io::Json& config, const Config& model, Loaded& loaded);
/// The same of the fields of one of these files, which errors call `source`.
void read_generation_fields(const io::Json& fields, const std::string& source, const Config& model, Loaded& loaded);

/// The tensors of a folder's safetensors files, mapped: parameters are used in place if they are there as a layer
/// wants them.
class HubWeights {
 public:
  /// A model whose file has a head of its own beside the embeddings that it should share is untied, as transformers
  /// does it.
  HubWeights(const std::string& folder, HubModel& model);
  /// As a Source does; a parameter that is not there is noted, and is zeros. `as_stored`: weights that the folder
  /// stores in 4 or 8 bits stay so, packed.
  nn::ParameterData find(const nn::Variable& wanted, bool as_stored = false);
  /// The same, but nothing where the parameter is not there or has another shape.
  std::optional<Array> find_fitting(const nn::Variable& wanted) const;
  /// Of all tensors, by their names in the files.
  std::map<std::string, std::vector<int64_t>> shapes() const;
  /// All that was not there, or of another shape.
  const std::vector<std::string>& reasons() const { return reasons_; }

  /// A tensor of one of the files, or a matrix that they store in 4 or 8 bits; without both zeros.
  struct Piece {
    const io::Safetensors* file = nullptr;
    std::string name = {};
    std::optional<StoredMatrix> stored = {};
    bool is_zeros() const { return !file && !stored; }
    /// As the numbers of a matrix in 4 or 8 bits are float32.
    DType dtype() const { return stored ? DType::float32 : file->tensors().at(name).dtype; }
    std::vector<int64_t> shape() const {
      return stored ? std::vector{stored->rows(), stored->terms()} : file->tensors().at(name).shape;
    }
  };

 private:
  void open(const std::string& path);
  void untie(Config& config);
  std::optional<Piece> piece(const std::string& name) const;
  struct Found {
    std::vector<Piece> pieces;
    const NameRule* rule;
  };
  std::vector<Piece> pieces_of(const NameRule& rule, const std::string& ours, std::string* missing) const;
  /// By every rule whose tensors are there.
  std::vector<Found> all_of(const std::string& ours, std::string* missing) const;
  std::optional<StoredMatrix> stored(const std::string& name) const;
  ops::PackedMatrix packed(const nn::Variable& wanted, const std::vector<Piece>& pieces) const;
  Array laid_out(const nn::Variable& wanted, const std::vector<Piece>& pieces, const NameRule& rule) const;
  const HubModel& model_;
  std::vector<std::unique_ptr<io::Safetensors>> files_;
  std::map<std::string, const io::Safetensors*> where_;
  std::map<std::string, std::string> foreign_;  // tensors of types that no layer takes
  std::vector<std::string> reasons_;
};

}  // namespace attn::models
