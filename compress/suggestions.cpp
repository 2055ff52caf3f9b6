#include "compress/suggestions.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

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

}  // namespace gradwire::compress
