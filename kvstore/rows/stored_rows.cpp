#include "kvstore/rows/stored_rows.h"

#include <algorithm>

namespace gradwire::kvstore {
namespace {

constexpr std::size_t kBlockElements = 16'384;

}  // namespace

StoredRows::StoredRows(std::size_t row_elements)
    : row_elements_(row_elements), rows_in_block_(std::max<std::size_t>(1, kBlockElements / row_elements)) {}

std::span<float> StoredRows::row(std::size_t place) const {
  return {blocks_[place / rows_in_block_].get() + place % rows_in_block_ * row_elements_, row_elements_};
}

std::span<float> StoredRows::at(std::uint64_t id) {
  if (const auto found = places_.find(id); found != places_.end()) return row(found->second);
  const std::size_t place = places_.size();
  // A new block, and not a larger one: spans of earlier rows stay valid.
  if (place == blocks_.size() * rows_in_block_)
    blocks_.push_back(std::make_unique<float[]>(rows_in_block_ * row_elements_));
  places_.emplace(id, place);
  return row(place);
}

std::span<const float> StoredRows::find(std::uint64_t id) const {
  const auto found = places_.find(id);
  return found == places_.end() ? std::span<const float>() : row(found->second);
}

std::vector<std::uint64_t> StoredRows::ids() const {
  std::vector<std::uint64_t> ids;
  ids.reserve(places_.size());
  for (const auto& [id, place] : places_) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

void StoredRows::clear() {
  places_.clear();
  blocks_.clear();
}

}  // namespace gradwire::kvstore
