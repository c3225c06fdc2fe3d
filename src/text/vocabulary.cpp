// Hash tables with open addressing.
#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace attn::text {
namespace {

__extension__ using Wide = unsigned __int128;

uint64_t mixed(uint64_t a, uint64_t b) {
  const Wide product = Wide{a} * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

/// Differs between processes where the system randomises addresses.
uint64_t seed() {
  static const char here = 0;
  return reinterpret_cast<uintptr_t>(&here) * 0xA0761D6478BD642F;
}

}  // namespace

uint64_t hash_of(std::string_view text) {
  static const uint64_t kSeed = seed();
  uint64_t hash = kSeed ^ text.size();
  const char* at = text.data();
  size_t left = text.size();
  for (; left > 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mixed(hash ^ word, 0xE7037ED1A0B428DB);
  }
  uint64_t last = 0;
  if (left == 8) {
    std::memcpy(&last, at, 8);
  } else if (left >= 4) {
    uint32_t low, high;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + left - 4, 4);
    last = uint64_t{high} << 32 | low;
  } else if (left > 0) {
    last = uint64_t{static_cast<uint8_t>(at[0])} | uint64_t{static_cast<uint8_t>(at[left / 2])} << 8 |
           uint64_t{static_cast<uint8_t>(at[left - 1])} << 16;
  }
  return mixed(hash ^ last, 0x8EBC6AF09C88C6E3 ^ kSeed);
}

// ---------------------------------------------------------------------------------------------------------- vocabulary

Vocabulary Vocabulary::read(const JsonFields& model) {
  const io::Json& vocab = model.at("vocab");
  model.require(vocab.is_object(), "vocab", "an object");
  Vocabulary vocabulary;
  for (const auto& [token, id] : vocab.items()) {
    const auto number = io::whole_number(id);
    if (!number)
      model.refuse("vocab: " + io::in_quotes(token) + " is " + io::as_shown(id) + ", must be a whole number");
    vocabulary.add(token, *number, model);
  }
  return vocabulary;
}

void Vocabulary::add(std::string_view token, int64_t id, const JsonFields& place_in_file) {
  if (id < 0 || id >= kMaxTokens)
    place_in_file.refuse("the id of " + io::in_quotes(token) + " is " + std::to_string(id) + ", must be from 0 to " +
                         std::to_string(kMaxTokens - 1));
  if (token.size() > kMaxTokenBytes)
    place_in_file.refuse("the token " + io::in_quotes(token) + " has " + std::to_string(token.size()) +
                         " bytes, must have at most " + std::to_string(kMaxTokenBytes));
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  if (tokens_[id].length != kNone && this->token(id) != token)
    place_in_file.refuse("the id " + std::to_string(id) + " is that of " + io::in_quotes(this->token(id)) + " and of " +
                         io::in_quotes(token) + ", must be that of one token");
  tokens_[id] = {bytes_.size(), static_cast<uint32_t>(token.size())};
  bytes_ += token;
  if (2 * ++used_ > slots_.size()) grow();
  place(token, static_cast<uint32_t>(id));
}

void Vocabulary::grow() {
  std::vector<TokenSlot> old(std::max<size_t>(1024, 4 * slots_.size()));
  old.swap(slots_);
  used_ = 1;  // counts the token that the caller places next
  for (const TokenSlot& slot : old)
    if (slot.id != kNone) place(token(slot.id), slot.id), ++used_;
}

void Vocabulary::place(std::string_view token, uint32_t id) {
  const uint64_t hash = hash_of(token);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t n = hash & (slots_.size() - 1);
  while (slots_[n].id != kNone && !(slots_[n].tag == tag && this->token(slots_[n].id) == token))
    n = (n + 1) & (slots_.size() - 1);
  slots_[n] = {tag, id};
}

std::string_view Vocabulary::token(int64_t id) const {
  return has(id) ? std::string_view(bytes_).substr(tokens_[id].begin, tokens_[id].length) : std::string_view();
}

uint32_t Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return kNone;
  const uint64_t hash = hash_of(token);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t n = hash & (slots_.size() - 1);; n = (n + 1) & (slots_.size() - 1)) {
    const TokenSlot& slot = slots_[n];
    if (slot.id == kNone || (slot.tag == tag && this->token(slot.id) == token)) return slot.id;
  }
}

std::optional<int64_t> Vocabulary::id_of(std::string_view token) const {
  const uint32_t id = find(token);
  return id == kNone ? std::nullopt : std::optional<int64_t>(id);
}

// -------------------------------------------------------------------------------------------------------------- merges

MergeTable::MergeTable(size_t count)
    : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1), shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::set(uint32_t left, uint32_t right, PairMerge merge) {
  const uint64_t key = uint64_t{left} << 32 | right;
  size_t n = start(key);
  while (slots_[n].key != kEmpty && slots_[n].key != key) n = (n + 1) & mask_;
  slots_[n] = {key, merge};
}

// --------------------------------------------------------------------------------------------------------------- words

void WordCache::place(const WordSlot& word) {
  size_t n = word.hash & ~uint64_t{1} & mask();
  while (slots_[n].hash != 0) n = (n + 1) & mask();
  slots_[n] = word;
}

void WordCache::remember(std::string_view word, uint64_t hash, const int64_t* ids, size_t count) {
  if (word.size() > kMaxWord) return;
  const bool is_full = bytes_.size() + word.size() > kMaxBytes || ids_.size() + count > kMaxIds;
  if (is_full || 2 * used_ >= kMaxSlots) {
    slots_.assign(slots_.size(), WordSlot());
    bytes_.clear();
    ids_.clear();
    used_ = 0;
  } else if (2 * used_ >= slots_.size()) {
    std::vector<WordSlot> old(4 * slots_.size());
    old.swap(slots_);
    for (const WordSlot& slot : old)
      if (slot.hash != 0) place(slot);
  }
  place({hash | 1, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(word.size()),
         static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)});
  bytes_ += word;
  for (size_t i = 0; i < count; ++i) ids_.push_back(static_cast<uint32_t>(ids[i]));
  ++used_;
}

}  // namespace attn::text
