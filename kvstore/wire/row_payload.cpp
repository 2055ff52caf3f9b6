#include "kvstore/wire/row_payload.h"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>

#include "compress/payload/little_endian.h"

namespace gradwire::kvstore {
namespace {

using compress::DecodeError;

constexpr std::size_t kAtRows = 0, kAtRowElements = 8, kAtIdBytes = 12, kHeadBytes = 16;
constexpr std::size_t kMostBytesOfId = 10;  ///< 64 bits, 7 in each
constexpr std::size_t kMostIds = std::numeric_limits<std::uint32_t>::max() / kMostBytesOfId;
constexpr unsigned kMore = 0x80;

std::size_t write_number(std::uint64_t value, std::byte* out) {
  std::size_t length = 0;
  for (; value >= kMore; value >>= 7) out[length++] = static_cast<std::byte>((value & 0x7f) | kMore);
  out[length++] = static_cast<std::byte>(value);
  return length;
}

/// Reads numbers that have one form only, or an attacker could say one thing in many ways.
class NumberReader {
 public:
  explicit NumberReader(compress::Payload bytes) : bytes_(bytes) {}

  std::uint64_t next() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at_ == bytes_.size()) throw DecodeError("rows: an id ends behind the ids");
      const auto byte = std::to_integer<std::uint64_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) throw DecodeError("rows: an id has more than 64 bits");
      value |= (byte & 0x7f) << shift;
      if ((byte & kMore) != 0) continue;
      if (byte == 0 && shift > 0) throw DecodeError("rows: an id is written longer than it is");
      return value;
    }
  }
  std::size_t left() const { return bytes_.size() - at_; }

 private:
  compress::Payload bytes_;
  std::size_t at_ = 0;
};

std::vector<std::uint64_t> read_ids(compress::Payload bytes, std::uint64_t count, std::uint64_t rows) {
  if (count > bytes.size()) {  // before there is room for them
    throw DecodeError(
        fmt::format("rows: {} bytes of ids given, expected those of {} rows", bytes.size(), count));
  }
  std::vector<std::uint64_t> ids;
  ids.reserve(count);
  NumberReader reader(bytes);
  for (std::uint64_t least = 0; ids.size() < count; least = ids.back() + 1) {
    const std::uint64_t distance = reader.next();
    if (distance >= rows - least) {
      throw DecodeError(fmt::format("rows: id number {} is {} above {}, outside a table of {} rows",
                                    ids.size(), distance, least, rows));
    }
    ids.push_back(least + distance);
  }
  if (reader.left() > 0) {
    throw DecodeError(
        fmt::format("rows: {} bytes of ids are left after those of {} rows", reader.left(), count));
  }
  return ids;
}

}  // namespace

std::size_t max_row_head_bytes(std::size_t count) { return kHeadBytes + count * kMostBytesOfId; }

std::size_t write_row_head(const RowShape& shape, std::span<const std::uint64_t> ids,
                           std::span<std::byte> out) {
  if (ids.size() > kMostIds) {
    throw std::invalid_argument(
        fmt::format("rows: {} rows for one server in one call, expected at most {}", ids.size(), kMostIds));
  }
  std::byte* const begin = out.data() + kHeadBytes;
  std::byte* to = begin;
  std::uint64_t least = 0;
  for (const std::uint64_t id : ids) {
    to += write_number(id - least, to);
    least = id + 1;
  }
  compress::store(shape.rows, out.data() + kAtRows);
  compress::store(shape.row_elements, out.data() + kAtRowElements);
  compress::store(static_cast<std::uint32_t>(to - begin), out.data() + kAtIdBytes);
  return static_cast<std::size_t>(to - out.data());
}

OpenedRows open_rows(compress::Payload payload, std::uint64_t count) {
  if (payload.size() < kHeadBytes) {
    throw DecodeError(
        fmt::format("rows: {} bytes given, expected a head of {} at least", payload.size(), kHeadBytes));
  }
  OpenedRows opened;
  opened.shape = {compress::load<std::uint64_t>(payload.data() + kAtRows),
                  compress::load<std::uint32_t>(payload.data() + kAtRowElements)};
  if (opened.shape.rows == 0 || opened.shape.row_elements == 0) {
    throw DecodeError(fmt::format("rows: a table of {} rows of {} elements, expected at least one of each",
                                  opened.shape.rows, opened.shape.row_elements));
  }
  const auto id_bytes = compress::load<std::uint32_t>(payload.data() + kAtIdBytes);
  const auto rest = payload.subspan(kHeadBytes);
  if (id_bytes > rest.size()) {
    throw DecodeError(
        fmt::format("rows: {} bytes of ids announced, {} bytes follow the head", id_bytes, rest.size()));
  }
  opened.ids = read_ids(rest.first(id_bytes), count, opened.shape.rows);
  opened.body = rest.subspan(id_bytes);
  return opened;
}

void require_row_bytes(compress::Payload body, std::size_t count, std::size_t row_bytes) {
  const bool is_whole =
      count == 0 ? body.empty() : body.size() % count == 0 && body.size() / count == row_bytes;
  if (is_whole) return;
  throw DecodeError(
      fmt::format("rows: {} bytes given, expected {} rows of {} bytes", body.size(), count, row_bytes));
}

bool tells_ways(const compress::Codec& codec, compress::ReplyKind reply) {
  return codec.has_exact_reply() && reply != compress::ReplyKind::kFp32;
}

bool can_send_rows(const compress::Codec& codec) { return !codec.agrees_scales(); }

compress::Position row_position(std::uint64_t table, std::uint32_t rank, std::uint64_t step,
                                std::uint64_t row, std::uint32_t row_elements) {
  const std::uint64_t stride = compress::unit_count(row_elements) * compress::kUnitElements;
  return {static_cast<std::uint32_t>(table), rank, step, row * stride};
}

}  // namespace gradwire::kvstore
