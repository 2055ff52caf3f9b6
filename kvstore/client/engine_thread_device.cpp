// EngineThread's rounds of tensors that lie on a device. Their parts are encoded and decoded there; where the
// codec has no twin, the floats are landed on the host, handled as any others, and lifted back.
#include <fmt/format.h>

#include <algorithm>

#include "compress/codecs.h"
#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using Verb = EngineThread::Operation::Verb;

namespace {

std::span<float> floats_of(Buffer& landing) {
  return {reinterpret_cast<float*>(landing.bytes().data()), landing.size_bytes() / sizeof(float)};
}

}  // namespace

std::shared_ptr<DeviceLink> EngineThread::link(const std::shared_ptr<compress::Device>& device) {
  const std::lock_guard lock(links_mutex_);
  const auto found = std::ranges::find(links_, device.get(), [](const auto& row) { return row.first; });
  if (found != links_.end()) return found->second;
  return links_.emplace_back(device.get(), std::make_shared<DeviceLink>(device)).second;
}

std::uint64_t EngineThread::bytes_from_devices() const {
  const std::lock_guard lock(links_mutex_);
  std::uint64_t bytes = 0;
  for (const auto& row : links_) bytes += row.second->bytes_to_host();
  return bytes;
}

std::uint64_t EngineThread::bytes_to_devices() const {
  const std::lock_guard lock(links_mutex_);
  std::uint64_t bytes = 0;
  for (const auto& row : links_) bytes += row.second->bytes_to_device();
  return bytes;
}

/// Puts work on a side stream, behind what the operation waits for, and calls next when it is done. A job of
/// the tensor's until then.
void EngineThread::submit_batch(Tensor& tensor, DeviceLink& link, DeviceLink::Way way,
                                std::function<void(DeviceLink::Batch&)> work,
                                void (EngineThread::*next)(Tensor&, std::exception_ptr)) {
  ++tensor.jobs;
  pool_.submit(tensor.current->priority, [this, &tensor, &link, way, work = std::move(work), next] {
    const auto end = [this, &tensor, next](std::exception_ptr error) {
      loop_->post([this, &tensor, next, error] { (this->*next)(tensor, error); });
    };
    try {
      DeviceLink::Batch batch(link, way);
      if (tensor.current->device) batch.wait_for(tensor.current->device->marks);
      work(batch);
      batch.then(end);
    } catch (...) {
      end(std::current_exception());
    }
  });
}

/// What cannot be staged fails all, the operation among them: it would read what its caller may have freed.
void EngineThread::stage_on_device(Operation& operation) {
  DeviceOperation& there = *operation.device;
  try {
    there.staged = there.link->allocate_floats(operation.in.size());
    const std::span<float> staged(there.staged.get(), operation.in.size());
    DeviceLink::Batch batch(*there.link, DeviceLink::Way::kToHost);
    batch.wait_for(there.marks);
    batch.copy(operation.in, staged);
    operation.in = staged;
    batch.then(
        [this, taken = operation.taken](std::exception_ptr error) { error ? fail(error) : taken.succeed(); });
  } catch (...) {
    fail(std::current_exception());
  }
}

void EngineThread::start_push_from_device(Tensor& tensor) {
  settle_on_device(tensor) ? start_push(tensor) : land(tensor);
}

/// Moves what is kept of the tensor to the operation's device. Returns false where the codec has no twin
/// there, and where it is none and a lossy one before it has left something, which the host adds, once.
bool EngineThread::settle_on_device(Tensor& tensor) {
  const std::shared_ptr<DeviceLink>& link = tensor.current->device->link;
  const bool keeps_any = tensor.on_device ? tensor.on_device->has_residual() : !tensor.residual.empty();
  if (keeps_any && !tensor.compression->codec->lossy()) return false;
  tensor.twin = link->twin(*tensor.compression->codec);
  if (tensor.twin == nullptr) {
    notify_of_landing(*tensor.compression->codec, link->device());
    return false;
  }
  if (!tensor.on_device || &tensor.on_device->link() != link.get()) {
    settle_on_host(tensor);
    tensor.scales_known = false;  // what the tensor agreed elsewhere
    tensor.on_device = std::make_unique<DeviceTensor>(link, tensor.spec.elements());
  }
  tensor.on_device->prepare(tensor.codec(), tensor.unit_count(), tensor.residual);
  tensor.residual = {};
  return true;
}

void EngineThread::settle_on_host(Tensor& tensor) {
  if (!tensor.on_device) return;
  tensor.residual = tensor.on_device->fetch_residual();
  tensor.scales_known = false;
  tensor.on_device.reset();
}

void EngineThread::notify_of_landing(const compress::Codec& codec, const compress::Device& device) {
  if (!landing_codecs_.emplace(codec.name()).second) return;
  notify(fmt::format(
      "codec {} cannot encode on {}: gradients there are copied to the host as 32-bit floats, and sums back",
      codec.name(), device.name()));
}

/// Gives the operation room on the host for its floats, and brings those that it pushes.
void EngineThread::land(Tensor& tensor) {
  Operation& operation = *tensor.current;
  DeviceOperation& there = *operation.device;
  there.landing = there.link->take_pinned(tensor.spec.elements() * sizeof(float));
  there.in = operation.in;
  there.out = operation.out;
  const std::span<float> here = floats_of(there.landing);
  operation.in = here;
  there.lands = operation.verb != Verb::kPush;
  if (there.lands) operation.out = here;
  if (operation.verb == Verb::kPull) return start_pull(tensor);
  const auto fetch = [&operation, here](DeviceLink::Batch& batch) {
    if (operation.scatter.empty())
      return batch.cross(operation.device->in.data(), here.data(), here.size_bytes());
    std::size_t at = 0;
    for (const std::span<float> piece : operation.scatter) {
      batch.cross(piece.data(), here.data() + at, piece.size_bytes());
      at += piece.size();
    }
  };
  submit_batch(tensor, *there.link, DeviceLink::Way::kToHost, fetch, &EngineThread::landed);
}

