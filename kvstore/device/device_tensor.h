// DeviceTensor is what a worker keeps on a device of a tensor whose gradients lie there: the residual, the
// agreed scales, the answer to the last push. Its parts are encoded and decoded there, so that only payloads
// cross.
//
// Threading: encode() and decode() of a round's parts may run on many threads; the rest while none of them
// does.
// Lifetime: spans given to encode() and decode() stay until next was called.
// Failure: a call that throws has begun nothing; later errors go to next.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compress/payload/segmented.h"
#include "kvstore/array_view.h"
#include "kvstore/device/device_link.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

/// How a round of a tensor travels: the same for all its parts.
struct DeviceRound {
  const compress::DeviceCodec* twin = nullptr;
  const compress::Segmented* segmented = nullptr;  ///< where several tensors travel as one; else null
  bool scales_known = false;                       ///< agreed in the last round, which was on the device too
  compress::Position position{};                   ///< of the tensor, in this round: what codecs draw by
};

/// A reply to a push, as it arrived.
struct DeviceAnswer {
  compress::Payload reply;
  std::size_t ways = 0;
  compress::ReplyKind kind = compress::ReplyKind::kFp32;
  float scale = 1;
};

/// A payload that has come from the device, in pinned memory.
class DevicePayload {
 public:
  DevicePayload(DeviceLink& link, const compress::Codec& codec, std::size_t elements);

  std::byte* data() { return pinned_.bytes().data(); }
  compress::DeviceReport* report() { return report_; }
  /// Hands the payload over, complete. Once; after the device is done.
  transport::Buffer take(const compress::Segmented* segmented);
  bool nonfinite() const { return report_->nonfinite != 0; }

  std::vector<std::size_t> segment_bytes;  ///< of one tensor that goes alone: its payload's

 private:
  transport::Buffer pinned_;
  compress::DeviceReport* report_;  ///< behind the payload
};

class DeviceTensor {
 public:
  using Encoded = std::function<void(std::shared_ptr<DevicePayload>, std::exception_ptr)>;
  /// `used` is what the device has read; it may be let go on any thread but the device's.
  using Decoded = std::function<void(std::shared_ptr<void> used, std::exception_ptr)>;

  /// residual_type: kFloat32 or kBfloat16; none: it keeps none.
  DeviceTensor(std::shared_ptr<DeviceLink> link, std::size_t elements,
               std::optional<ElementType> residual_type)
      : link_(std::move(link)), elements_(elements), residual_type_(residual_type) {}

  DeviceLink& link() const noexcept { return *link_; }
  /// Gets ready for a round of `codec`, which has `units` units: a residual, of this one of the host, which
  /// is of the same type, or of zeros where there is none yet, if it is lossy; scales, if it agrees them. May
  /// block.
  void prepare(const compress::Codec& codec, std::size_t units, ConstArrayView residual);
  bool has_residual() const noexcept { return residual_ != nullptr; }
  /// Brings the residual to the host; empty where there is none. Blocks.
  std::vector<float> fetch_residual() const;
  /// Brings the scales to the host. Blocks.
  std::vector<compress::UnitScale> fetch_scales() const;
  /// Replaces the residual from offset on; where there was none, the rest is 0. Blocks. Requires that it
  /// keeps one.
  void store_residual(std::size_t offset, std::span<const float> values);
  /// Keeps the residual and the scales as they are now for roll_back(), which blocks. After prepare().
  void keep_what_was();
  void roll_back();

  /// The answer to the last push.
  std::span<float> value();

  /// Encodes a part of `in`, once the marks are passed; or, where there are pieces, of these, one behind the
  /// other.
  void encode(const DeviceRound& round, const Part& part, ConstArrayView in,
              std::span<const ArrayView> pieces, const DeviceLink::Marks& marks, Encoded next);
  /// Decodes a part's reply, times scale, to its place in `out`, or to the pieces.
  void decode(const DeviceRound& round, const Part& part, const DeviceAnswer& answer, ArrayView out,
              std::span<const ArrayView> pieces, const DeviceLink::Marks& marks, Decoded next);

 private:
  /// What one call of a twin works on.
  struct Run {
    std::size_t first = 0, count = 0;  ///< elements
    std::size_t first_unit = 0;        ///< of the tensor
  };
  static std::vector<Run> runs_of(const DeviceRound& round, const Part& part);
  static compress::Position position_of(const DeviceRound& round, const Run& run);
  ArrayView residual() const;
  std::span<compress::UnitScale> scales_of(const Run& run) const;
  std::span<float> together();
  std::span<std::byte> scale_bytes() const;
  void make_residual(DeviceLink::Batch& batch);

  const std::shared_ptr<DeviceLink> link_;  // owners: the thread, its tensors and operations on the device
  const std::size_t elements_;
  const std::optional<ElementType> residual_type_;
  std::shared_ptr<float> value_, together_;
  compress::Device::Memory residual_, residual_before_, scales_, scales_before_;
  std::size_t units_ = 0;
};

}  // namespace gradwire::kvstore
