#include "compress/segmented.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "compress/payloads.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kHeadBytes = 8;
constexpr std::size_t kRowBytes = 8;

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }
constexpr std::size_t table_bytes(std::size_t segments) { return kHeadBytes + segments * kRowBytes; }

std::uint32_t load_u32(Payload payload, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, payload.data() + at, sizeof(value));
  return value;
}

/// How many segments the table has, once it is known to be there.
std::size_t segment_count(Payload payload) {
  const std::size_t most = payload.size() < kHeadBytes ? 0 : (payload.size() - kHeadBytes) / kRowBytes;
  const std::size_t count = payload.size() < kHeadBytes ? 0 : load_u32(payload, 0);
  if (count == 0 || count > most || load_u32(payload, 4) != 0) {
    throw DecodeError("segments: " + std::to_string(payload.size()) + " bytes do not hold a table of " +
                      std::to_string(count) + " segments");
  }
  return count;
}

}  // namespace

/// Puts segments behind each other.
class Segmented::Writer {
 public:
  Writer(std::span<std::byte> out, std::size_t segments) : out_(out), at_(table_bytes(segments)) {
    const auto count = static_cast<std::uint32_t>(segments);
    std::memset(out.data(), 0, kHeadBytes);
    std::memcpy(out.data(), &count, sizeof(count));
  }

  std::span<std::byte> room(std::size_t bytes) const { return out_.subspan(at_, bytes); }

  void add(std::uint32_t elements, const Encoded& encoded) {
    const std::uint32_t row[2] = {elements, static_cast<std::uint32_t>(encoded.bytes)};
    std::memcpy(out_.data() + table_bytes(segment_++), row, sizeof(row));
    std::memset(out_.data() + at_ + encoded.bytes, 0, padded(encoded.bytes) - encoded.bytes);
    at_ += padded(encoded.bytes);
    total_.nonfinite = total_.nonfinite || encoded.nonfinite;
  }

  Encoded finish() {
    total_.bytes = at_;
    return total_;
  }

 private:
  std::span<std::byte> out_;
  std::size_t at_;
  std::size_t segment_ = 0;
  Encoded total_;
};

/// Takes segments off payloads, all of which must have those that are expected.
class Segmented::Reader {
 public:
  Reader(std::span<const Payload> payloads, std::span<const std::uint32_t> expected)
      : payloads_(payloads), at_(payloads.size(), table_bytes(expected.size())), views_(payloads.size()) {
    for (std::size_t way = 0; way < payloads.size(); ++way) check(way, expected);
  }

  /// The payloads of the next segment, one per way.
  std::span<const Payload> next() {
    for (std::size_t way = 0; way < payloads_.size(); ++way) {
      const std::size_t bytes = load_u32(payloads_[way], table_bytes(segment_) + 4);
      views_[way] = payloads_[way].subspan(at_[way], bytes);
      at_[way] += padded(bytes);
    }
    ++segment_;
    return views_;
  }

 private:
  void check(std::size_t way, std::span<const std::uint32_t> expected) const {
    const Payload payload = payloads_[way];
    const auto refuse = [&](const std::string& what) {
      throw DecodeError("segments: " + payload_name(way, payloads_.size()) + " " + what);
    };
    if (const std::size_t count = segment_count(payload); count != expected.size())
      refuse("has " + std::to_string(count) + " segments, expected " + std::to_string(expected.size()));
    std::size_t end = table_bytes(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::uint32_t elements = load_u32(payload, table_bytes(i));
      if (elements != expected[i]) {
        refuse("has " + std::to_string(elements) + " elements in segment " + std::to_string(i) +
               ", expected " + std::to_string(expected[i]));
      }
      end += padded(load_u32(payload, table_bytes(i) + 4));
    }
    if (end != payload.size())
      refuse("has " + std::to_string(payload.size()) + " bytes, expected " + std::to_string(end));
  }

  std::span<const Payload> payloads_;
  std::vector<std::size_t> at_;
  std::vector<Payload> views_;
  std::size_t segment_ = 0;
};

Segmented::Segmented(const Codec& inner, std::vector<std::uint32_t> segment_elements)
    : inner_(inner),
      segment_elements_(std::move(segment_elements)),
      elements_(std::accumulate(segment_elements_.begin(), segment_elements_.end(), std::size_t{0})) {
  if (segment_elements_.empty() || std::ranges::find(segment_elements_, 0U) != segment_elements_.end())
    throw std::invalid_argument("segments: there must be one or more, each with elements");
}

