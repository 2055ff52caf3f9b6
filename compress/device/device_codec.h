// DeviceCodec is the twin of a Codec for floats that lie on a device: the same payloads, bit for bit, made
// and read where the gradient is, so that only payloads cross to the host.
//
// Threading: immutable; many threads may call every const method at once (on different buffers). A call
// enqueues on its stream and returns: nothing waits, nothing is allocated.
//
// Lifetime: buffers must stay until the stream has passed the call. Spans hold device addresses unless said.
//
// Failure: a wrong argument or wrong bytes throw before anything is enqueued. What only a device can detect
// comes later, in DeviceReport. A device that refuses work is a std::runtime_error with its reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "compress/codec.h"

namespace gradwire::compress {

/// Alignment of payloads, replies and scratch in memory that a device reads or writes, in bytes.
inline constexpr std::size_t kDeviceAlignment = 8;

/// The queue of a device that work goes to.
struct DeviceStream {
  int device = 0;          ///< CUDA's number of it; it must be the calling thread's (use_cuda_device())
  void* handle = nullptr;  ///< a cudaStream_t of this device; null is its default stream
};

/// What a device found while it worked. The device sets fields and never clears them: zero it, enqueue, and
/// read it once the stream has passed. Calls whose findings may be mixed can share one.
struct DeviceReport {
  /// 1: as Encoded::nonfinite.
  std::uint32_t nonfinite = 0;
  /// A count that an exact reply cannot hold; what was decoded is unspecified then.
  std::uint32_t bad_count = 0;
};

/// What a call works with beside its data.
struct DeviceWork {
  DeviceStream stream;
  /// In memory that the device can write: its own, or pinned memory of the host.
  DeviceReport* report = nullptr;
  /// scratch_bytes(elements) of memory; calls in flight on other streams need others.
  std::span<std::byte> scratch;
};

/// Bytes on both sides: `host` is checked, `device` is read. They are the same address in pinned memory; else
/// the caller enqueues the copy first.
struct DevicePayload {
  Payload host;
  const std::byte* device = nullptr;
};

/// The payloads of a round, in rank order, in one block that the device can read.
struct DevicePayloads {
  std::span<const Payload> host;
  const std::byte* device = nullptr;  ///< payload w begins w * stride bytes behind it
  std::size_t stride = 0;             ///< bytes, a multiple of kDeviceAlignment
};

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  DeviceCodec(const DeviceCodec&) = delete;
  DeviceCodec& operator=(const DeviceCodec&) = delete;

  /// The codec of which this is the twin: name, sizes, wire parameters, and what a host does with the
  /// payloads.
  const Codec& codec() const noexcept { return *codec_; }

  /// Bytes of scratch that encode() and encode_reply() need for `elements` elements; decoding needs none.
  virtual std::size_t scratch_bytes(std::size_t elements) const noexcept = 0;

  // Requires for all below: elements > 0, work.report not null, kDeviceAlignment for payloads and scratch;
  // spans do not overlap. Throws std::invalid_argument where it can see that this does not hold.

  /// As Codec::encode(). `scales` must be what decode_reply() wrote. Returns the payload's length, which
  /// depends on nothing that the device computes; the non-finite flag comes in the report.
  virtual std::size_t encode(std::span<const float> grad, std::span<float> residual,
                             std::span<const UnitScale> scales, std::span<std::byte> out,
                             const Position& position, const DeviceWork& work) const = 0;
  /// For codecs that draw nothing, and for tests.
  std::size_t encode(std::span<const float> grad, std::span<float> residual,
                     std::span<const UnitScale> scales, std::span<std::byte> out,
                     const DeviceWork& work) const {
    return encode(grad, residual, scales, out, Position{}, work);
  }

  /// As Codec::decode_sum(), each sum then multiplied by factor.
  virtual void decode_sum(const DevicePayloads& payloads, float factor, std::span<float> out,
                          const DeviceWork& work) const = 0;

  /// As Codec::encode_reply(). Returns the reply's length; the non-finite flag comes in the report.
  virtual std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                                   std::span<float> residual, std::span<std::byte> out,
                                   const DeviceWork& work) const = 0;

  /// As Codec::decode_reply(), each value then multiplied by factor. A bad count in an exact reply comes in
  /// the report: hand it to check_report().
  virtual void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                            std::span<float> out, std::span<UnitScale> next,
                            const DeviceWork& work) const = 0;

  /// Throws DecodeError when the report of decode_reply() names a count that `ways` payloads cannot give.
  void check_report(const DeviceReport& report, std::size_t ways) const;

 protected:
  explicit DeviceCodec(std::unique_ptr<Codec> codec) noexcept : codec_(std::move(codec)) {}

 private:
  std::unique_ptr<Codec> codec_;
};

// What every DeviceCodec checks of a call.

/// Throws std::invalid_argument unless `address` is a multiple of kDeviceAlignment. `what` lies there: "the
/// reply".
void expect_aligned(std::string_view codec, std::string_view what, const void* address);

/// Throws std::invalid_argument unless there is a report and an aligned scratch of scratch_bytes.
void expect_work(std::string_view codec, const DeviceWork& work, std::size_t scratch_bytes);

/// Throws std::invalid_argument unless every payload lies aligned and inside its own stride.
void expect_block(std::string_view codec, const DevicePayloads& payloads);

/// For codecs whose payloads all have max_encoded_size() bytes: throws as expect_ways(),
/// expect_payload_bytes() and expect_block().
void expect_round(const Codec& codec, const DevicePayloads& payloads, std::size_t elements);

}  // namespace gradwire::compress
