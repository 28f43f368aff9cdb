#include "benchmarks/console/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "benchmarks/console/versions.hpp"
#include "core/strict_json.hpp"

namespace tinyllama::console {
namespace {

// Of CLI11, which quotes what was given, whatever its length.
constexpr size_t kLongestMessage = 2000;

// How many letters have to be put in, left out or replaced (Levenshtein's distance).
size_t letters_between(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < other.size(); ++j) {
      const size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// The name that somebody who wrote this is likely to have meant; empty where none is close.
std::string closest(const std::string& written, const std::vector<std::string>& names) {
  const auto found = std::ranges::min_element(
      names, {}, [&](const std::string& name) { return letters_between(written, name); });
  return found != names.end() && letters_between(written, *found) <= 2 ? *found : "";
}

// Help of at most 100 columns.
struct WrappedHelp : CLI::Formatter {
  std::string make_option_desc(const CLI::Option* option) const override {
    const size_t width = 100 - get_column_width();
    std::string text;
    size_t line = 0;
    for (const std::string& word :
         CLI::detail::split(CLI::Formatter::make_option_desc(option), ' ')) {
      const bool fits = line + 1 + word.size() <= width;
      text += text.empty() ? "" : fits ? " " : "\n";
      line = (fits && !text.empty() ? line + 1 : 0) + word.size();
      text += word;
    }
    return text;
  }
};

}  // namespace

bool parse_command_line(CLI::App& app, std::vector<std::string> arguments,
                        const std::string& also_known) {
  app.formatter(std::make_shared<WrappedHelp>());
  app.set_version_flag("--version", version_text(app.get_name()), "what was built, and with what");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 reads a vector from its end
  try {
    app.parse(arguments);
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << "\n";
    return false;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
    const std::string unknown = app.remaining().front();
    const std::string known = closest(unknown.substr(0, unknown.find('=')), names);
    throw std::invalid_argument(fmt::format(
        "'{}': is no option; {}", printable(unknown),
        known.empty() ? fmt::format("known options: {}{}", fmt::join(names, ", "), also_known)
                      : fmt::format("did you mean {}?", known)));
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(printable(error.what(), kLongestMessage));
  }
  return true;
}

CLI::Validator number(const std::string& rule, const std::function<bool(double)>& allowed) {
  return CLI::Validator(
      [rule, allowed](std::string& text) -> std::string {
        char* rest = nullptr;
        const double value = std::strtod(text.c_str(), &rest);
        if (!text.empty() && *rest == '\0' && allowed(value)) return {};
        return fmt::format("'{}' must be {}", text, rule);
      },
      "");
}

CLI::Validator number_from(double lowest, double highest, const std::string& unit) {
  return number(fmt::format("from {:g} to {:g}{}", lowest, highest, unit),
                [=](double value) { return value >= lowest && value <= highest; });
}

CLI::Option* add_dtype(CLI::App& app, Dtype& dtype, const std::string& help) {
  std::vector<std::pair<std::string, Dtype>> choices;
  for (const Dtype known : benchmark_dtypes()) choices.emplace_back(to_string(known), known);
  return add_choice(app, "--dtype", dtype, choices, help);
}

CLI::Option* add_plugins(CLI::App& app, std::vector<Plugin>& plugins) {
  const auto take = [&plugins](const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      try {
        plugins.push_back(load_plugin(file));
      } catch (const std::invalid_argument& error) {
        throw CLI::ValidationError("--plugin", error.what());
      }
    }
  };
  return app
      .add_option_function<std::vector<std::string>>(
          "--plugin", take,
          "library of operators that fill slots of the model, built as for torch.ops.load_library; "
          "its code is run (docs/plugins.md)")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

CLI::Option* add_variant(CLI::App& app, Variant& variant, const std::vector<Plugin>& plugins) {
  const auto take = [&variant, &plugins](const std::string& text) {
    try {
      variant = Variant::parse(with_operators_of(plugins, text));
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError("--variant", error.what());
    }
  };
  return app
      .add_option_function<std::string>(
          "--variant", take,
          "baseline, fused, optimized, or switches joined by '+', and operators of --plugin (as in "
          "tiny_llama_bench)")
      ->default_str(variant.name());
}

}  // namespace tinyllama::console
