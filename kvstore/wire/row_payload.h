// RowPayload: rows of a table as bytes: which table, which rows, and what each row holds (PROTOCOL.md,
// "Rows"). Ids ascend, so they travel as distances. Ids out of range, unsorted ids and wrong numbers cannot
// be written, and are refused by the reader.
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/codec.h"

namespace gradwire::kvstore {

/// A table, or the share of it that one server owns.
struct RowShape {
  std::uint64_t rows = 0;
  std::uint32_t row_elements = 0;
  bool operator==(const RowShape&) const = default;

  std::size_t row_bytes() const { return row_elements * sizeof(float); }
};

/// What a payload says, apart from the rows themselves.
struct OpenedRows {
  RowShape shape;
  std::vector<std::uint64_t> ids;  ///< ascending, each below shape.rows
  compress::Payload body;          ///< what follows the ids; lives as the payload does
};

/// Largest head of `count` rows: what stands before the rows.
std::size_t max_row_head_bytes(std::size_t count);

/// Writes the head and returns its length. Requires ascending ids below shape.rows, and out of
/// max_row_head_bytes(ids.size()) bytes. Throws std::invalid_argument for more ids than a payload may have.
std::size_t write_row_head(const RowShape& shape, std::span<const std::uint64_t> ids,
                           std::span<std::byte> out);

/// Reads a payload of which its frame says that it holds `count` rows. Accepts what write_row_head() writes
/// and nothing else. Throws compress::DecodeError.
OpenedRows open_rows(compress::Payload payload, std::uint64_t count);

/// The index-th of rows that have row_bytes bytes each. Requires that the body has it.
inline compress::Payload row_at(compress::Payload body, std::size_t index, std::size_t row_bytes) {
  return body.subspan(index * row_bytes, row_bytes);
}

/// Throws compress::DecodeError unless the body is `count` rows of row_bytes bytes.
void require_row_bytes(compress::Payload body, std::size_t count, std::size_t row_bytes);

/// True where the answer to a row is decoded by how many ranks sent it: each row of the reply then says so,
/// in two bytes, before all rows.
bool tells_ways(const compress::Codec& codec, compress::ReplyKind reply);

/// Whether rows can travel by a codec. One that agrees scales from round to round has no form for rows, which
/// come and go.
bool can_send_rows(const compress::Codec& codec);

/// Where a codec that draws random numbers is: each row fills codec units of its own.
compress::Position row_position(std::uint64_t table, std::uint32_t rank, std::uint64_t step,
                                std::uint64_t row, std::uint32_t row_elements);

}  // namespace gradwire::kvstore
