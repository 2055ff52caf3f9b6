#include "kvstore/wire/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace gradwire::kvstore {
namespace {

void require_in_table(std::span<const std::int64_t> ids, const RowShape& table) {
  const auto outside = std::ranges::find_if(
      ids, [&](std::int64_t id) { return id < 0 || static_cast<std::uint64_t>(id) >= table.rows; });
  if (outside == ids.end()) return;
  throw std::invalid_argument(
      fmt::format("rows: row_ids[{}] is {}, outside a table of {} rows; expected 0 to {}",
                  outside - ids.begin(), *outside, table.rows, table.rows - 1));
}

/// Where several tables are as large as can be said, their sum need not be.
void add_load(std::uint64_t& load, std::uint64_t bytes) {
  load += std::min(bytes, std::numeric_limits<std::uint64_t>::max() - load);
}

bool ascend(std::span<const std::int64_t> ids) {
  return std::ranges::adjacent_find(ids, std::greater_equal()) == ids.end();
}

}  // namespace

RowShape row_shape(const KeySpec& spec) {
  const std::string who = fmt::format("declare: table '{}'", spec.name);
  if (spec.shape.empty() || spec.elements() == 0)
    throw std::invalid_argument(who + " has no element; a table has rows, and rows have elements");
  const std::uint64_t row_elements = spec.elements() / spec.shape.front();
  if (row_elements > std::numeric_limits<std::uint32_t>::max() / sizeof(float)) {
    throw std::invalid_argument(
        fmt::format("{} has rows of {} elements, expected fewer than 2^30", who, row_elements));
  }
  return {spec.shape.front(), static_cast<std::uint32_t>(row_elements)};
}

Rows sum_duplicates(std::span<const std::int64_t> ids, std::span<const float> values, const RowShape& table) {
  const std::size_t width = table.row_elements;
  if (values.size() != ids.size() * width) {
    throw std::invalid_argument(fmt::format("rows: {} values given, expected {} row_ids times {} elements",
                                            values.size(), ids.size(), width));
  }
  require_in_table(ids, table);
  if (ascend(ids)) return {{ids.begin(), ids.end()}, {values.begin(), values.end()}};
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ids[i]; });
  Rows rows;
  for (const std::size_t i : order) {
    const auto row = values.subspan(i * width, width);
    const auto id = static_cast<std::uint64_t>(ids[i]);
    if (rows.ids.empty() || rows.ids.back() != id) {
      rows.ids.push_back(id);
      rows.values.insert(rows.values.end(), row.begin(), row.end());
      continue;
    }
    float* const sum = rows.values.data() + rows.values.size() - width;
    for (std::size_t e = 0; e < width; ++e) sum[e] += row[e];
  }
  return rows;
}

std::vector<std::uint64_t> distinct_ids(std::span<const std::int64_t> ids, const RowShape& table) {
  require_in_table(ids, table);
  std::vector<std::uint64_t> distinct(ids.begin(), ids.end());
  std::ranges::sort(distinct);
  const auto repeated = std::ranges::unique(distinct);
  distinct.erase(repeated.begin(), repeated.end());
  return distinct;
}

RowHomes place_rows(const RowShape& table, std::uint64_t shard_bound_elements,
                    std::span<std::uint64_t> load) {
  RowHomes homes;
  const bool is_spread = table.rows * table.row_elements >= shard_bound_elements;
  const std::size_t shares = is_spread ? std::min<std::uint64_t>(load.size(), table.rows) : 1;
  std::vector<std::uint32_t> lightest(load.size());
  std::iota(lightest.begin(), lightest.end(), 0U);
  std::ranges::stable_sort(lightest, {}, [&](std::uint32_t server) { return load[server]; });
  homes.servers.assign(lightest.begin(), lightest.begin() + static_cast<std::ptrdiff_t>(shares));
  for (std::size_t owner = 0; owner < shares; ++owner)
    add_load(load[homes.servers[owner]], homes.share(table, owner).rows * table.row_bytes());
  return homes;
}

void require_room(const RowMessage& message, const RowHomes& homes, std::span<const std::uint64_t> ids,
                  std::span<const std::uint64_t> more) {
  std::vector<std::uint64_t> counts(homes.servers.size());
  for (const auto some : {ids, more}) {
    for (const std::uint64_t id : some) ++counts[homes.owner(id)];
  }
  const std::uint64_t most = *std::ranges::max_element(counts);
  if (most == 0 || most * message.row_bytes + max_row_head_bytes(most) <= message.most_bytes) return;
  throw std::invalid_argument(fmt::format(
      "{}: {} rows of {} bytes of table '{}' for one of {} servers are more than a message of {} bytes "
      "holds; give fewer rows at a time, or use more servers",
      message.verb, most, message.row_bytes, message.table, counts.size(), message.most_bytes));
}

}  // namespace gradwire::kvstore