void EngineThread::landed(Tensor& tensor, std::exception_ptr error) {
  if (error || tensor.error) return job_done(tensor, error);
  --tensor.jobs;
  try {
    start_push(tensor);
  } catch (...) {  // as in start()
    fail(std::current_exception());
  }
}

/// Brings what has been decoded on the host to where the caller wants it.
void EngineThread::lift(Tensor& tensor) {
  Operation& operation = *tensor.current;
  operation.device->lands = false;
  const auto bring = [&operation](DeviceLink::Batch& batch) {
    const std::span<const float> here = operation.out;
    if (operation.scatter.empty())
      return batch.cross(here.data(), operation.device->out.data(), here.size_bytes());
    std::size_t at = 0;
    for (const std::span<float> piece : operation.scatter) {
      batch.cross(here.data() + at, piece.data(), piece.size_bytes());
      at += piece.size();
    }
  };
  submit_batch(tensor, *operation.device->link, DeviceLink::Way::kToDevice, bring, &EngineThread::job_done);
}

/// Answers a pull with what the last push brought, where at least one of the two is on a device.
void EngineThread::copy_value(Tensor& tensor) {
  const Operation& operation = *tensor.current;
  const bool from_device = tensor.value_on_device;
  const std::span<const float> value =
      from_device ? tensor.on_device->value() : std::span<float>(tensor.value);
  DeviceLink& link = operation.device ? *operation.device->link : tensor.on_device->link();
  const auto way = operation.device ? DeviceLink::Way::kToDevice : DeviceLink::Way::kToHost;
  const bool crosses = from_device != operation.device.has_value();
  const auto copy = [value, out = operation.out, crosses](DeviceLink::Batch& batch) {
    crosses ? batch.cross(value.data(), out.data(), value.size_bytes()) : batch.copy(value, out);
  };
  submit_batch(tensor, link, way, copy, &EngineThread::job_done);
}

void EngineThread::encode_on_device(Tensor& tensor, std::size_t index) {
  ++tensor.jobs;
  const std::int32_t priority = tensor.current->priority;
  // On the pool again once the device is done: its own threads must not be kept.
  const auto take = [this, &tensor, index, priority](std::shared_ptr<DevicePayload> from,
                                                     std::exception_ptr error) {
    pool_.submit(priority, [this, &tensor, index, from = std::move(from), error] {
      Buffer payload;
      std::uint32_t flags = tensor.push_flags();
      std::exception_ptr failed = error;
      if (!failed) {
        const auto begin = Clock::now();
        try {
          payload = from->take(tensor.device_round().segmented);
          if (from->nonfinite()) flags |= transport::kFlagNonfinite;
          make_ready_to_go(tensor, index, payload, flags);
          if (tracer_.is_on())
            note(Stage::kEncode, tensor, index, tensor.parts[index].began, payload.size_bytes());
        } catch (...) {
          failed = std::current_exception();
        }
        codec_nanoseconds_ += static_cast<std::uint64_t>((Clock::now() - begin).count());
      }
      loop_->post([this, &tensor, index, payload = std::move(payload), flags, failed]() mutable {
        encoded(tensor, index, std::move(payload), flags, failed);
      });
    });
  };
  pool_.submit(priority, [this, &tensor, index, take] {
    const auto begin = Clock::now();
    tensor.parts[index].began = begin;
    const Operation& operation = *tensor.current;
    try {
      tensor.on_device->encode(tensor.device_round(), tensor.parts[index].part, operation.in,
                               operation.scatter, operation.device->marks, take);
    } catch (...) {
      take(nullptr, std::current_exception());
    }
    codec_nanoseconds_ += static_cast<std::uint64_t>((Clock::now() - begin).count());
  });
}

/// Runs in the pool.
void EngineThread::decode_on_device(Tensor& tensor, std::size_t index, const Frame& frame) {
  const auto begin = Clock::now();
  const auto end = [this, &tensor, index, begin](std::shared_ptr<void> used, std::exception_ptr error) {
    const auto bytes = tensor.parts[index].part.count * sizeof(float);
    if (tracer_.is_on() && !error) note(Stage::kDecode, tensor, index, begin, bytes);
    loop_->post([this, &tensor, used = std::move(used), error] { job_done(tensor, error); });
  };
  const Operation& operation = *tensor.current;
  DeviceRound round = tensor.device_round();
  DeviceAnswer answer{frame.payload.bytes(), 0, static_cast<compress::ReplyKind>(frame.header.reply),
                      static_cast<float>(operation.scale)};
  try {
    answer.ways = ways_of(frame.header);
    if (frame.header.kind == transport::Kind::kValue) {  // floats as they are, which is what codec none sends
      round = {operation.device->link->twin(*compress::make({})), nullptr, false};
      answer.ways = 1;
      answer.kind = compress::ReplyKind::kSame;
    } else {
      tensor.expect_codec_of_push(frame.header);
    }
    tensor.on_device->decode(round, tensor.parts[index].part, answer, operation.out, operation.scatter,
                             operation.device->marks, end);
  } catch (...) {
    end(nullptr, std::current_exception());
  }
  codec_nanoseconds_ += static_cast<std::uint64_t>((Clock::now() - begin).count());
}

}  // namespace gradwire::kvstore
