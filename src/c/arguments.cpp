#include "c/arguments.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <new>
#include <tuple>

#include "attention/problem.h"

namespace attn::c {
namespace {

constexpr size_t kLargestStruct = 4096;  // a struct_size that nobody has set is read no further

/// Of C's types, in order; the two interfaces number them alike.
constexpr DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                            DType::boolean, DType::int32,   DType::int64};
static_assert(kTypes[ATTN_FLOAT64] == DType::float64 && kTypes[ATTN_BFLOAT16] == DType::bfloat16 &&
              kTypes[ATTN_FLOAT16] == DType::float16 && kTypes[ATTN_BOOLEAN] == DType::boolean &&
              kTypes[ATTN_INT32] == DType::int32 && kTypes[ATTN_INT64] == DType::int64);
static_assert(Alignment{ATTN_ALIGNMENT_TOP_LEFT} == Alignment::top_left &&
              Alignment{ATTN_ALIGNMENT_BOTTOM_RIGHT} == Alignment::bottom_right &&
              Alignment{ATTN_ALIGNMENT_OFFSET} == Alignment::offset);
static_assert(Float32Precision{ATTN_FLOAT32_HIGH} == Float32Precision::high &&
              Float32Precision{ATTN_FLOAT32_FAST} == Float32Precision::fast);

thread_local std::string last_message;
thread_local const char* last_error = "";

attn_status failed(attn_status status, const char* message) noexcept {
  try {
    last_message = message;
    last_error = last_message.c_str();
  } catch (...) {
    last_error = "out of memory, also for the message";
  }
  return status;
}

}  // namespace

attn_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return failed(ATTN_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return failed(ATTN_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(ATTN_INTERNAL_ERROR, error.what());
  } catch (...) {
    return failed(ATTN_INTERNAL_ERROR, "an exception of an unknown type");
  }
}

namespace {

/// Whether a reason speaks of the argument of this name, which it may call without "options." in front.
bool names(const std::string& reason, std::string name) {
  name.erase(0, name.rfind('.') + 1);
  const auto is_part = [&](size_t n) { return n < reason.size() && (std::isalnum(reason[n]) || reason[n] == '_'); };
  for (size_t at = reason.find(name); at != std::string::npos; at = reason.find(name, at + 1))
    if (!(at > 0 && is_part(at - 1)) && !is_part(at + name.size())) return true;
  return false;
}

}  // namespace

void Arguments::run_dry(const std::function<void()>& call) {
  if (!can_run_dry_) return detail::check_numbers(checker_, options_);
  try {
    const DryRun dry;
    call();
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons())
      if (std::none_of(wrong_.begin(), wrong_.end(), [&](const std::string& name) { return names(reason, name); }))
        checker_.require(false, reason);
  }
}

template <class Reason>
bool Arguments::require_of(const char* name, bool condition, const Reason& reason) {
  if (!condition) wrong_.emplace_back(name);
  return checker_.require(condition, [&] { return within_ + name + reason(); });
}

bool Arguments::given(const char* name, const void* pointer) {
  return require_of(name, pointer != nullptr, [] { return " is a null pointer"; });
}

bool Arguments::flag(const char* name, int32_t value) {
  checker_.require(value == 0 || value == 1,
                   [&] { return within_ + name + " is " + std::to_string(value) + ", must be 0 or 1"; });
  return value != 0;
}

DType Arguments::dtype(const char* name, int32_t value) {
  const bool known = require_of(name, value >= 0 && value < static_cast<int32_t>(std::size(kTypes)), [&] {
    return " has dtype " + std::to_string(value) +
           ", must be one of enum attn_dtype, ATTN_FLOAT32 = 0 to ATTN_INT64 = 6";
  });
  return known ? kTypes[value] : DType::float32;
}

template <int Rank>
View<Rank> Arguments::optional(const char* name, const attn_tensor* tensor) {
  View<Rank> view;
  if (tensor == nullptr) return view;
  view.dtype = dtype(name, tensor->dtype);
  const bool right_rank = require_of(name, tensor->rank == Rank, [&] {
    return " has rank " + std::to_string(tensor->rank) + ", must be " + std::to_string(Rank);
  });
  if (!right_rank) return view;
  std::copy_n(tensor->size, Rank, view.size.begin());
  std::copy_n(tensor->stride, Rank, view.stride.begin());
  view.data = tensor->data;
  const bool is_empty = std::any_of(view.size.begin(), view.size.end(), [](int64_t extent) { return extent == 0; });
  require_of(name, view.data != nullptr || is_empty,
             [] { return " has no data; a tensor that is not wanted is a null pointer"; });
  return view;
}

