// export: what export_folder() and export_adapter() share.
#pragma once

#include <optional>
#include <string>

#include "attn/models_export.h"
#include "models/pretrained.h"

namespace attn::models {

/// The folder's model with its original, if it has one.
struct ExportSource {
  Loaded loaded = {};
  std::optional<Pretrained> original = {};
};
/// Throws Error.
ExportSource open_for_export(const std::string& folder, const ExportOptions& options);
/// Throws Error unless the path is that of an empty folder, or of nothing.
void require_empty_folder(const std::string& to);
/// Of a tensor in the file.
int64_t bytes_in(const io::NamedTensor& tensor);

}  // namespace attn::models
