// attn completion, attn man, attn help: what the program says of itself. All walk its subcommands and options, so they
// say what --help says.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "attn/c.h"
#include "commands.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

bool is_number(const OptionInfo& option) { return option.value == "INT" || option.value == "FLOAT"; }

std::vector<std::string> flags_of(const CLI::App& command, const CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::App* each : {&command, &app})
    for (const OptionInfo& option : options_of(*each))
      if (!option.positional) all.insert(all.end(), option.names.begin(), option.names.end());
  return all;
}

// --------------------------------------------------------------------------------------------------------------- bash

/// The cases of "subcommand:option" that complete to words; none for numbers, files for everything else.
std::string bash_values(const CLI::App& command, const std::string& pattern) {
  std::string cases;
  for (const OptionInfo& option : options_of(command)) {
    if (option.positional || (option.choices.empty() && !is_number(option) && option.value != "FOLDER")) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(pattern + ":" + name);
    cases += fmt::format("    {}) {} ;;\n", joined(patterns, "|"),
                         !option.choices.empty() ? "words='" + joined(option.choices, " ") + "'"
                         : is_number(option)     ? "words=' '"
                                                 : "COMPREPLY=($(compgen -d -- \"$word\")); return");
  }
  return cases;
}

std::string bash(const CLI::App& app) {
  std::vector<std::string> names;
  std::string values = bash_values(app, "*"), takes_value, options;
  for (const CLI::App* command : subcommands_of(app)) {
    names.push_back(command->get_name());
    values += bash_values(*command, command->get_name());
    options += fmt::format("    {}) words='{}' ;;\n", command->get_name(), joined(flags_of(*command, app), " "));
  }
  std::vector<std::string> global;
  for (const OptionInfo& option : options_of(app)) {
    global.insert(global.end(), option.names.begin(), option.names.end());
    if (!option.value.empty()) takes_value += (takes_value.empty() ? "" : "|") + joined(option.names, "|");
  }
  return fmt::format(R"(# bash completion of attn, as "attn completion bash" prints it.
_attn() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= words= n
  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  [[ $before == --* ]] && before=${{before//_/-}}
  for ((n = 1; n < COMP_CWORD; ++n)); do
    case ${{COMP_WORDS[n]}} in
    {2}) ((++n)) ;;
    -*) ;;
    *) command=${{COMP_WORDS[n]}}; break ;;
    esac
  done
  COMPREPLY=()
  case $command:$before in
{3}  esac
  if [[ -z $words && $word == -* ]]; then
    [[ $word == --* ]] && word=${{word//_/-}}
    case $command in
    '') words='{1}' ;;
{4}    esac
  elif [[ -z $words && -z $command ]]; then
    words='{0}'
  fi
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ $words != ' ' ]] || compopt +o default 2> /dev/null
}}
complete -o default -F _attn attn
)",
                     joined(names, " "), joined(global, " "), takes_value, values, options);
}

// ---------------------------------------------------------------------------------------------------------------- zsh

std::string replaced(const std::string& text, const std::vector<std::pair<char, std::string>>& pairs) {
  std::string out;
  for (char c : text) {
    const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == c; });
    if (found == pairs.end()) out += c;
    else out += found->second;
  }
  return out;
}

/// Inside single quotes, in the descriptions of _arguments.
std::string zsh_quoted(const std::string& text) {
  return replaced(text, {{'\'', "'\\''"}, {'[', "\\["}, {']', "\\]"}, {':', "\\:"}});
}

std::string zsh_argument(const OptionInfo& option) {
  const std::string values = !option.choices.empty()    ? "(" + joined(option.choices, " ") + ")"
                             : option.value == "FOLDER" ? "_files -/"
                             : is_number(option)        ? " "
                                                        : "_files";
  const std::string message = zsh_quoted(option.description),
                    suffix = option.value.empty() ? "" : ":" + option.value + ":" + values;
  if (option.positional) return fmt::format("    ':{}:{}'", message, values);
  if (option.names.size() == 1) return fmt::format("    '{}[{}]{}'", option.names[0], message, suffix);
  return fmt::format("    '({})'{{{}}}'[{}]{}'", joined(option.names, " "), joined(option.names, ","), message, suffix);
}

