// Options: which values they accept, and how help, manual and completion describe them.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

namespace cli {

// What a value must be: the reason why it is not, and the limits that help shows.
CLI::Validator whole(int64_t lowest, int64_t highest = std::numeric_limits<int64_t>::max());
/// `ends` are those of the interval: "[]", "(]", "[)", "()". Never infinite, never NaN.
CLI::Validator number(double lowest, double highest = std::numeric_limits<double>::infinity(),
                      const std::string& ends = "[]");
CLI::Validator one_of(const std::vector<std::string>& choices);

/// An option as it is shown.
struct OptionInfo {
  std::vector<std::string> names;    ///< "-p", "--prompts"; of a positional one its name
  std::string value;                 ///< INT, FLOAT, TEXT, FILE, FOLDER; "" of a flag
  std::string description, limits;   ///< limits: "1 to 1024", "" = none
  std::vector<std::string> choices;  ///< empty = any value
  std::string fallback;              ///< the value if it is not given
  bool positional = false;

  /// Description, choices, limits and default in one text.
  std::string text() const;
};
OptionInfo describe(const CLI::Option& option);
/// The positional arguments, then the options.
std::vector<OptionInfo> options_of(const CLI::App& command);
/// In the order in which they were added.
std::vector<const CLI::App*> subcommands_of(const CLI::App& app);

/// Help with choices, limits and defaults.
class Help : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

/// Throws UsageError, with the name that was probably meant, where there is none of this name.
const CLI::App& subcommand_named(const CLI::App& app, const std::string& name);

/// The arguments after the program's name, with "--embed_dim" written "--embed-dim"; values stay as they are. Throws
/// UsageError for a subcommand and for options that there are not, in their order.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv);

}  // namespace cli
