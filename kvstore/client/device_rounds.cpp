#include "kvstore/client/device_rounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "compress/codecs.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using Clock = RoundContext::Clock;

namespace {

std::span<float> floats_of(Buffer& landing) {
  return {reinterpret_cast<float*>(landing.bytes().data()), landing.size_bytes() / sizeof(float)};
}

}  // namespace

std::shared_ptr<DeviceLink> DeviceRounds::link(const std::shared_ptr<compress::Device>& device) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(links_, device.get(), [](const auto& row) { return row.first; });
  if (found != links_.end()) return found->second;
  const auto staged = static_cast<std::size_t>(context_.options.push_ahead_bytes);
  return links_.emplace_back(device.get(), std::make_shared<DeviceLink>(device, staged)).second;
}

DeviceTraffic DeviceRounds::traffic() const {
  const std::lock_guard lock(mutex_);
  DeviceTraffic traffic;
  for (const auto& [device, link] : links_) {
    traffic.bytes_from_devices += link->bytes_to_host();
    traffic.bytes_to_devices += link->bytes_to_device();
  }
  return traffic;
}

void DeviceRounds::settle() const {
  // Without the mutex: no other thread adds a link while the RoundThread ends.
  for (const auto& [device, link] : links_) link->settle();
}

/// Puts work on a side stream, behind what the operation waits for.
void DeviceRounds::submit(Tensor& tensor, DeviceLink& link, DeviceLink::Way way,
                          std::function<void(DeviceLink::Batch&)> work, Next next) {
  ++tensor.jobs;
  context_.pool.submit(tensor.current->priority,
                       [this, &tensor, &link, way, work = std::move(work), next = std::move(next)] {
                         const auto end = [this, next](std::exception_ptr error) {
                           // Called on a thread of the device, which must not do more than post.
                           context_.loop->post([next, error] { next(error); });
                         };
                         try {
                           DeviceLink::Batch batch(link, way);
                           // A pull to the host of a value that lies on a device has no stream of its caller
                           // to wait for.
                           if (tensor.current->device) batch.wait_for(tensor.current->device->marks);
                           work(batch);
                           batch.then(end);
                         } catch (...) {
                           end(std::current_exception());
                         }
                       });
}

/// What cannot be staged fails all, the operation among them: it would read what its caller may have freed.
void DeviceRounds::stage(Operation& operation) {
  DeviceOperation& there = *operation.device;
  try {
    there.staged = there.link->take_memory(operation.in.bytes().size());
    DeviceLink::Batch batch(*there.link, DeviceLink::Way::kToHost);
    batch.wait_for(there.marks);
    batch.copy(operation.in.bytes(), there.staged.bytes());
    // The operation reads the copy from now on. `taken` says when the copy is there, and the caller's memory
    // free.
    operation.in = {operation.in.type(), there.staged.bytes()};
    batch.then([this, taken = operation.taken](std::exception_ptr error) {
      error ? context_.fail(error) : taken.succeed();
    });
  } catch (...) {
    context_.fail(std::current_exception());
  }
}

bool DeviceRounds::settle_there(Tensor& tensor) {
  const std::shared_ptr<DeviceLink>& link = tensor.current->device->link;
  const bool keeps_any = tensor.on_device ? tensor.on_device->has_residual() : !tensor.residual.empty();
  // A round without loss adds the leftover to its values, which is done on the host.
  if (keeps_any && !tensor.compression->codec->lossy()) return false;
  tensor.twin = link->twin(*tensor.compression->codec);
  if (tensor.twin == nullptr) {
    note_landing(*tensor.compression->codec, link->device());
    return false;
  }
  if (!tensor.on_device || &tensor.on_device->link() != link.get()) {
    // From another device the residual goes by way of the host.
    tensor.settle_on_host();
    tensor.scales_known = false;  // what the tensor agreed elsewhere
    tensor.on_device =
        std::make_unique<DeviceTensor>(link, tensor.spec.elements(), context_.options.residual_type);
  }
  tensor.on_device->prepare(tensor.codec(), tensor.unit_count(), tensor.residual.view());
  tensor.residual.clear();
  return true;
}

void DeviceRounds::note_landing(const compress::Codec& codec, const compress::Device& device) {
  if (!landing_codecs_.emplace(codec.name()).second) return;
  context_.notices.add(fmt::format(
      "codec {} cannot encode on {}: gradients there are copied to the host as 32-bit floats, and sums back",
      codec.name(), device.name()));
}

void DeviceRounds::land(Tensor& tensor, Next next) {
  Operation& operation = *tensor.current;
  DeviceOperation& there = *operation.device;
  there.landing = there.link->take_pinned(tensor.spec.elements() * sizeof(float));
  // The operation's own spans show the landing from here on, so that the host's code finds its floats there.
  there.in = operation.in;
  there.out = operation.out;
  const std::span<float> here = floats_of(there.landing);
  operation.in = here;
  // The sum of a push stays on the host: a pull brings it where it is wanted.
  there.lands = operation.verb != Operation::Verb::kPush;
  if (there.lands) operation.out = here;
  if (operation.verb == Operation::Verb::kPull) return;
  const auto fetch = [&operation, here](DeviceLink::Batch& batch) {
    if (operation.scatter.empty()) return batch.fetch(operation.device->in, here);
    std::size_t at = 0;
    for (const ArrayView piece : operation.scatter) {
      batch.fetch(piece, here.subspan(at, piece.size()));
      at += piece.size();
    }
  };
  submit(tensor, *there.link, DeviceLink::Way::kToHost, fetch, std::move(next));
}

