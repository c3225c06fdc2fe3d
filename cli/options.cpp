#include "options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "common.h"

namespace cli {
namespace {

template <class T>
bool parsed(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

// -------------------------------------------------------------------------------------------------------------- values

CLI::Validator whole(int64_t lowest, int64_t highest) {
  const bool open = highest == std::numeric_limits<int64_t>::max();
  const std::string limits = open ? fmt::format("at least {}", lowest) : fmt::format("{} to {}", lowest, highest);
  const auto check = [=](const std::string& text) {
    int64_t value = 0;
    if (parsed(text, value) && value >= lowest && value <= highest) return std::string();
    return fmt::format("must be a whole number {}{}, not '{}'", open ? "of " : "from ", limits, text);
  };
  return CLI::Validator(check, limits);
}

CLI::Validator number(double lowest, double highest, const std::string& ends) {
  const bool above = ends[0] == '(', below = ends[1] == ')';
  const std::string limits = highest < std::numeric_limits<double>::infinity()
                                 ? fmt::format("{}{}, {}{}", ends[0], lowest, highest, ends[1])
                                 : fmt::format("{} {}", above ? "above" : "at least", lowest);
  const auto check = [=](const std::string& text) {
    double value = 0;
    const bool fits = parsed(text, value) && (above ? value > lowest : value >= lowest) &&
                      (below ? value < highest : value <= highest) && value <= std::numeric_limits<double>::max();
    const char* link = highest < std::numeric_limits<double>::infinity() ? "in " : above ? "" : "of ";
    return fits ? std::string() : fmt::format("must be a number {}{}, not '{}'", link, limits, text);
  };
  return CLI::Validator(check, limits);
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  const auto check = [=](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::string();
    return fmt::format("must be one of {}, not '{}'", joined(choices, ", "), text);
  };
  return CLI::Validator(check, "{" + joined(choices, ",") + "}");
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + "\"";
}

// ------------------------------------------------------------------------------------------------------ as it is shown

OptionInfo describe(const CLI::Option& option) {
  OptionInfo info;
  info.positional = option.get_positional();
  if (info.positional) info.names.push_back(option.get_name(true, false));
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  info.description = option.get_description();
  if (option.get_type_size() == 0) return info;     // a flag
  const std::string type = option.get_type_name();  // "INT:0 to 1024", "TEXT:{best,last}"
  const size_t colon = std::min(type.find(':'), type.size());
  info.value = type.starts_with("UINT") ? "INT" : type.substr(0, colon);
  info.limits = type.substr(std::min(colon + 1, type.size()));
  if (info.limits.starts_with('{')) {
    info.choices = CLI::detail::split(info.limits.substr(1, info.limits.size() - 2), ',');
    info.limits.clear();
  }
  info.fallback = option.get_default_str();
  if (info.fallback.starts_with('[')) info.fallback = info.fallback.substr(1, info.fallback.size() - 2);  // a list
  return info;
}

std::string OptionInfo::text() const {
  std::string all = description;
  if (!choices.empty()) all += " (one of " + joined(choices, ", ") + ")";
  const bool interval = limits.starts_with('[') || limits.starts_with('(');
  if (!limits.empty()) all += interval ? ", in " + limits : " (" + limits + ")";
  if (!fallback.empty()) all += " [default " + fallback + "]";
  return all;
}

std::vector<OptionInfo> options_of(const CLI::App& command) {
  std::vector<OptionInfo> all;
  for (const CLI::Option* option : command.get_options()) all.push_back(describe(*option));
  std::stable_partition(all.begin(), all.end(), [](const OptionInfo& option) { return option.positional; });
  return all;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string Help::make_option(const CLI::Option* option, bool) const {
  constexpr size_t kColumn = 28, kWidth = 100;
  const OptionInfo info = describe(*option);
  std::string out = "  " + joined(info.names, ", ");
  if (!info.positional && !info.value.empty()) out += " " + info.value;
  size_t column = out.size();
  if (column + 2 > kColumn) {
    out += "\n";
    column = 0;
  }
  out.append(kColumn - column, ' ');
  column = kColumn;
  std::istringstream words(info.text());
  for (std::string word; words >> word;) {
    if (column > kColumn && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kColumn, ' ');
      column = kColumn;
    }
    out += (column > kColumn ? " " : "") + word;
    column += word.size() + (column > kColumn ? 1 : 0);
  }
  return out + "\n";
}

// ----------------------------------------------------------------------------------------------------- a command line

std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const CLI::App* command = nullptr;
  for (size_t n = 0; n < arguments.size() && arguments[n] != "--"; ++n) {
    std::string& argument = arguments[n];
    if (!argument.starts_with('-')) {
      if (command) continue;
      std::vector<std::string> names;
      for (const CLI::App* each : subcommands_of(app)) {
        names.push_back(each->get_name());
        if (argument == names.back()) command = each;
      }
      if (command) continue;
      throw UsageError("there is no subcommand '" + argument + "'; there are " + joined(names, ", "));
    }
    const size_t end = std::min(argument.find('='), argument.size());
    if (argument.starts_with("--"))
      std::replace(argument.begin(), argument.begin() + static_cast<int64_t>(end), '_', '-');
    const std::string name = argument.substr(0, end);
    const CLI::Option* option = command ? command->get_option_no_throw(name) : nullptr;
    if (!option) option = app.get_option_no_throw(name);
    if (option && option->get_items_expected_max() > 0 && end == argument.size()) ++n;  // what follows is its value
  }
  return arguments;
}

}  // namespace cli
