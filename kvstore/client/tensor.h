// What a worker keeps of one tensor, and of each of its parts.
//
// Threading: the RoundThread's own thread; jobs in the pool read it while `jobs` counts them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/payload/segmented.h"
#include "compress/share_sent.h"
#include "kvstore/client/operation.h"
#include "kvstore/device/device_tensor.h"
#include "kvstore/release_memory.h"
#include "kvstore/residual.h"
#include "kvstore/runtime/pending_requests.h"
#include "kvstore/wire/compression.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/weight_replies.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

struct TensorPart {
  Part part;
  transport::Buffer payload;  ///< kept until answered, to send again
  transport::Kind request = transport::Kind::kPush;
  std::uint32_t flags = 0;
  bool brought_floats = false;  ///< the answer, which then has no scales for the next round
  int resends = 0;              ///< because it arrived damaged
  compress::ShareSent share;    ///< of the last round that was measured
  bool holds_weight = false;    ///< `held` of the tensor has what the server last sent of this part
  std::chrono::steady_clock::time_point began;  ///< on a device: its encoding
};

/// What codecs draw by: a tensor's key, and the element of it that the tensor begins with.
struct Origin {
  KeyId key = 0;
  std::uint64_t offset = 0;
};

struct Tensor {
  KeySpec spec;
  KeyId id = 0;
  Origin origin;                   ///< its own key, or what it is a part of
  std::vector<TensorPart> parts;   ///< ordered by offset
  std::vector<std::size_t> turns;  ///< of the parts: the order to encode them in

  // What codecs keep from round to round.
  Residual residual;
  bool has_before = false;  ///< what roll_back() needs: these, or their like on the device
  Residual residual_before;
  std::vector<compress::UnitScale> scales_before;
  bool scales_known_before = false;
  std::vector<compress::UnitScale> scales;  ///< one per unit, agreed in the last round
  bool scales_known = false;
  std::string restored_scales_of;  ///< who agreed those of a checkpoint; empty: they are no checkpoint's
  std::unique_ptr<DeviceTensor> on_device;  ///< where gradients lie there; what it holds is not here then

  // What servers answered.
  std::vector<float> value;     ///< answer to the last push(), for pull()
  std::vector<double> value64;  ///< in place of it, where that answer was of float64
  bool value_current = false;
  bool value_on_device = false;
  bool met_nonfinite = false;         ///< any rank, in the push whose sum value is
  bool is_shown = false;              ///< a pull, or a push_pull, has brought what its last push made
  bool asks_for_servers_own = false;  ///< a pull in flight: for the weight that a server has, and not for
                                      ///< what deltas have made of it here
  std::shared_ptr<const WeightReplies> weight_replies;  ///< of the operation in flight
  std::vector<float> held;  ///< where servers send deltas: the weight that these change

  // What is agreed on with the other ranks.
  std::vector<std::uint32_t> segments;  ///< of several tensors in one: the elements of each; else empty
  std::uint64_t step = 0;               ///< rounds begun
  std::uint64_t pulls = 0;              ///< and what else is of no round, begun: each has a number of its own
  std::shared_ptr<const Compression> own_compression;  ///< of all rounds; null: that of all tensors
  std::shared_ptr<const Compression> compression;      ///< of the round in flight
  std::optional<compress::Segmented> segmented_codec;  ///< likewise, where tensors in one need one
  const compress::DeviceCodec* twin = nullptr;         ///< likewise, where the round is on a device

  // The operation in flight, and those behind it.
  std::optional<Operation> current;
  PendingRequests::Handle pending;  ///< of `current`; its requests are numbered as parts
  std::deque<Operation> waiting;
  std::size_t held_count = 0;  ///< of those that wait, how many are held: the last of its pushes
  std::size_t parts_left = 0;
  std::size_t parts_to_take = 0;
  std::size_t jobs = 0;      ///< in the pool; memory is theirs until they end
  std::exception_ptr error;  ///< of the current operation

  const compress::Codec& codec() const {
    if (segmented_codec) return *segmented_codec;
    return *compression->codec;
  }
  /// Has the round that begins travel by it.
  void use(std::shared_ptr<const Compression> next) {
    compression = std::move(next);
    segmented_codec.reset();
    if (!segments.empty() && !compression->codec->concatenates())
      segmented_codec.emplace(*compression->codec, segments);
  }
  std::uint32_t push_flags() const { return segmented_codec ? transport::kFlagSegments : 0U; }
  Dtype dtype_of_push() const {
    return compression->codec->as_float64() == nullptr ? Dtype::kFloat32 : Dtype::kFloat64;
  }
  void expect_codec_of_push(const transport::FrameHeader& reply) const {
    if (reply.codec != static_cast<std::uint8_t>(codec().wire_id()) || dtype_of(reply) != dtype_of_push() ||
        reply.codec_parameters != codec().wire_parameters() ||
        (reply.flags & transport::kFlagSegments) != push_flags()) {
      throw compress::DecodeError("reply: its codec is not that of the push");
    }
  }
  DeviceRound device_round() const {
    return {twin, segmented_codec ? &*segmented_codec : nullptr, scales_known};
  }

  std::size_t unit_count() const {
    return segmented_codec ? segmented_codec->unit_count() : compress::unit_count(spec.elements());
  }
  std::span<compress::UnitScale> scales_of(const Part& part) {
    if (segmented_codec) return scales;
    return std::span(scales).subspan(part.offset / compress::kUnitElements, compress::unit_count(part.count));
  }

  /// Whether a lossy codec has left here what that of the round in flight, which is none, sends (leftover.h).
  bool has_leftover() const { return !compression->codec->lossy() && !residual.empty(); }
  /// Where a codec keeps what it does not send; empty where there is nothing to keep.
  ArrayView residual_of(const Part& part) {
    return residual.empty() ? residual.view() : residual.view().subspan(part.offset, part.count);
  }
  /// Has what is kept of it lie on the host from now on. Blocks where it lies on a device.
  void settle_on_host() {
    if (!on_device) return;
    residual.assign(on_device->fetch_residual());
    scales_known = false;
    on_device.reset();
  }

  void forget_weight() {
    release_memory(held);
    for (TensorPart& state : parts) state.holds_weight = false;
  }

  /// Whether a part's request has been answered, or none was sent.
  bool is_answered(std::size_t part) const { return !current || !pending->requests.contains(part); }
};

}  // namespace gradwire::kvstore
