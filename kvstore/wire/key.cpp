#include "kvstore/wire/key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#include "compress/codec.h"
#include "fusion/placement.h"

namespace gradwire::kvstore {
namespace {

constexpr char kSeparator = '\t';

std::string describe(const KeySpec& key) {
  return fmt::format("'{}' {} ({})", key.name, key.dtype, fmt::join(key.shape, ", "));
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

/// First rank whose text differs from worker 0's.
std::optional<std::size_t> first_odd_rank(std::span<const std::string> texts) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) return rank;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t KeySpec::elements() const {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) / sizeof(float);
  if (std::ranges::find(shape, 0U) != shape.end()) return 0;
  std::uint64_t elements = 1;
  for (const std::uint64_t size : shape) {
    if (size > kMost / elements)
      throw std::invalid_argument(
          fmt::format("declare: {} has more than 2^61 elements; expected an array that fits in 2^63 bytes of "
                      "float32",
                      describe(*this)));
    elements *= size;
  }
  return elements;
}

std::string write_keys(std::span<const KeySpec> keys) {
  std::vector<std::string> rows;
  for (const KeySpec& key : keys) {
    if (key.name.empty() || key.name.find_first_of("\t\n") != std::string::npos) {
      throw std::invalid_argument(fmt::format(
          "declare: key name '{}' is empty or holds a tab or line break; name it otherwise", key.name));
    }
    rows.push_back(
        fmt::format("{}{}{}{}{}\n", key.name, kSeparator, key.dtype, kSeparator, fmt::join(key.shape, ",")));
  }
  std::sort(rows.begin(), rows.end());
  return fmt::format("{}", fmt::join(rows, ""));
}

std::vector<KeySpec> read_keys(const std::string& text) {
  std::vector<KeySpec> keys;
  for (const std::string& line : lines(text)) {
    std::istringstream stream(line);
    KeySpec key;
    std::string shape;
    std::getline(stream, key.name, kSeparator);
    std::getline(stream, key.dtype, kSeparator);
    std::getline(stream, shape);
    std::istringstream dimensions(shape);
    for (std::string d; std::getline(dimensions, d, ',');) key.shape.push_back(std::stoull(d));
    keys.push_back(std::move(key));
  }
  return keys;
}

void require_same_keys(std::span<const std::string> texts) {
  const auto odd = first_odd_rank(texts);
  if (!odd) return;
  const auto ours = read_keys(texts[0]);
  const auto theirs = read_keys(texts[*odd]);
  const auto by_name = [](const std::vector<KeySpec>& keys) {
    std::unordered_map<std::string_view, const KeySpec*> named;
    for (const KeySpec& key : keys) named.emplace(key.name, &key);
    return named;
  };
  const auto our_names = by_name(ours), their_names = by_name(theirs);
  const char* advice = "declare the same keys with the same shapes and dtypes on every rank";
  for (const KeySpec& key : ours) {
    const auto other = their_names.find(key.name);
    if (other == their_names.end()) {
      throw std::invalid_argument(
          fmt::format("keys differ: worker 0 has {}, worker {} does not; {}", describe(key), *odd, advice));
    }
    if (*other->second != key) {
      throw std::invalid_argument(fmt::format("keys differ: worker 0 has {}, worker {} has {}; {}",
                                              describe(key), *odd, describe(*other->second), advice));
    }
  }
  for (const KeySpec& key : theirs) {
    if (!our_names.contains(key.name)) {
      throw std::invalid_argument(
          fmt::format("keys differ: worker {} has {}, worker 0 does not; {}", *odd, describe(key), advice));
    }
  }
}

void require_same_settings(const std::string& what, std::span<const std::string> texts) {
  const auto odd = first_odd_rank(texts);
  if (!odd) return;
  const auto ours = lines(texts[0]);
  const auto theirs = lines(texts[*odd]);
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string mine = i < ours.size() ? ours[i] : "nothing";
    const std::string other = i < theirs.size() ? theirs[i] : "nothing";
    if (mine != other) {
      throw std::invalid_argument(fmt::format(
          "{} differ: worker 0 has {}, worker {} has {}; give every rank the same", what, mine, *odd, other));
    }
  }
}

std::vector<std::vector<Part>> place_keys(std::span<const KeySpec> keys, std::uint32_t servers,
                                          const fusion::OwnedCut& cut, std::uint64_t shard_bound_elements,
                                          std::vector<std::uint64_t>& load) {
  std::vector<fusion::TensorSize> sizes;
  for (const KeySpec& key : keys) sizes.push_back({key.elements(), sizeof(float)});
  const auto homes = fusion::place(sizes, servers, compress::kUnitElements, shard_bound_elements, load);
  std::vector<std::vector<Part>> placed(keys.size());
  for (std::size_t k = 0; k < keys.size(); ++k) {
    for (std::size_t s = 0; s < homes[k].size(); ++s) {
      const std::uint64_t begin = homes[k][s].begin;
      const std::uint64_t end = s + 1 < homes[k].size() ? homes[k][s + 1].begin : sizes[k].elements;
      if (end == begin) continue;
      for (const auto& piece : fusion::cut_owned(end - begin, compress::kUnitElements, cut)) {
        placed[k].push_back({homes[k][s].server, begin + piece.offset, piece.count});
      }
    }
  }
  return placed;
}

}  // namespace gradwire::kvstore