std::vector<std::uint32_t> Segmented::segments_of(Payload payload, std::size_t elements) {
  std::vector<std::uint32_t> segments(segment_count(payload));
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    segments[i] = load_u32(payload, table_bytes(i));
    total += segments[i];
    if (segments[i] == 0) throw DecodeError("segments: segment " + std::to_string(i) + " has no element");
  }
  if (total != elements) {
    throw DecodeError("segments: they have " + std::to_string(total) + " elements, expected " +
                      std::to_string(elements));
  }
  return segments;
}

void Segmented::require_elements(std::size_t elements) const {
  if (elements == elements_) return;
  throw std::invalid_argument("segments: " + std::to_string(elements) + " elements given, expected " +
                              std::to_string(elements_));
}

std::size_t Segmented::unit_count() const noexcept {
  std::size_t units = 0;
  for (const std::uint32_t elements : segment_elements_) units += compress::unit_count(elements);
  return units;
}

std::size_t Segmented::max_encoded_size(std::size_t) const noexcept {
  std::size_t bytes = table_bytes(segment_elements_.size());
  for (const std::uint32_t elements : segment_elements_) bytes += padded(inner_.max_encoded_size(elements));
  return bytes;
}

Encoded Segmented::encode(std::span<const float> grad, std::span<float> residual,
                          std::span<const UnitScale> scales, std::span<std::byte> out,
                          const Position& position) const {
  require_elements(grad.size());
  Writer writer(out, segment_elements_.size());
  std::size_t at = 0, unit = 0;
  for (const std::uint32_t elements : segment_elements_) {
    const std::size_t units = compress::unit_count(elements);
    const Position place{position.key, position.rank, position.step, position.offset + unit * kUnitElements};
    writer.add(elements, inner_.encode(grad.subspan(at, elements),
                                       residual.empty() ? residual : residual.subspan(at, elements),
                                       scales.empty() ? scales : scales.subspan(unit, units),
                                       writer.room(inner_.max_encoded_size(elements)), place));
    at += elements;
    unit += units;
  }
  return writer.finish();
}

void Segmented::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  require_elements(out.size());
  Reader reader(payloads, segment_elements_);
  std::size_t at = 0;
  for (const std::uint32_t elements : segment_elements_) {
    inner_.decode_sum(reader.next(), out.subspan(at, elements));
    at += elements;
  }
}

void Segmented::validate(Payload payload, std::size_t elements) const {
  require_elements(elements);
  Reader reader({&payload, 1}, segment_elements_);
  for (const std::uint32_t segment : segment_elements_) inner_.validate(reader.next().front(), segment);
}

std::size_t Segmented::max_reply_size(std::size_t, std::size_t ways, ReplyKind kind) const noexcept {
  std::size_t bytes = table_bytes(segment_elements_.size());
  for (const std::uint32_t elements : segment_elements_)
    bytes += padded(inner_.max_reply_size(elements, ways, kind));
  return bytes;
}

Encoded Segmented::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                std::span<float> residual, std::span<std::byte> out) const {
  require_elements(elements);
  Reader reader(payloads, segment_elements_);
  Writer writer(out, segment_elements_.size());
  std::size_t at = 0;
  for (const std::uint32_t segment : segment_elements_) {
    const auto room = writer.room(inner_.max_reply_size(segment, payloads.size(), kind));
    writer.add(segment,
               inner_.encode_reply(reader.next(), segment, kind,
                                   residual.empty() ? residual : residual.subspan(at, segment), room));
    at += segment;
  }
  return writer.finish();
}

void Segmented::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                             std::span<UnitScale> next) const {
  require_elements(out.size());
  Reader reader({&reply, 1}, segment_elements_);
  std::size_t at = 0, unit = 0;
  for (const std::uint32_t elements : segment_elements_) {
    const std::size_t units = compress::unit_count(elements);
    inner_.decode_reply(reader.next().front(), ways, kind, out.subspan(at, elements),
                        next.empty() ? next : next.subspan(unit, units));
    at += elements;
    unit += units;
  }
}

}  // namespace gradwire::compress
