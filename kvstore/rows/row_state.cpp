#include "kvstore/rows/row_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "kvstore/aggregate/partition_state.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using compress::load;
using compress::store;

/// Bytes before the rows: next step, the optimizer's steps, the table's rows (u64 each); elements of a row,
/// whether there are values, kinds of moments, zero (u32 each); rows with a value, a residual, moments (u64).
constexpr std::size_t kHeadBytes = 64;

std::byte* put(const Rows& rows, std::byte* to) {
  to = std::ranges::copy(std::as_bytes(std::span(rows.ids)), to).out;
  return std::ranges::copy(std::as_bytes(std::span(rows.values)), to).out;
}

std::size_t bytes_of(const Rows& rows) {
  return rows.ids.size() * sizeof(std::uint64_t) + rows.values.size() * sizeof(float);
}

template <typename T>
void take(const std::byte*& from, std::vector<T>& values) {
  const auto into = std::as_writable_bytes(std::span(values));
  std::copy_n(from, into.size(), into.data());
  from += into.size();
}

Rows take_rows(const std::byte*& from, std::uint64_t count, std::uint64_t elements, std::uint64_t end) {
  Rows rows{std::vector<std::uint64_t>(count), std::vector<float>(count * elements)};
  take(from, rows.ids);
  take(from, rows.values);
  const bool ascends = std::ranges::adjacent_find(rows.ids, std::greater_equal()) == rows.ids.end();
  if (!ascends || (count > 0 && rows.ids.back() >= end))
    throw compress::DecodeError(fmt::format("row state: ids do not ascend below {}", end));
  return rows;
}

}  // namespace

transport::Buffer encode_state(const RowState& state, const RowShape& shape) {
  auto buffer = transport::Buffer::allocate(kHeadBytes + bytes_of(state.values) + bytes_of(state.residuals) +
                                            bytes_of(state.moments));
  std::byte* to = buffer.bytes().data();
  const std::size_t moments = state.moments.ids.size() * shape.row_elements;
  store(state.next_step, to);
  store(state.optimizer_steps, to + 8);
  store(shape.rows, to + 16);
  store(shape.row_elements, to + 24);
  store<std::uint32_t>(state.has_values ? 1 : 0, to + 28);
  store(moments == 0 ? 0U : static_cast<std::uint32_t>(state.moments.values.size() / moments), to + 32);
  store<std::uint32_t>(0, to + 36);
  store<std::uint64_t>(state.values.ids.size(), to + 40);
  store<std::uint64_t>(state.residuals.ids.size(), to + 48);
  store<std::uint64_t>(state.moments.ids.size(), to + 56);
  to += kHeadBytes;
  for (const Rows* rows : {&state.values, &state.residuals, &state.moments}) to = put(*rows, to);
  return buffer;
}

RowShape shape_of_state(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes) {
    throw compress::DecodeError(
        fmt::format("row state: {} bytes given, expected at least {}", bytes.size(), kHeadBytes));
  }
  const RowShape shape{load<std::uint64_t>(bytes.data() + 16), load<std::uint32_t>(bytes.data() + 24)};
  if (shape.rows == 0 || shape.row_elements == 0) {
    throw compress::DecodeError(
        fmt::format("row state: {} rows of {} elements given, expected at least one of each", shape.rows,
                    shape.row_elements));
  }
  return shape;
}

RowState decode_row_state(std::span<const std::byte> bytes, const RowShape& shape) {
  if (const RowShape given = shape_of_state(bytes); given != shape) {
    throw compress::DecodeError(fmt::format("row state: {} rows of {} elements given, expected {} of {}",
                                            given.rows, given.row_elements, shape.rows, shape.row_elements));
  }
  const std::byte* at = bytes.data();
  RowState state;
  state.next_step = load<std::uint64_t>(at);
  state.optimizer_steps = load<std::uint64_t>(at + 8);
  const auto has_values = load<std::uint32_t>(at + 28);
  const auto kinds = load<std::uint32_t>(at + 32);
  const auto zero = load<std::uint32_t>(at + 36);
  state.has_values = has_values == 1;
  const std::array<std::uint64_t, 3> counts = {load<std::uint64_t>(at + 40), load<std::uint64_t>(at + 48),
                                               load<std::uint64_t>(at + 56)};
  const std::uint64_t width = shape.row_elements;
  const std::array<std::uint64_t, 3> elements = {width, width, width * kinds};
  std::uint64_t left = bytes.size() - kHeadBytes;
  bool is_sound = state.next_step <= kMaxSteps && state.optimizer_steps <= kMaxSteps && has_values <= 1 &&
                  kinds <= kMaxMoments && zero == 0 && (state.has_values || counts[0] == 0) &&
                  (kinds == 0) == (counts[2] == 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::uint64_t row_bytes = sizeof(std::uint64_t) + elements[i] * sizeof(float);
    is_sound = is_sound && counts[i] <= left / row_bytes;
    if (is_sound) left -= counts[i] * row_bytes;
  }
  if (!is_sound || left != 0) {
    throw compress::DecodeError(
        fmt::format("row state: {} bytes do not hold {} values, {} residuals and {} rows of {} kinds of "
                    "moments at step {}",
                    bytes.size(), counts[0], counts[1], counts[2], kinds, state.next_step));
  }
  at += kHeadBytes;
  state.values = take_rows(at, counts[0], elements[0], shape.rows);
  state.residuals = take_rows(at, counts[1], elements[1], shape.rows);
  state.moments = take_rows(at, counts[2], elements[2], shape.rows);
  return state;
}

}  // namespace gradwire::kvstore
