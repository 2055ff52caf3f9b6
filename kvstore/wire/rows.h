// Rows that a worker pushes and gets, with ascending ids, each once; and the servers on which a table's rows
// live.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvstore/wire/key.h"
#include "kvstore/wire/row_payload.h"

namespace gradwire::kvstore {

struct Rows {
  std::vector<std::uint64_t> ids;  ///< ascending, each once
  std::vector<float> values;       ///< one row after the other

  std::span<const float> row(std::size_t index, std::size_t row_elements) const {
    return std::span(values).subspan(index * row_elements, row_elements);
  }
  bool operator==(const Rows&) const = default;
};

/// Of a table that was declared so: the first dimension is rows. Throws std::invalid_argument for one without
/// elements, or with rows that are too long.
RowShape row_shape(const KeySpec& table);

/// Sorts rows by id and sums those of one id, in the order given. Throws std::invalid_argument naming the
/// first id outside the table, or values that are not ids.size() rows.
Rows sum_duplicates(std::span<const std::int64_t> ids, std::span<const float> values, const RowShape& table);

/// Ids ascending, each once. Throws as sum_duplicates().
std::vector<std::uint64_t> distinct_ids(std::span<const std::int64_t> ids, const RowShape& table);

/// The servers of a table: row r lives at servers[r % k], k of them, as its row r / k. Neighbours are often
/// used alike (words by their frequency), so runs of rows would load servers unevenly.
struct RowHomes {
  std::vector<std::uint32_t> servers;

  std::size_t owner(std::uint64_t id) const { return id % servers.size(); }
  std::uint64_t local(std::uint64_t id) const { return id / servers.size(); }
  std::uint64_t global(std::uint64_t local, std::size_t owner) const {
    return local * servers.size() + owner;
  }
  RowShape share(const RowShape& table, std::size_t owner) const {
    const std::uint64_t k = servers.size();
    return {table.rows / k + (owner < table.rows % k ? 1 : 0), table.row_elements};
  }
};

/// Spreads a table of at least shard_bound_elements over all servers, and gives a smaller one whole to the
/// server with the fewest bytes; load carries the bytes placed so far, and is updated. The same on every
/// rank.
RowHomes place_rows(const RowShape& table, std::uint64_t shard_bound_elements, std::span<std::uint64_t> load);

/// Rows that a call sends or asks for.
struct RowMessage {
  const char* verb;
  const std::string& table;
  std::size_t row_bytes = 0;
  std::uint64_t most_bytes = 0;  ///< that a message may hold
};
/// Throws std::invalid_argument where one server's message would hold more. more: ids of rows besides.
void require_room(const RowMessage& message, const RowHomes& homes, std::span<const std::uint64_t> ids,
                  std::span<const std::uint64_t> more = {});

}  // namespace gradwire::kvstore
