#include "shorten.h"

#include <algorithm>
#include <cstring>

namespace bindings {
namespace {

using View = attn::ConstView<4>;

bool is_one_head(const View& keys) { return keys.stride[1] == 0 && keys.size[1] > 1; }

/// How many keys a row [Lk] of bytes begins with; -1 if there are others after these.
int64_t leading(const char* row, int64_t keys) {
  const void* hidden = std::memchr(row, 0, static_cast<size_t>(keys));
  if (!hidden) return keys;
  const auto* rest = static_cast<const char*>(hidden);
  char any = 0;
  for (const char* at = rest; at != row + keys; ++at) any = static_cast<char>(any | *at);
  return any == 0 ? rest - row : -1;
}

/// Whether the mask is that of keys, and is in memory so that it is read at once.
bool is_of_keys(const View& mask, const View& q, const View& k) {
  const auto is_same = [&](int axis) { return mask.size[axis] == 1 || mask.stride[axis] == 0; };
  return mask.dtype == attn::DType::boolean && mask.stride[3] == 1 && mask.size[3] == k.size[2] && k.size[2] > 0 &&
         (mask.size[0] == 1 || mask.size[0] == q.size[0]) && is_same(1) &&
         (mask.size[1] == 1 || mask.size[1] == q.size[1]) && (mask.size[2] == 1 || mask.size[2] == q.size[2]);
}

}  // namespace

void share_head(const View& q, View& k, View& v) {
  if (!is_one_head(k) || q.size[0] != k.size[0] || q.size[1] % k.size[1] != 0) return;
  if (v && (!is_one_head(v) || !std::equal(k.size.begin(), k.size.begin() + 3, v.size.begin()))) return;
  k.size[1] = v.size[1] = 1;
}

void shorten_mask(attn::AttentionOptions& options, const View& q, const View& k, std::vector<int64_t>& lengths) {
  const View& mask = options.mask;
  // Aligned to the bottom right, a query's place follows from the number of keys.
  if (!mask || !options.key_length.empty() || !options.cu_seqlens_q.empty() || !options.cu_seqlens_k.empty() ||
      options.alignment == attn::Alignment::bottom_right || options.shard != attn::Shard() || !is_of_keys(mask, q, k))
    return;
  const int64_t keys = k.size[2], rows = mask.stride[2] == 0 ? 1 : mask.size[2];
  for (int64_t b = 0; b < q.size[0]; ++b) {
    const char* row = static_cast<const char*>(mask.data) + (mask.size[0] == 1 ? 0 : b * mask.stride[0]);
    lengths.push_back(leading(row, keys));
    if (lengths.back() < 0) return;
    if (b > 0 && mask.size[0] == 1) continue;
    for (int64_t i = 1; i < rows; ++i)
      if (std::memcmp(row, row + i * mask.stride[2], static_cast<size_t>(keys)) != 0) return;
  }
  options.mask = {};
  if (std::any_of(lengths.begin(), lengths.end(), [&](int64_t length) { return length < keys; }))
    options.key_length = lengths;
}

}  // namespace bindings
