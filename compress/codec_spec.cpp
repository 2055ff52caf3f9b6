// The text form of a CodecSpec: name[:parameter=value[,parameter=value...]].
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "compress/codecs.h"
#include "compress/parameters.h"
#include "compress/suggestions.h"

namespace gradwire::compress {
namespace {

/// Insertions, deletions, substitutions and swaps of neighbours that make b of a (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  std::vector<std::size_t> before = row;  // of i - 1
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::vector<std::size_t> next(b.size() + 1, i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      next[j + 1] = std::min({row[j] + (a[i] != b[j]), next[j] + 1, row[j + 1] + 1});
      const bool is_swapped = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
      if (is_swapped) next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
    }
    before = std::exchange(row, std::move(next));
  }
  return row[b.size()];
}

/// Whether a word may be what was meant: one typing error in a short word, one more for every four letters.
bool is_near(std::string_view given, std::string_view word) {
  if (given.empty()) return false;
  if (given.size() > 1 && word.starts_with(given)) return true;
  return edit_distance(given, word) <= 1 + (given.size() - 1) / 4;
}

Parameter parse_parameter(std::string_view codec, std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    throw std::invalid_argument(std::string(codec) + ": \"" + std::string(text) +
                                "\" is not parameter=value, as in 2bit:threshold=0.5,nonfinite=skip");
  }
  const std::string_view value = text.substr(equals + 1);
  double number = 0;
  if (parse_number(value, number)) return {std::string(text.substr(0, equals)), number};
  return {std::string(text.substr(0, equals)), std::string(value)};
}

}  // namespace

std::string nearest(std::string_view given, std::span<const std::string_view> valid) {
  const auto found =
      std::min_element(valid.begin(), valid.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(given, a) < edit_distance(given, b);
      });
  return found == valid.end() || !is_near(given, *found) ? std::string() : std::string(*found);
}

std::string did_you_mean(std::string_view given, std::span<const std::string_view> valid) {
  const std::string near = nearest(given, valid);
  return near.empty() ? near : "did you mean " + near + "? ";
}

std::string join(std::span<const std::string_view> words) {
  std::string joined;
  for (std::string_view word : words) joined += (joined.empty() ? "" : ", ") + std::string(word);
  return joined;
}

CodecSpec parse_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  CodecSpec spec{std::string(text.substr(0, colon)), {}};
  if (spec.name.empty()) {
    throw std::invalid_argument("codec \"" + std::string(text) +
                                "\" has no name, expected e.g. 2bit:threshold=0.5,nonfinite=skip");
  }
  if (colon == std::string_view::npos) return spec;
  for (std::string_view rest = text.substr(colon + 1);;) {
    const std::size_t comma = rest.find(',');
    spec.parameters.push_back(parse_parameter(spec.name, rest.substr(0, comma)));
    if (comma == std::string_view::npos) return spec;
    rest.remove_prefix(comma + 1);
  }
}

std::string canonical_spec(const CodecSpec& spec) {
  const CodecSpec full = make(spec)->spec();
  std::string text = full.name;
  char separator = ':';
  for (const Parameter& parameter : full.parameters) {
    text += separator + parameter.name + "=" + parameter_text(parameter.value);
    separator = ',';
  }
  return text;
}

}  // namespace gradwire::compress
