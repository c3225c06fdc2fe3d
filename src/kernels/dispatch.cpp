#include "kernels/dispatch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "attn/core.h"

#if defined(ATTN_X86)
#include <cpuid.h>
#endif

namespace attn::kernels {
namespace {

struct Candidate {
  const Isa& (*isa)();
  bool (*supported)();
};

#if defined(ATTN_X86)
/// The twelve letters of CPUID leaf 0.
std::string vendor() {
  unsigned eax = 0, words[3] = {};
  if (!__get_cpuid(0, &eax, &words[0], &words[2], &words[1])) return {};
  return std::string(reinterpret_cast<const char*>(words), sizeof words);
}
#else
std::string vendor() { return {}; }
#endif

template <const Isa& kIsa>
const Isa& only() {
  return kIsa;
}

bool always() { return true; }

#if defined(ATTN_X86)
// Features that clang 14 has no name for are asked of CPUID.

/// Leaf 1, ECX bit 29.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 29 & 1);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/// Leaf 7, subleaf 1, EAX bit 5.
bool has_avx512_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx512() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
}

/// Its own file holds only what it adds: the rest would be compiled twice.
const Isa& avx512_and_bf16() {
  static const Isa both = [] {
    Isa isa = isa_avx512;
    isa.name = isa_avx512_bf16.name;
    isa.bf16 = isa_avx512_bf16.bf16;
    isa.bf16_few = isa_avx512_bf16.bf16_few;
    return isa;
  }();
  return both;
}

constexpr Candidate candidates[] = {{avx512_and_bf16, has_avx512_bf16},
                                    {only<isa_avx512>, has_avx512},
                                    {only<isa_avx2>, has_avx2},
                                    {only<isa_baseline>, always}};
#elif defined(ATTN_NEON)
constexpr Candidate candidates[] = {{only<isa_neon>, always}};
#else
constexpr Candidate candidates[] = {{only<isa_baseline>, always}};
#endif

const Isa* find(std::string_view name) {
  for (const Candidate& candidate : candidates)
    if (name == candidate.isa().name && candidate.supported()) return &candidate.isa();
  return nullptr;
}

const Isa& named(std::string_view name, std::string_view source) {
  if (const Isa* isa = find(name)) return *isa;
  std::string choices;
  for (const std::string& choice : available()) choices += (choices.empty() ? "" : ", ") + choice;
  throw Error("set_isa", {std::string(source) + " names '" + std::string(name) +
                          "', which this CPU or build does not have; choices: " + choices});
}

std::atomic<const Isa*> chosen{nullptr};

}  // namespace

std::vector<std::string> preference(std::string_view vendor) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) names.emplace_back(candidate.isa().name);
  const auto at = [&](const char* name) { return std::find(names.begin(), names.end(), name); };
  const bool quick_products = vendor == "AuthenticAMD" || vendor == "HygonGenuine";
  if (!quick_products && at("avx512_bf16") != names.end()) std::iter_swap(at("avx512_bf16"), at("avx512"));
  return names;
}

std::vector<std::string> available() {
  std::vector<std::string> names = preference(vendor());
  std::erase_if(names, [](const std::string& name) { return find(name) == nullptr; });
  return names;
}

void force(std::string_view name) { chosen.store(&named(name, "the caller"), std::memory_order_release); }

}  // namespace attn::kernels

const attn::kernels::Isa& attn::active_kernels() {
  using namespace kernels;
  const Isa* isa = chosen.load(std::memory_order_acquire);
  if (isa) return *isa;
  const char* wish = std::getenv("ATTN_ISA");
  isa = wish && *wish ? &named(wish, "the environment variable ATTN_ISA") : find(available().front());
  chosen.store(isa, std::memory_order_release);
  return *isa;
}
