#include "compress/payload/segmented.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "compress/payload/payloads.h"

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
  // How many rows the bytes can hold, by division: a hostile count cannot overflow, and takes no memory.
  const std::size_t most = payload.size() < kHeadBytes ? 0 : (payload.size() - kHeadBytes) / kRowBytes;
  const std::size_t count = payload.size() < kHeadBytes ? 0 : load_u32(payload, 0);
  if (count == 0 || count > most || load_u32(payload, 4) != 0) {
    throw DecodeError("segments: " + std::to_string(payload.size()) + " bytes do not hold a table of " +
                      std::to_string(count) + " segments");
  }
  return count;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what, std::size_t has,
                         std::size_t expected) {
  throw DecodeError("segments: " + name + " has " + std::to_string(has) + " " + what + ", expected " +
                    std::to_string(expected));
}

/// Checks that a payload, or head, begins with a table of the segments that are expected.
void check_table(Payload payload, const std::string& name, std::span<const std::uint32_t> expected) {
  if (const std::size_t count = segment_count(payload); count != expected.size())
    refuse(name, "segments", count, expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::uint32_t elements = load_u32(payload, table_bytes(i));
    if (elements != expected[i])
      refuse(name, "elements in segment " + std::to_string(i), elements, expected[i]);
  }
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
    // Padding is sent and checksummed, so it must not be what the memory held before.
    std::memset(out_.data() + at_ + encoded.bytes, 0, padded(encoded.bytes) - encoded.bytes);
    // Each segment begins at a multiple of 8, as codecs and their device twins expect of a payload.
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
    // All payloads before any is summed: a damaged one must leave no half of a sum behind.
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
    const std::string name = payload_name(way, payloads_.size());
    check_table(payload, name, expected);
    std::size_t end = table_bytes(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) end += padded(load_u32(payload, table_bytes(i) + 4));
    // With this, next() cannot leave the payload, and there is one form of each run.
    if (end != payload.size()) refuse(name, "bytes", payload.size(), end);
  }

  std::span<const Payload> payloads_;
  std::vector<std::size_t> at_;
  std::vector<Payload> views_;
  std::size_t segment_ = 0;
};

/// Takes segments off a round that a library has summed.
class Segmented::SummedReader {
 public:
  SummedReader(const Segmented& codec, const SummedRound& round)
      : inner_(*codec.inner_.integer_sums()),
        round_(round),
        head_at_(table_bytes(codec.segment_elements_.size())),
        heads_(round.ways) {
    if (round.heads.size() != round.ways) {
      throw DecodeError("segments: " + std::to_string(round.heads.size()) + " heads came with a sum of " +
                        std::to_string(round.ways) + " payloads");
    }
    for (std::size_t way = 0; way < round.ways; ++way) {
      const std::string name = payload_name(way, round.ways);
      check_table(round.heads[way], name, codec.segment_elements_);
      // Heads of segments have no padding, unlike their payloads.
      const std::size_t expected = codec.head_bytes(codec.elements_);
      if (round.heads[way].size() != expected)
        refuse(name, "bytes of head", round.heads[way].size(), expected);
    }
    const std::size_t expected = codec.elements_ * bytes_of(round.width);
    if (round.sums.size() != expected) refuse("the sum", "bytes", round.sums.size(), expected);
  }

  /// The sum of the next segment.
  SummedRound next(std::uint32_t elements) {
    const std::size_t head_bytes = inner_.head_bytes(elements);
    for (std::size_t way = 0; way < round_.ways; ++way)
      heads_[way] = round_.heads[way].subspan(head_at_, head_bytes);
    head_at_ += head_bytes;
    const auto sums = round_.sums.subspan(sums_at_, elements * bytes_of(round_.width));
    sums_at_ += sums.size();
    return {round_.ways, head_bytes > 0 ? std::span<const Payload>(heads_) : std::span<const Payload>(), sums,
            round_.width};
  }

