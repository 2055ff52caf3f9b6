// Segmented wraps a codec for a run of several whole small tensors, so that they travel as one payload. Each
// tensor is a segment with codec units of its own: the bits are those of the tensors sent alone.
//
// Payload format: u32 number of segments | u32 zero | per segment u32 elements, u32 bytes | the segments'
// payloads in the inner codec's format, each padded with zeros to a multiple of 8 bytes. Replies have the
// same form. Where a library sums (integer_sums.h), the head is the table and the segments' heads.
//
// Threading and lifetime: as Codec, and the inner codec outlives it. A call allocates one list of views.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compress/codec.h"
#include "compress/payload/integer_sums.h"

namespace gradwire::compress {

class Segmented final : public Codec, public IntegerSums {
 public:
  /// Throws std::invalid_argument unless there is a segment and every one has elements.
  Segmented(const Codec& inner, std::vector<std::uint32_t> segment_elements);

  /// Reads which segments a payload of `elements` elements has. Throws DecodeError.
  static std::vector<std::uint32_t> segments_of(Payload payload, std::size_t elements);

  std::string_view name() const noexcept override { return inner_.name(); }
  WireId wire_id() const noexcept override { return inner_.wire_id(); }
  WireParameters wire_parameters() const noexcept override { return inner_.wire_parameters(); }
  CodecSpec spec() const override { return inner_.spec(); }
  bool lossy() const noexcept override { return inner_.lossy(); }
  bool has_exact_reply() const noexcept override { return inner_.has_exact_reply(); }
  bool agrees_scales() const noexcept override { return inner_.agrees_scales(); }
  const IntegerSums* integer_sums() const noexcept override {
    return inner_.integer_sums() == nullptr ? nullptr : this;
  }

  /// Units of all segments: the entries that scales have.
  std::size_t unit_count() const noexcept;

  // For a caller that encodes segments elsewhere, as a device does, and assembles the payload here.

  std::span<const std::uint32_t> segment_elements() const noexcept { return segment_elements_; }
  /// Where the segment begins that comes after `end` bytes of payload; the first comes after 0.
  std::size_t segment_after(std::size_t end) const noexcept;
  /// Writes the table and the padding of a payload whose segments have these bytes and lie where
  /// segment_after() says. Returns the payload's length.
  std::size_t frame(std::span<const std::size_t> segment_bytes, std::span<std::byte> payload) const;
  /// The payload of each segment. Throws DecodeError.
  std::vector<Payload> split(Payload payload) const;

  // As Codec's, for the elements of all segments, one behind the other. `elements` must be their number.

  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  using Codec::encode;
  /// A codec that draws random numbers takes a segment for the units that it has among all segments' units.
  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const override;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const override;
  void validate(Payload payload, std::size_t elements) const override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

  // As IntegerSums'; of an inner codec that has them only.

  std::size_t code_bits() const noexcept override { return inner_.integer_sums()->code_bits(); }
  std::size_t head_bytes(std::size_t elements) const noexcept override;
  bool holds_codes(Payload payload) const noexcept override;
  void write_head(Payload payload, std::size_t elements, std::span<std::byte> out) const override;
  void expand(Payload payload, std::size_t elements, IntegerWidth width,
              std::span<std::byte> out) const override;
  void decode_sum(const SummedRound& round, std::span<float> out) const override;
  Encoded encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;

 private:
  class Writer;
  class Reader;
  class SummedReader;
  void require_elements(std::size_t elements) const;
  void require_scales(std::size_t scales) const;

  const Codec& inner_;
  std::vector<std::uint32_t> segment_elements_;
  std::size_t elements_ = 0;
};

}  // namespace gradwire::compress
