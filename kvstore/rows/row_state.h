// RowState is what a server or a worker keeps of rows of a table between rounds. As bytes, workers fetch it
// and return it for a checkpoint, and a checkpoint's files hold it (wire/PROTOCOL.md, "States").
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvstore/wire/row_payload.h"
#include "kvstore/wire/rows.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

struct RowState {
  std::uint64_t next_step = 0;        ///< rounds complete; of a worker: begun
  std::uint64_t optimizer_steps = 0;  ///< rounds that the optimizer has made weights of
  bool has_values = false;            ///< first values or weights; else a round's sums have taken their place
  Rows values;                        ///< rows that are none of these are zero
  Rows residuals;                     ///< what a lossy codec has not sent yet
  Rows moments;                       ///< the optimizer's: of each row one kind after the other
  bool operator==(const RowState&) const = default;
};

/// Writes a state. Requires that each of its rows is below shape.rows, ids ascending, and as long as the
/// table's (moments: a multiple, one for all).
transport::Buffer encode_state(const RowState& state, const RowShape& shape);

/// Reads the state of a table of that shape. Throws compress::DecodeError for any other bytes, before
/// anything of their size is made.
RowState decode_row_state(std::span<const std::byte> bytes, const RowShape& shape);

/// The shape of the table that a state is of, from its first bytes. Throws likewise.
RowShape shape_of_state(std::span<const std::byte> bytes);

}  // namespace gradwire::kvstore