template View<1> Arguments::optional<1>(const char*, const attn_tensor*);
template View<2> Arguments::optional<2>(const char*, const attn_tensor*);
template View<3> Arguments::optional<3>(const char*, const attn_tensor*);
template View<4> Arguments::optional<4>(const char*, const attn_tensor*);

template <class T>
std::span<const T> Arguments::values(const char* name, const T* data, int64_t count) {
  const bool right = require_of(name, count >= 0 && (data != nullptr || count == 0), [&] {
    return std::string(" has ") + (data ? "" : "no data and ") + "count " + std::to_string(count) +
           (data ? ", must not be negative" : "");
  });
  return right ? std::span<const T>(data, static_cast<size_t>(count)) : std::span<const T>();
}

std::span<const int64_t> Arguments::span(const char* name, const attn_int64s& given) {
  return values(name, given.data, given.count);
}

size_t Arguments::struct_size(const char* name, const void* pointer, size_t known) {
  size_t size = 0;
  std::memcpy(&size, pointer, sizeof size);
  const bool right = checker_.require(size >= sizeof size && size % sizeof size == 0 && size <= kLargestStruct, [&] {
    return std::string(name) + ".struct_size is " + std::to_string(size) + ", must be the sizeof of the struct, here " +
           std::to_string(known);
  });
  return right ? size : 0;
}

template <class T>
T Arguments::copy(const char* name, const T* pointer) {
  T result{};
  if (pointer == nullptr) return result;
  const size_t size = struct_size(name, pointer, sizeof(T));
  std::memcpy(&result, pointer, std::min(size, sizeof(T)));
  const char* bytes = reinterpret_cast<const char*>(pointer);
  const bool known = size <= sizeof(T) || std::all_of(bytes + sizeof(T), bytes + size, [](char c) { return c == 0; });
  checker_.require(known, [&] {
    return std::string(name) + " sets a field beyond the " + std::to_string(sizeof(T)) +
           " bytes that this library knows: the library is older than the header";
  });
  return result;
}

template <class Enum>
Enum Arguments::enumerator(const char* name, int32_t value, const char* type, Enum last) {
  const bool known = checker_.require(value >= 0 && value <= static_cast<int32_t>(last), [&] {
    return within_ + name + " is " + std::to_string(value) + ", must be one of enum " + type + ", 0 to " +
           std::to_string(static_cast<int32_t>(last));
  });
  return known ? static_cast<Enum>(value) : Enum();
}

/// One option of C as that of C++, whose type says which overload it is.
struct Arguments::Convert {
  Arguments& in;

  void operator()(const AttentionOption& option, bool& to, int32_t from) const { to = in.flag(option.name, from); }
  void operator()(const AttentionOption&, double& to, double from) const { to = from; }
  void operator()(const AttentionOption&, uint64_t& to, uint64_t from) const { to = from; }
  void operator()(const AttentionOption&, std::optional<double>& to, const double* from) const {
    if (from) to = *from;
  }
  void operator()(const AttentionOption&, Window& to, const attn_window* from) const {
    if (from) to = {from->left, from->right};
  }
  void operator()(const AttentionOption&, Shard& to, const attn_shard* from) const {
    if (from) to = {from->first_batch, from->first_head, from->first_query, from->first_key, from->queries, from->keys};
  }
  void operator()(const AttentionOption& option, Alignment& to, int32_t from) const {
    to = in.enumerator(option.name, from, "attn_alignment", Alignment::offset);
  }
  void operator()(const AttentionOption& option, Float32Precision& to, int32_t from) const {
    to = in.enumerator(option.name, from, "attn_float32_precision", Float32Precision::fast);
  }
  void operator()(const AttentionOption& option, std::span<const int64_t>& to, const attn_int64s& from) const {
    to = in.span(option.name, from);
  }
  void operator()(const AttentionOption& option, std::span<const float>& to, const attn_floats& from) const {
    to = in.values(option.name, from.data, from.count);
  }
  template <int Rank>
  void operator()(const AttentionOption& option, ConstView<Rank>& to, const attn_tensor* from) const {
    to = in.optional<Rank>(option.name, from);
  }
  void operator()(const AttentionOption& option, BlockLayout& to, const attn_blocks* from) const {
    if (!from) return;
    in.require_of(option.name, from->allowed || from->offsets, [] { return " has neither allowed nor offsets"; });
    to = {in.optional<4>("blocks.allowed", from->allowed), from->query_block, from->key_block,
          in.optional<3>("blocks.offsets", from->offsets), in.optional<1>("blocks.indices", from->indices)};
  }
};

