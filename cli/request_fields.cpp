#include "request_fields.h"

#include <fmt/core.h>

#include <algorithm>

namespace cli {

using Json = Fields::Json;

Fields::Fields(const std::string& text, const std::string& what) : all_(Json::parse(text, nullptr, false)) {
  if (all_.is_discarded()) throw FieldError(what + " is not JSON");
  if (!all_.is_object()) throw FieldError(what + " must be a JSON object");
}

const Json* Fields::take(const std::string& name) {
  read_.insert(name);
  const auto found = all_.find(name);
  return found == all_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::required(const std::string& name) {
  const Json* field = take(name);
  if (!field) throw FieldError(name + " is missing", name);
  return *field;
}

namespace {

/// True if a number is given and right.
bool check_number(const Json* field, bool right, const std::string& name, const char* kind, double least, double most) {
  if (!field) return false;
  if (!right || !(field->get<double>() >= least && field->get<double>() <= most))
    throw FieldError(
        fmt::format("{} is {}, must be a {} from {} to {}", name, Fields::shown(*field), kind, least, most), name);
  return true;
}

}  // namespace

void Fields::number(const std::string& name, std::optional<double>& to, double least, double most) {
  const Json* field = take(name);
  if (check_number(field, field && field->is_number(), name, "number", least, most)) to = field->get<double>();
}

void Fields::number(const std::string& name, std::optional<int64_t>& to, double least, double most) {
  const Json* field = take(name);
  if (check_number(field, field && field->is_number_integer(), name, "whole number", least, most))
    to = field->get<int64_t>();
}

bool Fields::flag(const std::string& name) {
  const Json* field = take(name);
  if (!field) return false;
  if (!field->is_boolean()) throw FieldError(fmt::format("{} is {}, must be true or false", name, shown(*field)), name);
  return field->get<bool>();
}

std::string Fields::text(const std::string& name, const std::string& otherwise) {
  const Json* field = take(name);
  if (!field) return otherwise;
  if (!field->is_string()) throw FieldError(fmt::format("{} is {}, must be a text", name, shown(*field)), name);
  return field->get<std::string>();
}

void Fields::refuse(const std::string& name, const std::vector<Json>& harmless) {
  const Json* field = take(name);
  if (field && std::find(harmless.begin(), harmless.end(), *field) == harmless.end())
    throw FieldError(fmt::format("{} is not supported", name), name);
}

void Fields::done() const {
  for (const auto& [name, value] : all_.items())
    if (!read_.contains(name)) throw FieldError(fmt::format("unknown field {}", shown(Json(name))), name);
}

std::string Fields::shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool all_of(const Json& list, bool (Json::*is)() const noexcept) {
  return list.is_array() && !list.empty() &&
         std::all_of(list.begin(), list.end(), [&](const Json& each) { return (each.*is)(); });
}

namespace {

void read_stops(Fields& fields, std::vector<std::string>& stops) {
  const Json* stop = fields.take("stop");
  if (!stop) return;
  if (stop->is_string()) stops = {stop->get<std::string>()};
  else if (all_of(*stop, &Json::is_string) && stop->size() <= 16) stops = stop->get<std::vector<std::string>>();
  else throw FieldError("stop must be a text or a list of 1 to 16 texts", "stop");
  if (std::any_of(stops.begin(), stops.end(), [](const std::string& each) { return each.empty(); }))
    throw FieldError("stop has an empty text", "stop");
}

}  // namespace

void read_sampling(Fields& fields, attn::generate::TextOptions& options) {
  fields.number("temperature", options.temperature, 0, 100);
  fields.number("top_p", options.top_p, 1e-9, 1);
  fields.number("top_k", options.top_k, 0, 1e9);
  fields.number("min_p", options.min_p, 0, 1);
  fields.number("repetition_penalty", options.repetition_penalty, 1e-3, 1e3);
  std::optional<int64_t> seed;
  fields.number("seed", seed, 0, 9e15);
  if (seed) options.seed = static_cast<uint64_t>(*seed);
  read_stops(fields, options.stop_strings);
}

}  // namespace cli
