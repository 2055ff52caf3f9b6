#include "compress/payload/parameters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "compress/suggestions.h"

namespace gradwire::compress {
namespace {

bool positive_and_finite(float value) { return value > 0 && std::isfinite(value); }

/// The number that was given, or `otherwise` for a word that is none.
double number_or(const ParameterValue& given, double otherwise) {
  const auto* const word = std::get_if<std::string>(&given);
  if (word == nullptr) return std::get<double>(given);
  double number = otherwise;
  return parse_number(*word, number) ? number : otherwise;
}

std::string powers_of_two(std::size_t least, std::size_t most) {
  return "a power of two from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

const ParameterValue* find_parameter(const CodecSpec& spec, std::string_view name) noexcept {
  const auto found = std::find_if(spec.parameters.begin(), spec.parameters.end(),
                                  [&](const Parameter& parameter) { return parameter.name == name; });
  return found == spec.parameters.end() ? nullptr : &found->value;
}

bool parse_number(std::string_view text, double& value) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // from_chars stops at the first other character: "1.5x" must be no number.
  return error == std::errc() && end == text.data() + text.size();
}

std::string parameter_text(const ParameterValue& value) {
  if (const auto* word = std::get_if<std::string>(&value)) return *word;
  const double number = std::get<double>(value);
  std::array<char, 64> text;
  // A codec computes in float32, so its parameters are floats and print as such; anything else prints in
  // full.
  const auto narrow = static_cast<float>(number);
  const auto end = static_cast<double>(narrow) == number
                       ? std::to_chars(text.data(), text.data() + text.size(), narrow).ptr
                       : std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

float positive_float(const CodecSpec& spec, std::string_view name, float default_value,
                     std::string_view others) {
  const ParameterValue* const given = find_parameter(spec, name);
  if (given == nullptr) return default_value;
  // Narrowed before it is checked: what float32 makes 0 or infinite is refused.
  const auto value = static_cast<float>(number_or(*given, 0));
  if (!positive_and_finite(value)) {
    throw std::invalid_argument(spec.name + ": " + std::string(name) + "=" + parameter_text(*given) +
                                " is not a number above 0 that float32 can hold; give one" +
                                std::string(others) + ", e.g. " + std::string(name) + "=" +
                                parameter_text(static_cast<double>(default_value)));
  }
  return value;
}

std::size_t power_of_two(const CodecSpec& spec, std::string_view name, std::size_t default_value,
                         std::size_t least, std::size_t most) {
  const ParameterValue* const given = find_parameter(spec, name);
  if (given == nullptr) return default_value;
  const double number = number_or(*given, 0);
  for (std::size_t value = least; value <= most; value *= 2) {
    // Compared and not converted: a number that no integer holds must not be cast.
    if (static_cast<double>(value) == number) return value;
  }
  throw std::invalid_argument(spec.name + ": " + std::string(name) + "=" + parameter_text(*given) +
                              " is not " + powers_of_two(least, most) + "; give one, e.g. " +
                              std::string(name) + "=" + std::to_string(default_value));
}

std::uint32_t seed_of(const CodecSpec& spec) {
  const ParameterValue* const given = find_parameter(spec, "seed");
  if (given == nullptr) return 0;
  const double number = number_or(*given, -1);
  // A NaN fails the first comparison.
  if (number >= 0 && number <= std::numeric_limits<std::uint32_t>::max() && std::floor(number) == number) {
    return static_cast<std::uint32_t>(number);
  }
  throw std::invalid_argument(spec.name + ": seed=" + parameter_text(*given) +
                              " is not a whole number from 0 to 4294967295; give one, e.g. seed=1");
}

std::size_t word_index(const CodecSpec& spec, std::string_view name,
                       std::initializer_list<std::string_view> valid) {
  const ParameterValue* const given = find_parameter(spec, name);
  if (given == nullptr) return 0;
  const std::string text = parameter_text(*given);
  const auto found = std::find(valid.begin(), valid.end(), text);
  if (found != valid.end()) return static_cast<std::size_t>(found - valid.begin());
  const std::vector<std::string_view> words(valid);
  throw std::invalid_argument(spec.name + ": " + std::string(name) + "=" + text + " is unknown; " +
                              did_you_mean(text, words) + "valid: " + join(words));
}

float positive_float_from_wire(std::string_view codec, std::string_view name, std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  if (!positive_and_finite(value)) {
    throw DecodeError(std::string(codec) + ": the frame's " + std::string(name) + " is " +
                      parameter_text(static_cast<double>(value)) + ", expected a finite number above 0");
  }
  return value;
}

std::size_t power_of_two_from_wire(std::string_view codec, std::string_view name, std::uint32_t value,
                                   std::size_t least, std::size_t most) {
  if (std::has_single_bit(value) && value >= least && value <= most) return value;
  throw DecodeError(std::string(codec) + ": the frame's " + std::string(name) + " is " +
                    std::to_string(value) + ", expected " + powers_of_two(least, most));
}

void expect_unused_from_wire(std::string_view codec, const WireParameters& parameters, std::size_t first) {
  for (std::size_t i = first; i < parameters.size(); ++i) {
    // A later version may use it, and means something that this one would ignore.
    if (parameters[i] == 0) continue;
    throw DecodeError(std::string(codec) + ": the frame's parameter " + std::to_string(i) + " is " +
                      std::to_string(parameters[i]) + ", expected 0");
  }
}

}  // namespace gradwire::compress