void DeviceRounds::lift(Tensor& tensor, Next next) {
  Operation& operation = *tensor.current;
  // Before the job ends: ended() would otherwise copy again.
  operation.device->lands = false;
  const auto bring = [&operation](DeviceLink::Batch& batch) {
    const std::span<const float> here = operation.out.floats();
    if (operation.scatter.empty()) return batch.bring(here, operation.device->out);
    std::size_t at = 0;
    for (const ArrayView piece : operation.scatter) {
      batch.bring(here.subspan(at, piece.size()), piece);
      at += piece.size();
    }
  };
  submit(tensor, *operation.device->link, DeviceLink::Way::kToDevice, bring, std::move(next));
}

void DeviceRounds::copy_value(Tensor& tensor, Next next) {
  const Operation& operation = *tensor.current;
  const bool from_device = tensor.value_on_device;
  const std::span<const float> value =
      from_device ? tensor.on_device->value() : std::span<float>(tensor.value);
  DeviceLink& link = operation.device ? *operation.device->link : tensor.on_device->link();
  const auto way = operation.device ? DeviceLink::Way::kToDevice : DeviceLink::Way::kToHost;
  // Within one device, memory is copied without crossing the bus, and does not count as traffic.
  const bool is_elsewhere = from_device && &tensor.on_device->link() != &link;
  const auto copy = [value, out = operation.out, from_device, is_elsewhere,
                     to_device = operation.device.has_value()](DeviceLink::Batch& batch) {
    if (!to_device) return batch.fetch_rounded(value, out);
    if (!from_device) return batch.bring(value, out);
    if (!is_elsewhere || out.is_float32()) return batch.copy_floats(value, out);
    // A kernel may not reach another device's memory; a copy does.
    const std::span<float> here = batch.widened(value.size());
    batch.copy(std::as_bytes(value), std::as_writable_bytes(here));
    batch.copy_floats(here, out);
  };
  submit(tensor, link, way, copy, std::move(next));
}

void DeviceRounds::encode(Tensor& tensor, std::size_t index, Encoded next) {
  ++tensor.jobs;
  const std::int32_t priority = tensor.current->priority;
  // On the pool again once the device is done: its own threads must not be kept.
  const auto arrived = [this, &tensor, index, priority, next = std::move(next)](
                           std::shared_ptr<DevicePayload> from, std::exception_ptr error) {
    context_.pool.submit(priority, [this, &tensor, index, from = std::move(from), error, next] {
      take(tensor, index, from, error, next);
    });
  };
  context_.pool.submit(priority, [this, &tensor, index, arrived] {
    const auto begin = Clock::now();
    // For the span, which ends when the device is done, on another thread.
    tensor.parts[index].began = begin;
    const Operation& operation = *tensor.current;
    try {
      DeviceRound round = tensor.device_round();
      round.position = encoder_.position_of(tensor);
      tensor.on_device->encode(round, tensor.parts[index].part, operation.in, operation.scatter,
                               operation.device->marks, arrived);
    } catch (...) {
      // The same way as a payload, so that the job ends once.
      arrived(nullptr, std::current_exception());
    }
    context_.count_codec_time(begin);
  });
}

/// What the device has encoded, in the pool.
void DeviceRounds::take(Tensor& tensor, std::size_t index, const std::shared_ptr<DevicePayload>& from,
                        std::exception_ptr error, const Encoded& next) {
  PushPayload payload;
  payload.flags = tensor.push_flags();
  if (!error) {
    const auto begin = Clock::now();
    try {
      // Here and not in the callback: the checksum of finish() reads every byte, on a thread of the pool.
      payload.bytes = from->take(tensor.device_round().segmented);
      if (from->nonfinite()) payload.flags |= transport::kFlagNonfinite;
      encoder_.finish(tensor, index, payload);
      context_.spans.note(Stage::kEncode, tensor, index, tensor.parts[index].began,
                          payload.bytes.size_bytes());
    } catch (...) {
      error = std::current_exception();
    }
    context_.count_codec_time(begin);
  }
  context_.loop->post(
      [next, payload = std::move(payload), error]() mutable { next(std::move(payload), error); });
}

void DeviceRounds::decode(Tensor& tensor, std::size_t index, const Frame& answer, Next next) {
  const auto begin = Clock::now();
  const auto end = [this, &tensor, index, begin, next = std::move(next)](std::shared_ptr<void> used,
                                                                         std::exception_ptr error) {
    const auto bytes = tensor.parts[index].part.count * sizeof(float);
    if (!error) context_.spans.note(Stage::kDecode, tensor, index, begin, bytes);
    // `used` dies in the loop: memory of a device must not be freed on the device's own thread.
    context_.loop->post([next, used = std::move(used), error] { next(error); });
  };
  const Operation& operation = *tensor.current;
  DeviceRound round = tensor.device_round();
  DeviceAnswer reply{answer.payload.bytes(), 0, static_cast<compress::ReplyKind>(answer.header.reply),
                     static_cast<float>(operation.scale)};
  try {
    AnswerDecoder::expect_room(operation, tensor.parts[index].part);
    reply.ways = decoder_.ways_of(answer.header);
    if (answer.header.kind == transport::Kind::kValue) {  // floats as they are, which is what none sends
      round = {operation.device->link->twin(*compress::make({})), nullptr, false};
      reply.ways = 1;
      reply.kind = compress::ReplyKind::kSame;
    } else {
      tensor.expect_codec_of_push(answer.header);
    }
    tensor.on_device->decode(round, tensor.parts[index].part, reply, operation.out, operation.scatter,
                             operation.device->marks, end);
  } catch (...) {
    end(nullptr, std::current_exception());
  }
  context_.count_codec_time(begin);
}

}  // namespace gradwire::kvstore