std::string zsh_arguments(const CLI::App& command, const CLI::App* global) {
  std::vector<std::string> all;
  for (const CLI::App* each : {&command, global})
    for (const OptionInfo& option : each ? options_of(*each) : std::vector<OptionInfo>())
      if (each == &command || option.names.back() != "--help") all.push_back(zsh_argument(option));
  return joined(all, " \\\n");
}

std::string zsh(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : subcommands_of(app)) {
    commands += fmt::format("    '{}:{}'\n", command->get_name(), zsh_quoted(command->get_description()));
    cases += fmt::format("  {})\n    _arguments \\\n{}\n    ;;\n", command->get_name(), zsh_arguments(*command, &app));
  }
  return fmt::format(R"(#compdef attn
# zsh completion of attn, as "attn completion zsh" prints it.
_attn() {{
  local curcontext=$curcontext context state state_descr line
  local -A opt_args
  local -a commands=(
{}  )
  _arguments -C \
{} \
    '1:subcommand:->subcommand' '*::argument:->arguments'
  if [[ $state == subcommand ]]; then
    _describe subcommand commands
    return
  fi
  case $line[1] in
{}  esac
}}
_attn "$@"
)",
                     commands, zsh_arguments(app, nullptr), cases);
}

// ------------------------------------------------------------------------------------------------------------- manual

/// Text for roff: hyphens are hyphens, and a line that begins with a dot or a quote is no request.
std::string roff(const std::string& text) {
  const std::string out = replaced(text, {{'\\', "\\e"}, {'-', "\\-"}});
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string man_options(const CLI::App& command) {
  std::string out;
  for (const OptionInfo& option : options_of(command)) {
    std::vector<std::string> names;
    for (const std::string& name : option.names) names.push_back("\\fB" + roff(name) + "\\fR");
    out += ".TP\n" + joined(names, ", ");
    if (!option.positional && !option.value.empty()) out += " \\fI" + option.value + "\\fR";
    out += "\n" + roff(option.text()) + "\n";
  }
  return out;
}

std::string manual(const CLI::App& app) {
  std::string out =
      ".TH ATTN 1 \"\" \"attention.cpp " + std::string(attn_version()) + "\" \"User Commands\"\n.SH NAME\nattn \\- " +
      roff("train, run and look at self-attention models on the CPU") +
      "\n.SH SYNOPSIS\n.B attn\n[\\fIoptions\\fR] \\fIsubcommand\\fR [\\fIarguments\\fR]\n.SH DESCRIPTION\n" +
      roff(app.get_description()) + "\n.PP\n" +
      roff(
          "An underscore in the name of an option is a hyphen: --embed_dim is --embed-dim. Where a file is "
          "expected, - is standard input or output.") +
      "\n.SH OPTIONS\nThey may be after the subcommand too.\n" + man_options(app) + ".SH SUBCOMMANDS\n";
  for (const CLI::App* command : subcommands_of(app)) {
    out += fmt::format(".SS attn {}\n{}\n", roff(command->get_name()), roff(command->get_description()));
    out += man_options(*command);
    const std::string footer = command->get_footer();
    for (size_t begin = footer.find("  attn "); begin != std::string::npos; begin = footer.find("  attn ", begin + 1))
      out += ".PP\n.nf\n" + roff(footer.substr(begin, footer.find('\n', begin) - begin)) + "\n.fi\n";
  }
  return out +
         ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nfailed\n.TP\n2\na wrong command line\n.TP\n128 + n\nended by signal "
         "n\n";
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "what a shell needs to complete command lines of attn");
  command->footer("Example:\n  attn completion bash > ~/.local/share/bash-completion/completions/attn");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "the shell")->required()->check(one_of({"bash", "zsh"}));
  command->callback([=, &app] { show(*shell == "bash" ? bash(app) : zsh(app)); });
}

void add_man(CLI::App& app) {
  CLI::App* command = app.add_subcommand("man", "the manual page");
  command->footer("Example:\n  attn man | man -l -");
  command->callback([&app] { show(manual(app)); });
}

void add_help(CLI::App& app) {
  CLI::App* command = app.add_subcommand("help", "what --help says, of all or of one subcommand");
  command->footer("Example:\n  attn help see");
  auto name = std::make_shared<std::string>();
  command->add_option("subcommand", *name, "one of the subcommands; none: the list of them");
  command->callback([=, &app] {
    if (name->empty()) show(app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
    else show(subcommand_named(app, *name).help(app.get_name()));
  });
}

}  // namespace cli
