#include "kvstore/rows/row_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "compress/codec.h"
#include "kvstore/aggregate/partition_state.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/state_bytes.h"

namespace gradwire::kvstore {
namespace {

/// Bytes before the rows: next step, the optimizer's steps, the table's rows (u64 each); elements of a row,
/// whether there are values, kinds of moments, zero (u32 each); rows with a value, a residual, moments (u64).
constexpr std::size_t kHeadBytes = 64;

std::size_t bytes_of(const Rows& rows) {
  return rows.ids.size() * sizeof(std::uint64_t) + rows.values.size() * sizeof(float);
}

Rows take_rows(StateReader& from, std::uint64_t count, std::uint64_t elements, std::uint64_t end) {
  Rows rows;
  rows.ids = from.array<std::uint64_t>(count);
  rows.values = from.array<float>(count * elements);
  const bool ascends = std::ranges::adjacent_find(rows.ids, std::greater_equal()) == rows.ids.end();
  if (!ascends || (count > 0 && rows.ids.back() >= end))
    throw compress::DecodeError(fmt::format("row state: ids do not ascend below {}", end));
  return rows;
}

}  // namespace

transport::Buffer encode_state(const RowState& state, const RowShape& shape) {
  StateWriter to(kHeadBytes + bytes_of(state.values) + bytes_of(state.residuals) + bytes_of(state.moments));
  const std::size_t moments = state.moments.ids.size() * shape.row_elements;
  to.put(state.next_step).put(state.optimizer_steps).put(shape.rows).put(shape.row_elements);
  to.put<std::uint32_t>(state.has_values ? 1 : 0);
  to.put(moments == 0 ? 0U : static_cast<std::uint32_t>(state.moments.values.size() / moments));
  to.put<std::uint32_t>(0);
  const std::array<const Rows*, 3> kinds = {&state.values, &state.residuals, &state.moments};
  for (const Rows* rows : kinds) to.put<std::uint64_t>(rows->ids.size());
  for (const Rows* rows : kinds) to.put(rows->ids).put(rows->values);
  return std::move(to).buffer();
}

RowShape shape_of_state(std::span<const std::byte> bytes) {
  StateReader from("row state", bytes, kHeadBytes);
  from.array<std::uint64_t>(2);  // steps
  RowShape shape;
  shape.rows = from.get<std::uint64_t>();
  shape.row_elements = from.get<std::uint32_t>();
  if (shape.rows == 0 || shape.row_elements == 0) {
    throw compress::DecodeError(
        fmt::format("row state: {} rows of {} elements given, expected at least one of each", shape.rows,
                    shape.row_elements));
  }
  return shape;
}

RowState decode_row_state(std::span<const std::byte> bytes, const RowShape& shape) {
  // First, because the width of a row sizes all that follows, and a row has at least one element.
  if (const RowShape given = shape_of_state(bytes); given != shape) {
    throw compress::DecodeError(fmt::format("row state: {} rows of {} elements given, expected {} of {}",
                                            given.rows, given.row_elements, shape.rows, shape.row_elements));
  }
  StateReader from("row state", bytes, kHeadBytes);
  RowState state;
  state.next_step = from.get<std::uint64_t>();
  state.optimizer_steps = from.get<std::uint64_t>();
  from.get<std::uint64_t>();  // of the shape, as its width
  from.get<std::uint32_t>();
  const auto has_values = from.get<std::uint32_t>();
  const auto kinds = from.get<std::uint32_t>();
  const auto zero = from.get<std::uint32_t>();
  state.has_values = has_values == 1;
  std::array<std::uint64_t, 3> counts{};
  for (std::uint64_t& rows : counts) rows = from.get<std::uint64_t>();
  const std::uint64_t width = shape.row_elements;
  const std::array<std::uint64_t, 3> elements = {width, width, width * kinds};
  // All counts are compared with the bytes that are there before any array is made of them.
  std::uint64_t left = from.left();
  // A table that holds sums has no values, and moments without kinds, or kinds without moments, cannot be.
  bool is_sound = state.next_step <= kMaxSteps && state.optimizer_steps <= kMaxSteps && has_values <= 1 &&
                  kinds <= kMaxMoments && zero == 0 && (state.has_values || counts[0] == 0) &&
                  (kinds == 0) == (counts[2] == 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::uint64_t row_bytes = sizeof(std::uint64_t) + elements[i] * sizeof(float);
    // A quotient, because the product of two numbers of a peer could overflow.
    is_sound = is_sound && counts[i] <= left / row_bytes;
    if (is_sound) left -= counts[i] * row_bytes;
  }
  if (!is_sound || left != 0) {
    throw compress::DecodeError(
        fmt::format("row state: {} bytes do not hold {} values, {} residuals and {} rows of {} kinds of "
                    "moments at step {}",
                    bytes.size(), counts[0], counts[1], counts[2], kinds, state.next_step));
  }
  state.values = take_rows(from, counts[0], elements[0], shape.rows);
  state.residuals = take_rows(from, counts[1], elements[1], shape.rows);
  state.moments = take_rows(from, counts[2], elements[2], shape.rows);
  return state;
}

}  // namespace gradwire::kvstore
