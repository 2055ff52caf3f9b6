// DeviceRounds runs rounds of tensors that lie on a device. Parts are encoded and decoded there. If the
// codec has no twin, the floats are copied to the host, handled as any others, and copied back.
//
// Threading: link() and the counters from any thread, decode() in the pool, the rest in the loop. The
// callback `next` runs in the loop; until then it counts as one of the tensor's jobs.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/client/answer_decoder.h"
#include "kvstore/client/push_encoder.h"
#include "kvstore/client/round_context.h"
#include "kvstore/client/tensor.h"
#include "kvstore/device/device_link.h"

namespace gradwire::kvstore {

class DeviceRounds {
 public:
  using Next = std::function<void(std::exception_ptr)>;
  using Encoded = std::function<void(PushPayload, std::exception_ptr)>;

  /// All that is given outlives this.
  DeviceRounds(RoundContext& context, PushEncoder& encoder, const AnswerDecoder& decoder)
      : context_(context), encoder_(encoder), decoder_(decoder) {}

  /// The link to a device, made when it is first asked for.
  std::shared_ptr<DeviceLink> link(const std::shared_ptr<compress::Device>& device);
  /// What has crossed from and to devices.
  DeviceTraffic traffic() const;
  /// Waits until no device calls back any more.
  void settle() const;

  /// Takes a push's values in memory of the device, as its caller's are to be free again.
  void stage(Operation& operation);
  /// Moves what is kept of the tensor to the device of the operation in flight. Returns false where the codec
  /// has no twin there, and where it is none and a lossy one before it has left something, which the host
  /// adds, once.
  bool settle_there(Tensor& tensor);
  /// Gives the operation in flight room on the host for its floats; of a push, brings them there before next.
  /// A pull has its room at once.
  void land(Tensor& tensor, Next next);
  /// Brings what has been decoded on the host to where the caller wants it.
  void lift(Tensor& tensor, Next next);
  /// Answers a pull with what the last push brought, where at least one of the two is on a device.
  void copy_value(Tensor& tensor, Next next);
  void encode(Tensor& tensor, std::size_t part, Encoded next);
  void decode(Tensor& tensor, std::size_t part, const transport::Frame& answer, Next next);

 private:
  void submit(Tensor& tensor, DeviceLink& link, DeviceLink::Way way,
              std::function<void(DeviceLink::Batch&)> work, Next next);
  void take(Tensor& tensor, std::size_t part, const std::shared_ptr<DevicePayload>& from,
            std::exception_ptr error, const Encoded& next);
  void note_landing(const compress::Codec& codec, const compress::Device& device);

  RoundContext& context_;
  PushEncoder& encoder_;
  const AnswerDecoder& decoder_;
  mutable std::mutex mutex_;  ///< guards links_
  std::vector<std::pair<const compress::Device*, std::shared_ptr<DeviceLink>>> links_;
  std::set<std::string> landing_codecs_;  ///< of which a notice was given
};

}  // namespace gradwire::kvstore
