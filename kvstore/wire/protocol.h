// What the kvstore's fields of a frame header mean, for both ends. The rest of the data plane is in
// PROTOCOL.md.
#pragma once

#include <cstdint>

#include "transport/frame.h"

namespace gradwire::kvstore {

/// What a value in a reply is; in a push that is applied at once: kWeight where the weight is wanted back. Of
/// kWeightDelta and kWeightRounded the frame names the codec (weight_replies.h).
/// Part of the wire format, never renumber.
enum class Content : std::uint8_t {
  kSum = 0,
  kWeight = 1,         ///< float32
  kWeightDelta = 2,    ///< what is to be added; in a request: the worker has the weight last given to it
  kWeightRounded = 3,  ///< in 16 bits
};

/// What a payload's elements are (in header.dtype); count counts them. Part of the wire format, never
/// renumber.
enum class Dtype : std::uint8_t {
  kFloat32 = 0,  ///< what a codec made of float32
  kFloat64 = 1,  ///< only of codec none, and of first values
};

/// How final a kError is (in header.content). Part of the wire format, never renumber.
enum class Refusal : std::uint8_t {
  kFinal = 0,      ///< the request is wrong; the text says why
  kSendAgain = 1,  ///< the payload did not arrive whole
  kBlob = 2,       ///< kPost, kFetch or kReceipt: nothing to do with a key; final
  kRows = 3,       ///< kRowInit, kRowPush or kRowPull: of a table of rows; final
};

/// What of a partition's state a kReadState or kWriteState is about (in header.content). Part of the wire
/// format, never renumber.
enum class StateScope : std::uint8_t {
  kAll = 0,        ///< a PartitionState
  kOptimizer = 1,  ///< an OptimizerState: what the optimizer remembers beside the weight
};

/// Step of requests that are of no round, and so of their answers: a late one is no answer to a push. Pulls
/// count down from it, so that it is none to another pull.
inline constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

/// Rounds that a key may have been through; far above any job's, it keeps steps from overflowing.
inline constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 62;

/// Commands to servers are numbered from 1 above a multiple of this. A worker that takes another one's place
/// chooses a higher multiple.
inline constexpr std::uint64_t kCommandsOfOneWorker = std::uint64_t{1} << 32;

/// How often a payload that arrived damaged, here or there, is sent again before what it belongs to fails. A
/// link that damages one payload in ten fails one round in a hundred million; one that damages all fails at
/// once.
inline constexpr int kMaxResends = 10;

inline Dtype dtype_of(const transport::FrameHeader& header) { return static_cast<Dtype>(header.dtype); }
inline Content content_of(const transport::FrameHeader& header) {
  return static_cast<Content>(header.content);
}

/// How stale a push was that was applied at once (push_clocks.h), in its answer.
inline void set_staleness(transport::FrameHeader& answer, std::uint64_t staleness) {
  answer.codec_parameters = {static_cast<std::uint32_t>(staleness),
                             static_cast<std::uint32_t>(staleness >> 32), 0, 0};
}
inline std::uint64_t staleness_of(const transport::FrameHeader& answer) {
  return answer.codec_parameters[0] | std::uint64_t{answer.codec_parameters[1]} << 32;
}

/// Which of a server's threads answers a command, which each of them carries out (in codec_parameters). Part
/// of the wire format.
struct ServerThread {
  std::uint32_t number = 0;
  std::uint32_t of = 1;  ///< threads of that server
};
inline void set_thread(transport::FrameHeader& answer, const ServerThread& thread) {
  answer.codec_parameters = {thread.number, thread.of, 0, 0};
}
inline ServerThread thread_of(const transport::FrameHeader& answer) {
  return {answer.codec_parameters[0], answer.codec_parameters[1]};
}

/// The upper half of a reply's flags: how many of the workers its sum has nothing of, since they have joined.
/// Part of the wire format.
inline constexpr unsigned kAbsentShift = 16;

constexpr std::uint32_t with_absent(std::uint32_t flags, std::uint32_t absent) {
  return flags | absent << kAbsentShift;
}
constexpr std::uint32_t absent_of(std::uint32_t flags) { return flags >> kAbsentShift; }

}  // namespace gradwire::kvstore