AttentionOptions Arguments::options(const attn_options* pointer) {
  const attn_options given = copy("options", pointer);
  within_ = "options.";
  each_option(Convert{*this}, options_, given);
  within_.clear();
  return options_;
}

LinearAttentionOptions Arguments::options(const attn_linear_options* pointer) {
  const attn_linear_options c = copy("options", pointer);
  LinearAttentionOptions o;
  within_ = "options.";
  require(c.reserved == 0, "options.reserved must be 0");
  if (c.scale) o.scale = *c.scale;
  o.log_decay = optional<4>("log_decay", c.log_decay);
  o.beta = optional<3>("beta", c.beta);
  o.delta = flag("delta", c.delta);
  o.l2norm = flag("l2norm", c.l2norm);
  if (c.l2norm_epsilon) o.l2norm_epsilon = *c.l2norm_epsilon;
  o.normalize = flag("normalize", c.normalize);
  o.initial_state = optional<4>("initial_state", c.initial_state);
  o.cu_seqlens = span("cu_seqlens", c.cu_seqlens);
  within_.clear();
  return o;
}

CausalConvolutionOptions Arguments::options(const attn_convolution_options* pointer) {
  const attn_convolution_options c = copy("options", pointer);
  CausalConvolutionOptions o;
  within_ = "options.";
  require(c.reserved == 0, "options.reserved must be 0");
  o.bias = optional<1>("bias", c.bias);
  o.silu = flag("silu", c.silu);
  o.initial_state = optional<3>("initial_state", c.initial_state);
  o.cu_seqlens = span("cu_seqlens", c.cu_seqlens);
  o.segment_ids = optional<2>("segment_ids", c.segment_ids);
  within_.clear();
  return o;
}

attn_tensor Arguments::any_rank(const char* name, const attn_tensor* tensor) {
  if (!given(name, tensor)) return {};
  const bool right = require_of(name, tensor->rank >= 1 && tensor->rank <= 4,
                                [&] { return " has rank " + std::to_string(tensor->rank) + ", must be 1 to 4"; });
  return right ? *tensor : attn_tensor{};
}

attn_executor Arguments::executor(const attn_executor* pointer) {
  const attn_executor c = copy("executor", pointer);
  if (pointer == nullptr) return c;
  given("executor.run", reinterpret_cast<const void*>(c.run));
  given("executor.threads", reinterpret_cast<const void*>(c.threads));
  return c;
}

AttentionGradients Arguments::gradients(const attn_gradients* pointer) {
  given("gradients", pointer);
  const attn_gradients c = copy("gradients", pointer);
  AttentionGradients g;
  g.dq = optional<4>("gradients.dq", c.dq);
  g.dk = optional<4>("gradients.dk", c.dk);
  g.dv = optional<4>("gradients.dv", c.dv);
  g.dbias = optional<4>("gradients.dbias", c.dbias);
  g.dsink = optional<1>("gradients.dsink", c.dsink);
  return g;
}

LinearAttentionGradients Arguments::gradients(const attn_linear_gradients* pointer) {
  given("gradients", pointer);
  const attn_linear_gradients c = copy("gradients", pointer);
  LinearAttentionGradients g;
  g.dq = optional<4>("gradients.dq", c.dq);
  g.dk = optional<4>("gradients.dk", c.dk);
  g.dv = optional<4>("gradients.dv", c.dv);
  g.dlog_decay = optional<4>("gradients.dlog_decay", c.dlog_decay);
  g.dbeta = optional<3>("gradients.dbeta", c.dbeta);
  g.dinitial_state = optional<4>("gradients.dinitial_state", c.dinitial_state);
  return g;
}

