#include "kernels/dispatch.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "attn/core.h"

#if defined(ATTN_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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

// ATTN_HAS_<name>: the build has this kernel set (see ATTN_ISAS in CMakeLists.txt).
template <const Isa& kIsa>
const Isa& only() {
  return kIsa;
}

[[maybe_unused]] bool always() { return true; }

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
/// Leaf 7, ECX bit 11.
[[maybe_unused]] bool has_avx512_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ecx >> 11 & 1);
}
/// Leaf 7, subleaf 1, EAX bit 5.
[[maybe_unused]] bool has_avx512_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx512() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
}

/// Leaf 7, EDX bits 22 (bfloat16 products) and 24 (tiles). Their kernels convert with AVX-512 BF16 too.
bool cpu_has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx512_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 22 & 1) && (edx >> 24 & 1);
}
/// Asked once, of a CPU that has tiles.
int tiles_error() {
  static const int error = request_tiles();
  return error;
}
[[maybe_unused]] bool has_tiles() { return cpu_has_tiles() && tiles_error() == 0; }
/// Leaf 7, subleaf 1, EAX bit 21.
[[maybe_unused]] bool has_fp16_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_tiles() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 21 & 1);
}

#if defined(ATTN_HAS_AVX512)
/// With the products of 8-bit numbers of VNNI, where the CPU has that.
const Isa& avx512() {
  static const Isa best = [] {
    Isa isa = isa_avx512;
#if defined(ATTN_HAS_AVX512_VNNI)
    if (has_avx512_vnni()) isa.quantized = isa_avx512_vnni.quantized;
#endif
    return isa;
  }();
  return best;
}

/// Its own file holds only what a set adds: the rest would be compiled twice.
Isa on_avx512(const Isa& added) {
  Isa isa = avx512();
  isa.name = added.name;
  if (added.f32) isa.f32 = added.f32;
  isa.bf16 = added.bf16;
  isa.f16 = added.f16;
  isa.f16_forward = added.f16_forward;
  for (int i = 0; i < 3; ++i) isa.f32_parts[i] = added.f32_parts[i];
  isa.products = added.products;
  isa.bf16_few = added.bf16_few;
  isa.bf16_dense = added.bf16_dense;
  return isa;
}
#endif
#if defined(ATTN_HAS_AVX512_BF16)
const Isa& avx512_and_bf16() {
  static const Isa both = on_avx512(isa_avx512_bf16);
  return both;
}
#endif
#if defined(ATTN_HAS_AMX)
const Isa& avx512_and_fp16_tiles() {
  static const Isa both = on_avx512(isa_amx);
  return both;
}
const Isa& avx512_and_tiles() {
  static const Isa both = [] {
    Isa isa = avx512_and_fp16_tiles();
    isa.name = "amx";
    isa.f16_forward = nullptr;
    return isa;
  }();
  return both;
}

#endif

constexpr Candidate candidates[] = {
#if defined(ATTN_HAS_AMX)
    {avx512_and_fp16_tiles, has_fp16_tiles},
    {avx512_and_tiles, has_tiles},
#endif
#if defined(ATTN_HAS_AVX512_BF16)
    {avx512_and_bf16, has_avx512_bf16},
#endif
#if defined(ATTN_HAS_AVX512)
    {avx512, has_avx512},
#endif
#if defined(ATTN_HAS_AVX2)
    {only<isa_avx2>, has_avx2},
#endif
#if defined(ATTN_HAS_BASELINE)
    {only<isa_baseline>, always},
#endif
};
#elif defined(ATTN_NEON)
constexpr Candidate candidates[] = {{only<isa_neon>, always}};
#else
constexpr Candidate candidates[] = {{only<isa_baseline>, always}};
#endif

/// What offer() was given.
std::vector<Isa>& offered() {
  static std::vector<Isa> isas;
  return isas;
}

const Isa* find(std::string_view name) {
  for (const Candidate& candidate : candidates)
    if (name == candidate.isa().name && candidate.supported()) return &candidate.isa();
  for (const Isa& isa : offered())
    if (name == isa.name) return &isa;
  return nullptr;
}

const Isa& named(std::string_view name, std::string_view source) {
  if (const Isa* isa = find(name)) return *isa;
  std::string choices;
  for (const std::string& choice : available()) choices += (choices.empty() ? "" : ", ") + choice;
  std::vector<std::string> problems = {std::string(source) + " names '" + std::string(name) +
                                       "', which this CPU or build does not have; choices: " + choices};
  if (const std::string reason = missing(); !reason.empty()) problems.push_back(reason);
  throw Error("set_isa", std::move(problems));
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
  for (const Isa& isa : offered()) names.emplace_back(isa.name);
  return names;
}

int request_tiles() {
#if defined(ATTN_X86) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return ENOSYS;
#endif
}

std::string refused_tiles(int error) {
  if (error == 0) return {};
  return "amx: the system refuses this process the CPU's matrix tiles: " + std::generic_category().message(error);
}

std::string missing() {
#if defined(ATTN_X86)
  if (cpu_has_tiles()) return refused_tiles(tiles_error());
#endif
  return {};
}

void offer(const Isa& added) {
#if defined(ATTN_HAS_AVX512)
  if (!has_avx512()) return;
  offered().push_back(on_avx512(added));
  offered().back().quantized = isa_avx512.quantized;
#else
  static_cast<void>(added);
#endif
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
