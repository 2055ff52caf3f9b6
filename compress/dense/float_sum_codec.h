// The base of codecs whose sum is the float32 sum, in rank order, of the decoded payloads: checks, tiles and
// replies. A derived codec adds how a run is encoded and decoded.
//
// Replies: kFp32 is the sum as n float32, kSame the codec's own format of sum + Server's residual. The
// length of a payload depends on the number of elements alone.
//
// Threading and lifetime: as Codec. A thread that encodes replies keeps one unit of floats for that.
#pragma once

#include <string>

#include "compress/codec.h"

namespace gradwire::compress {

/// A part of a payload of `elements` elements.
struct Run {
  std::size_t first = 0;
  std::size_t length = 0;
  std::size_t elements = 0;
};

class FloatSumCodec : public Codec {
 public:
  std::string_view name() const noexcept final { return name_; }
  WireId wire_id() const noexcept final { return wire_id_; }
  bool lossy() const noexcept final { return true; }
  bool has_exact_reply() const noexcept override { return false; }
  bool agrees_scales() const noexcept final { return false; }

  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const final;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const final;
  void validate(Payload payload, std::size_t elements) const final;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

  // What this checks of bytes before it reads them, for its twins on devices.

  /// Throws DecodeError naming the payload whose length or content is wrong.
  void expect_payloads(std::span<const Payload> payloads, std::size_t elements) const;
  /// Throws as decode_reply(). Requires kind kFp32 or kSame to have the form that this class gives them.
  void expect_reply(Payload reply, std::size_t ways, ReplyKind kind, std::size_t elements) const;

 protected:
  /// name must outlive the codec. A run to decode begins at a multiple of tile_elements, a divisor of
  /// kUnitElements, and holds at most as many.
  FloatSumCodec(std::string_view name, WireId wire_id, std::size_t tile_elements) noexcept
      : name_(name), wire_id_(wire_id), tile_elements_(tile_elements) {}

  /// Writes the sum of the run to out[0, run.length), payloads added in rank order. Requires run.first a
  /// multiple of the tile.
  void sum_run(std::span<const Payload> payloads, const Run& run, float* out) const;

 private:
  /// Encodes grad + residual (null: none) of whole units into their places in the payload `out`. position is
  /// null where Server encodes a sum. Returns true when a NaN or infinity was found.
  virtual bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                          std::byte* out) const = 0;

  /// Writes the run of a payload that fault() found nothing wrong with to out[0, run.length), or adds it.
  virtual void decode_run(Payload payload, const Run& run, bool add, float* out) const = 0;

  /// What is wrong with the content of a payload of the right length; empty when nothing is.
  virtual std::string fault(Payload payload, std::size_t elements) const = 0;

  bool encode_sums(std::span<const Payload> payloads, std::size_t elements, float* residual,
                   std::byte* out) const;

  std::string_view name_;
  WireId wire_id_;
  std::size_t tile_elements_;
};

}  // namespace gradwire::compress
