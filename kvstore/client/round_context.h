// RoundContext is what the parts of a RoundThread share.
//
// Threading: the members are shared by the loop and the pool; each says its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "kvstore/client/round_spans.h"
#include "kvstore/options.h"
#include "kvstore/runtime/codec_pool.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/notices.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

struct RoundContext {
  using Clock = std::chrono::steady_clock;

  transport::Messenger& messenger;
  const EngineOptions options;
  CodecPool& pool;
  RoundSpans spans;
  std::shared_ptr<Loop> loop = std::make_shared<Loop>();  // owners: this and payloads still in the socket
  transport::BufferPool buffers{};
  Notices notices{};
  std::atomic<std::uint64_t> codec_nanoseconds{0};
  TraceClock::time_point arrived{};  ///< of the frames that the loop has in hand
  /// Fails everything in flight and to come, from the loop.
  std::function<void(std::exception_ptr)> fail_now{};
  /// The same, when the loop gets to it. From any thread, also in the middle of another operation.
  void fail(std::exception_ptr error) {
    loop->post([this, error = std::move(error)] { fail_now(error); });
  }
  void count_codec_time(Clock::time_point since) {
    codec_nanoseconds += static_cast<std::uint64_t>((Clock::now() - since).count());
  }
};

}  // namespace gradwire::kvstore
