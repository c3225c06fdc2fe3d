#include "options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "attn/train_pairs.h"
#include "commands.h"
#include "output.h"

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

namespace {

/// What other programs have and this one calls otherwise or has not: what comes nearest to it.
constexpr std::pair<const char*, const char*> kElsewhere[] = {{"--typical-p", "--min-p"},
                                                              {"--max-length", "--max-new-tokens"},
                                                              {"--min-length", "--min-new-tokens"},
                                                              {"--n-predict", "--max-new-tokens"},
                                                              {"--ctx-size", "--context"},
                                                              {"--output", "--out"},
                                                              {"--stop-strings", "--stop"},
                                                              {"--lr", "--learning-rate"},
                                                              {"--batch-size", "--batch"},
                                                              {"--input", "--file"},
                                                              {"--epoch", "--epochs"},
                                                              {"--max-seq-length", "--max-length"},
                                                              {"--num-layers", "--layers"},
                                                              {"--num-heads", "--heads"},
                                                              {"--hidden-size", "--embed-dim"}};

/// The name that is meant by one that is misspelt or cut short; "" if none is near.
std::string nearest(const std::string& name, const std::vector<std::string>& names) {
  const std::string wanted = [&] {
    const auto* const found = std::find_if(std::begin(kElsewhere), std::end(kElsewhere),
                                           [&](const auto& pair) { return name == pair.first; });
    return found == std::end(kElsewhere) ? name : found->second;
  }();
  std::string best;
  auto least = static_cast<int64_t>(wanted.size() - wanted.find_first_not_of('-') + 1) / 3 + 1;
  for (const std::string& each : names) {
    const bool begins = wanted.size() > 3 && each.starts_with(wanted);
    const std::vector<int64_t> a(wanted.begin(), wanted.end()), b(each.begin(), each.end());
    const int64_t distance = begins ? 0 : attn::train::edit_distance(a, b);
    if (distance >= least) continue;
    least = distance;
    best = each;
  }
  return best;
}

std::string meant(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest(name, names);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

/// Of a subcommand, or of what is before one.
std::string no_option(const CLI::App& app, const CLI::App* command, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* each : {&app, command})
    for (const OptionInfo& option : each ? options_of(*each) : std::vector<OptionInfo>())
      if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
  return fmt::format("unknown option '{}' of attn{}{}", name, command ? " " + command->get_name() : "",
                     meant(name, names));
}

}  // namespace

namespace {

/// What other programs call a subcommand, and how attn does it.
constexpr std::pair<std::string_view, std::string_view> kSubcommandsElsewhere[] = {
    {"finetune", "to fine-tune, attn train DATA --from FOLDER"},
    {"fine-tune", "to fine-tune, attn train DATA --from FOLDER"},
    {"run", "to generate text, attn generate, and to converse, attn chat"},
    {"pull", "nothing is downloaded: give the path of a folder or of a GGUF file"},
    {"download", "nothing is downloaded: give the path of a folder or of a GGUF file"},
    {"perplexity", "for perplexity, attn eval MODEL FILE"},
    {"tokenize", "to encode a text, attn tokenizer encode MODEL FILE"},
    {"merge", "to merge adapters, attn lora merge"}};

}  // namespace

const CLI::App& subcommand_named(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* each : subcommands_of(app)) {
    names.push_back(each->get_name());
    if (name == names.back()) return *each;
  }
  for (const auto& [elsewhere, here] : kSubcommandsElsewhere)
    if (name == elsewhere) throw UsageError(fmt::format("unknown subcommand '{}': {}", name, here));
  const std::string hint = meant(name, names);
  throw UsageError("unknown subcommand '" + name + "'" + hint + (hint.empty() ? "; known" : " Known") +
                   " are: " + joined(names, ", "));
}

std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc), unknown;
  const CLI::App* command = nullptr;
  for (size_t n = 0; n < arguments.size() && arguments[n] != "--"; ++n) {
    std::string& argument = arguments[n];
    if (!argument.starts_with('-') || argument == "-") {
      if (!command && !unknown.empty()) break;  // perhaps the value of what is unknown
      if (!command) command = &subcommand_named(app, argument);
      continue;
    }
    const size_t end = std::min(argument.find('='), argument.size());
    const bool is_long = argument.starts_with("--");
    if (is_long) std::replace(argument.begin(), argument.begin() + static_cast<int64_t>(end), '_', '-');
    const std::string name = argument.substr(0, is_long ? end : 2);  // a value may be right after a short one
    const CLI::Option* option = command ? command->get_option_no_throw(name) : nullptr;
    if (!option) option = app.get_option_no_throw(name);
    if (!option) unknown.push_back(no_option(app, command, argument.substr(0, end)));
    else if (option->get_items_expected_min() > 0 && name == argument) ++n;  // what follows is its value
  }
  if (!unknown.empty())
    throw UsageError(fmt::format("{} (attn{} --help lists the options)", joined(unknown, "; "),
                                 command ? " " + command->get_name() : ""));
  return arguments;
}

}  // namespace cli