CausalConvolutionGradients Arguments::gradients(const attn_convolution_gradients* pointer) {
  given("gradients", pointer);
  const attn_convolution_gradients c = copy("gradients", pointer);
  CausalConvolutionGradients g;
  g.dx = optional<3>("gradients.dx", c.dx);
  g.dweight = optional<2>("gradients.dweight", c.dweight);
  g.dbias = optional<1>("gradients.dbias", c.dbias);
  g.dinitial_state = optional<3>("gradients.dinitial_state", c.dinitial_state);
  return g;
}

KVCacheConfig Arguments::config(const attn_kv_cache_config* pointer) {
  needed("config", pointer);
  const attn_kv_cache_config c = copy("config", pointer);
  KVCacheConfig config;
  config.kv_heads = c.kv_heads;
  config.head_dim = c.head_dim;
  config.value_dim = c.value_dim;
  config.dtype = dtype("config", c.dtype);
  if (c.page_size != 0) config.page_size = c.page_size;
  config.max_pages = c.max_pages;
  config.streaming = {.sink_tokens = c.sink_tokens, .window = c.window};
  config.storage = enumerator("config.storage", c.storage, "attn_kv_storage", KVStorage::int8);
  return config;
}

template <class Statistics>
Statistics Arguments::rows(const char* name, const attn_row_statistics* pointer) {
  constexpr int kRank = std::tuple_size_v<decltype(Statistics().sum.size)>;
  const attn_row_statistics c = copy(name, pointer);
  const std::string prefix = std::string(name) + ".";
  Statistics s;
  s.sum = optional<kRank>((prefix + "sum").c_str(), c.sum);
  s.entropy = optional<kRank>((prefix + "entropy").c_str(), c.entropy);
  s.participation = optional<kRank>((prefix + "participation").c_str(), c.participation);
  s.maximum = optional<kRank>((prefix + "maximum").c_str(), c.maximum);
  s.distance = optional<kRank>((prefix + "distance").c_str(), c.distance);
  s.same_token = optional<kRank>((prefix + "same_token").c_str(), c.same_token);
  s.bands = optional<kRank + 1>((prefix + "bands").c_str(), c.bands);
  s.labels = optional<kRank + 1>((prefix + "labels").c_str(), c.labels);
  return s;
}

template RowStatisticsGradients Arguments::rows<RowStatisticsGradients>(const char*, const attn_row_statistics*);

AttentionStatistics Arguments::statistics(const attn_statistics* pointer, std::vector<KeyBand>& bands) {
  given("statistics", pointer);
  const attn_statistics c = copy("statistics", pointer);
  AttentionStatistics s;
  s.rows = rows<RowStatistics<3>>("rows", c.rows);
  s.means = rows<RowStatistics<2>>("means", c.means);
  s.argmax_key = optional<3>("argmax_key", c.argmax_key);
  s.top_weight = optional<4>("top_weight", c.top_weight);
  s.top_key = optional<4>("top_key", c.top_key);
  s.column_mass = optional<3>("column_mass", c.column_mass);
  s.column_position = optional<3>("column_position", c.column_position);
  const attn_picture picture = copy("picture", c.picture);
  s.picture.cells = optional<4>("picture.cells", picture.cells);
  s.picture.maximum = flag("picture.maximum", picture.maximum);
  s.picture.first_query = picture.first_query;
  s.picture.first_key = picture.first_key;
  if (picture.queries != 0) s.picture.queries = picture.queries;
  if (picture.keys != 0) s.picture.keys = picture.keys;
  for (const attn_key_band& band : values("bands", c.bands, c.band_count))
    bands.push_back({band.low, band.high, !flag("bands.from_start", band.from_start)});
  s.sets.bands = bands;
  s.sets.labels = optional<2>("labels", c.labels);
  s.sets.query_token_ids = optional<2>("query_token_ids", c.query_token_ids);
  s.sets.key_token_ids = optional<2>("key_token_ids", c.key_token_ids);
  s.key_factor = optional<3>("key_factor", c.key_factor);
  return s;
}

}  // namespace attn::c

const char* attn_last_error() { return attn::c::last_error; }
