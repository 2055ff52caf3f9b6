// Options of an Engine and of a Server, and options of a call about its memory.
//
// Threading: values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/device/device.h"
#include "kvstore/array_view.h"
#include "kvstore/trace/trace.h"
#include "kvstore/wire/async_policy.h"
#include "kvstore/wire/code_sums.h"
#include "kvstore/wire/key.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

struct ServerOptions {
  unsigned threads = 1;  ///< aggregator threads; at least 1
  std::uint64_t credit_bytes = std::uint64_t{256}
                               << 10;  ///< replies handed to the socket, per worker and thread
  std::uint64_t fusion_bytes = std::uint64_t{256} << 10;
  std::vector<std::uint32_t> contributors{};  ///< whose pushes make a round; empty: all workers'
  /// Takes each round's sum, on an aggregator thread, and has it answered by Server::answer(). Empty: the sum
  /// is the answer.
  std::function<void(transport::Frame sum)> upstream{};
  std::shared_ptr<Trace> trace{};  ///< where spans are noted; none: nowhere. Owners: Trace's (trace.h)
  Tier tier = Tier::kJob;          ///< of those spans
  /// With replicas: when the mirror has acknowledged nothing for so long, what it lacks is sent again.
  std::chrono::milliseconds mirror_patience{500};
  // Likewise: for how long it may acknowledge nothing.
  std::chrono::milliseconds slow_warning{60'000};         ///< then a notice names it
  std::chrono::milliseconds slow_abort{30 * 60 * 1'000};  ///< then the job fails and names it
  std::function<void(const std::string& text)> notify{};  ///< gets notices, on any thread; may be empty
};

/// What a push that is taken ahead of its round counts beside its values, in push_ahead_bytes.
inline constexpr std::uint64_t kAheadBytes = 1024;

struct EngineOptions {
  std::uint64_t partition_elements = std::uint64_t{1}
                                     << 18;  ///< rounded down to whole codec units, at least one
  std::uint64_t shard_bound_elements =
      1'000'000;  ///< keys of at least this many elements are cut over all servers
  std::uint64_t fusion_bytes = std::uint64_t{256} << 10;  ///< buckets are filled up to this
  std::uint64_t credit_bytes = std::uint64_t{256} << 10;  ///< bytes handed to the socket, per server
  /// Bytes that push() has taken of gradients whose round cannot begin, since one before it is not over; then
  /// it waits (wire/PROTOCOL.md, "Pushes ahead of their rounds"). Of dense keys; of tables of rows as many
  /// more.
  std::uint64_t push_ahead_bytes = std::uint64_t{256} << 20;
  /// Bytes that a message may hold, of what no partition bounds: rows. Below what a peer takes
  /// (ZmqOptions::max_frame_bytes).
  std::uint64_t message_bytes = (std::uint64_t{1} << 31) - 4096;
  unsigned codec_threads = 1;
  /// How workers keep residuals, on the host and on devices: kFloat32, or kBfloat16, half the memory; none:
  /// not at all, and what a codec leaves out is lost. In tables of rows they are of float32.
  std::optional<ElementType> residual_type = ElementType::kFloat32;
  CodeSums code_sums = CodeSums::kFewestBits;      ///< placement native: how a library sums codes
  std::chrono::milliseconds slow_warning{60'000};  ///< a notice names what is awaited
  std::chrono::milliseconds slow_abort{
      1'800'000};              ///< then the job fails; bounds every wait, collectives too
  std::uint32_t replicas = 0;  ///< 1: dedicated servers are mirrored, and one may die (mirror.h)
  std::chrono::milliseconds retry_timeout{10'000};  ///< then a server is asked whether it has our push
  bool goes_on = false;  ///< without workers that die; servers then begin anew in each generation
  std::optional<AsyncPolicy>
      async{};  ///< servers apply each push when it arrives; none: rounds are of all workers
  std::shared_ptr<Trace> trace{};  ///< where spans are noted; none: nowhere. Owners: Trace's (trace.h)
};

/// What a Server in a worker's own process takes from that worker's options.
ServerOptions hosted_server(const EngineOptions& options);

/// Where a call's spans lie that are addresses of a device's memory. What `stream` (as in DeviceStream) has
/// been given so far is waited for before they are touched; no thread blocks for that.
struct OnDevice {
  std::shared_ptr<compress::Device> device;  ///< none: the spans are the host's. Lives until close()
  void* stream = nullptr;
};

/// What a key begins with.
struct FirstValue {
  KeyId key = 0;
  ConstArrayView value;  ///< of float32, or of float64 where the key is
};

/// What a worker has pushed so far.
struct PushedBytes {
  std::uint64_t raw = 0;      ///< float32, as the caller gave it
  std::uint64_t encoded = 0;  ///< payloads; where a host's workers sum first, those that leave the host
};

/// Bytes that have crossed between the host and devices: payloads, and floats where a codec has no twin
/// there.
struct DeviceTraffic {
  std::uint64_t bytes_from_devices = 0;
  std::uint64_t bytes_to_devices = 0;
};

}  // namespace gradwire::kvstore