 private:
  const IntegerSums& inner_;
  const SummedRound& round_;
  std::size_t head_at_;
  std::size_t sums_at_ = 0;
  std::vector<Payload> heads_;
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
    // The constructor refuses it as misuse. From a peer it is damage, which is another error.
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

void Segmented::require_scales(std::size_t scales) const {
  if (scales == 0 || scales == unit_count()) return;
  throw std::invalid_argument("segments: " + std::to_string(scales) + " scales given, expected " +
                              std::to_string(unit_count()) + " or none");
}

std::size_t Segmented::unit_count() const noexcept {
  std::size_t units = 0;
  for (const std::uint32_t elements : segment_elements_) units += compress::unit_count(elements);
  return units;
}

std::size_t Segmented::segment_after(std::size_t end) const noexcept {
  return end == 0 ? table_bytes(segment_elements_.size()) : padded(end);
}

std::size_t Segmented::frame(std::span<const std::size_t> segment_bytes, std::span<std::byte> payload) const {
  Writer writer(payload, segment_elements_.size());
  for (std::size_t i = 0; i < segment_elements_.size(); ++i)
    writer.add(segment_elements_[i], {segment_bytes[i], false});
  return writer.finish().bytes;
}

std::vector<Payload> Segmented::split(Payload payload) const {
  Reader reader({&payload, 1}, segment_elements_);
  std::vector<Payload> segments;
  for (std::size_t i = 0; i < segment_elements_.size(); ++i) segments.push_back(reader.next().front());
  return segments;
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
  // All of them, before the first segment changes its residual.
  expect_encode_spans(name(), elements_, residual.size(), out.size(), max_encoded_size(elements_));
  require_scales(scales.size());
  expect_usable_scales(name(), scales);
  Writer writer(out, segment_elements_.size());
  std::size_t at = 0, unit = 0;
  for (const std::uint32_t elements : segment_elements_) {
    const std::size_t units = compress::unit_count(elements);
    // Each segment counts as whole units, so no two of them draw the same random numbers.
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
  expect_encode_spans(name(), elements, residual.size(), out.size(),
                      max_reply_size(elements, payloads.size(), kind));
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

std::size_t Segmented::head_bytes(std::size_t) const noexcept {
  std::size_t bytes = table_bytes(segment_elements_.size());
  for (const std::uint32_t elements : segment_elements_) bytes += inner_.integer_sums()->head_bytes(elements);
  return bytes;
}

// One segment without codes is enough: the run is one payload, and is summed or gathered as a whole.
bool Segmented::holds_codes(Payload payload) const noexcept {
  Reader reader({&payload, 1}, segment_elements_);
  return std::ranges::all_of(segment_elements_, [&](std::uint32_t) {
    return inner_.integer_sums()->holds_codes(reader.next().front());
  });
}

void Segmented::write_head(Payload payload, std::size_t elements, std::span<std::byte> out) const {
  require_elements(elements);
  Reader reader({&payload, 1}, segment_elements_);
  std::size_t at = table_bytes(segment_elements_.size());
  // The table of a head is that of the payload, lengths included: SummedReader looks at the elements only.
  std::ranges::copy(payload.first(at), out.begin());
  for (const std::uint32_t segment : segment_elements_) {
    const std::size_t bytes = inner_.integer_sums()->head_bytes(segment);
    inner_.integer_sums()->write_head(reader.next().front(), segment, out.subspan(at, bytes));
    at += bytes;
  }
}

void Segmented::expand(Payload payload, std::size_t elements, IntegerWidth width,
                       std::span<std::byte> out) const {
  require_elements(elements);
  Reader reader({&payload, 1}, segment_elements_);
  std::size_t at = 0;
  for (const std::uint32_t segment : segment_elements_) {
    const std::size_t bytes = segment * bytes_of(width);
    inner_.integer_sums()->expand(reader.next().front(), segment, width, out.subspan(at, bytes));
    at += bytes;
  }
}

void Segmented::decode_sum(const SummedRound& round, std::span<float> out) const {
  require_elements(out.size());
  SummedReader reader(*this, round);
  std::size_t at = 0;
  for (const std::uint32_t elements : segment_elements_) {
    inner_.integer_sums()->decode_sum(reader.next(elements), out.subspan(at, elements));
    at += elements;
  }
}

Encoded Segmented::encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                                std::span<float> residual, std::span<std::byte> out) const {
  require_elements(elements);
  expect_encode_spans(name(), elements, residual.size(), out.size(),
                      max_reply_size(elements, round.ways, kind));
  SummedReader reader(*this, round);
  Writer writer(out, segment_elements_.size());
  std::size_t at = 0;
  for (const std::uint32_t segment : segment_elements_) {
    const auto kept = residual.empty() ? residual : residual.subspan(at, segment);
    const auto room = writer.room(inner_.max_reply_size(segment, round.ways, kind));
    writer.add(segment, inner_.integer_sums()->encode_reply(reader.next(segment), segment, kind, kept, room));
    at += segment;
  }
  return writer.finish();
}

void Segmented::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                             std::span<UnitScale> next) const {
  require_elements(out.size());
  require_scales(next.size());
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
