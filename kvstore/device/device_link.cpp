#include "kvstore/device/device_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "compress/codecs.h"

namespace gradwire::kvstore {

namespace {

constexpr std::size_t kPinnedBytes = std::size_t{512} << 20;  // that are kept while nobody uses them
constexpr std::chrono::seconds kPatience(10);                 // for callbacks after an error
// Elements that are converted at once on their way between device and host, so that little memory is kept for
// it.
constexpr std::size_t kRun = std::size_t{1} << 18;

}  // namespace

DeviceLink::DeviceLink(std::shared_ptr<compress::Device> device, std::size_t staged_bytes)
    : device_(std::move(device)),
      pinned_(kPinnedBytes,
              [device = device_](std::size_t bytes) {
                const compress::DeviceScope scope(*device);
                return device->allocate_pinned(bytes);
              }),
      memory_(staged_bytes,
              [this](std::size_t bytes) { return allocate(bytes); }) {  // in take_memory() alone
  const compress::DeviceScope scope(*device_);
  for (Lane& lane : lanes_) lane.stream = device_->open_stream();
}

DeviceLink::~DeviceLink() { settle(); }

void DeviceLink::settle() noexcept {
  for (Lane& lane : lanes_) {
    try {
      const compress::DeviceScope scope(*device_);
      device_->finish(*lane.stream);
    } catch (...) {  // NOLINT(bugprone-empty-catch): whose work it was hears of it in then()
    }
  }
  std::unique_lock lock(calls_->mutex);
  calls_->ended.wait_for(lock, kPatience, [this] { return calls_->left == 0; });
}

const compress::DeviceCodec* DeviceLink::twin(const compress::Codec& codec) {
  if (codec.as_float64() != nullptr) return nullptr;  // its name is that of another
  const std::lock_guard lock(twins_mutex_);
  const compress::CodecSpec spec = codec.spec();
  const auto [found, is_new] = twins_.try_emplace(compress::canonical_spec(spec));
  // A null is kept too: a device without a twin is asked once per codec.
  if (is_new) found->second = device_->twin(spec);
  return found->second.get();
}

compress::Device::Memory DeviceLink::allocate(std::size_t size_bytes) {
  const compress::DeviceScope scope(*device_);
  try {
    return device_->allocate(size_bytes);
  } catch (const std::exception&) {
    memory_.free_idle();  // which may be what is missing
    return device_->allocate(size_bytes);
  }
}

std::shared_ptr<float> DeviceLink::allocate_floats(std::size_t count) {
  auto memory = allocate(count * sizeof(float));
  return {memory, reinterpret_cast<float*>(memory.get())};
}

DeviceLink::Batch::Batch(DeviceLink& link, Way way)
    : link_(link), way_(way), lane_(link.lanes_[index(way)]), lock_(lane_.mutex), scope_(*link.device_) {}

DeviceLink::Batch::~Batch() {
  if (handed_on_) return;
  try {
    link_.device_->finish(stream());
  } catch (...) {  // NOLINT(bugprone-empty-catch): its maker is throwing already
  }
}

/// Grows by doubling, and without waiting for the batches that use what is there: they may wait for a
/// gradient.
std::span<std::byte> DeviceLink::Batch::room(std::span<std::byte>& bytes, std::size_t size_bytes) {
  if (bytes.size() < size_bytes) {
    const std::size_t grown = std::max(size_bytes, 2 * bytes.size());
    // The old block stays: work that was queued before still reads or writes it.
    lane_.memory.push_back(link_.allocate(grown));
    bytes = {lane_.memory.back().get(), grown};
  }
  return bytes.first(size_bytes);
}

std::span<std::byte> DeviceLink::Batch::staging(std::size_t size_bytes) {
  return room(lane_.staging, size_bytes);
}

std::span<std::byte> DeviceLink::Batch::scratch(std::size_t size_bytes) {
  return room(lane_.scratch, size_bytes);
}

std::span<float> DeviceLink::Batch::widened(std::size_t count) {
  return {reinterpret_cast<float*>(room(lane_.widened, count * sizeof(float)).data()), count};
}

void DeviceLink::Batch::wait_for(const Marks& marks) {
  for (const auto& mark : marks) link_.device_->wait(stream(), mark);
}

void DeviceLink::Batch::cross(const void* from, void* to, std::size_t size_bytes) {
  link_.device_->copy(from, to, size_bytes, stream());
  link_.crossed_[index(way_)] += size_bytes;
}

void DeviceLink::Batch::fetch(ConstArrayView from, std::span<float> to) {
  if (from.is_float32()) return cross(from.bytes().data(), to.data(), to.size_bytes());
  for (std::size_t at = 0; at < to.size(); at += kRun) {
    const std::span<float> floats = widened(std::min(kRun, to.size() - at));
    copy_as_floats(from.subspan(at, floats.size()), floats);
    cross(floats.data(), to.data() + at, floats.size_bytes());
  }
}

void DeviceLink::Batch::bring(std::span<const float> from, ArrayView to) {
  if (to.is_float32()) return cross(from.data(), to.bytes().data(), from.size_bytes());
  for (std::size_t at = 0; at < from.size(); at += kRun) {
    const std::span<float> floats = widened(std::min(kRun, from.size() - at));
    cross(from.data() + at, floats.data(), floats.size_bytes());
    copy_floats(floats, to.subspan(at, floats.size()));
  }
}

void DeviceLink::Batch::fetch_rounded(std::span<const float> from, ArrayView to) {
  if (to.is_float32()) return cross(from.data(), to.bytes().data(), from.size_bytes());
  for (std::size_t at = 0; at < from.size(); at += kRun) {
    const ArrayView run = to.subspan(at, std::min(kRun, from.size() - at));
    const ArrayView rounded(to.type(), staging(run.bytes().size()));
    copy_floats(from.subspan(at, run.size()), rounded);
    cross(rounded.bytes().data(), run.bytes().data(), run.bytes().size());
  }
}

void DeviceLink::Batch::copy(std::span<const std::byte> from, std::span<std::byte> to) {
  link_.device_->copy(from.data(), to.data(), from.size(), stream());
}

void DeviceLink::Batch::copy_as_floats(ConstArrayView from, std::span<float> to) {
  if (from.is_float32()) return copy(from.bytes(), std::as_writable_bytes(to));
  link_.device_->floats_from_halves(format_of(from.type()), from.bytes().data(), to, stream());
}

void DeviceLink::Batch::copy_floats(std::span<const float> from, ArrayView to) {
  if (to.is_float32()) return copy(std::as_bytes(from), to.bytes());
  link_.device_->halves_from_floats(format_of(to.type()), from, to.bytes().data(), stream());
}

void DeviceLink::Batch::round_residual(std::span<const float> values, ArrayView run) {
  link_.device_->bf16_from_residuals(values, run.bytes().data(), stream());
}

void DeviceLink::Batch::finish() {
  // Before the call: if it throws, waiting once more would not help.
  handed_on_ = true;
  link_.device_->finish(stream());
}

void DeviceLink::Batch::then(compress::Device::Next next) {
  const auto end = [](Calls& calls) {
    const std::lock_guard lock(calls.mutex);
    --calls.left;
    calls.ended.notify_all();
  };
  {
    const std::lock_guard lock(link_.calls_->mutex);
    ++link_.calls_->left;
  }
  try {
    link_.device_->then(
        stream(), [calls = link_.calls_, end, next = std::move(next)](std::exception_ptr error) mutable {
          next(std::move(error));
          next = nullptr;  // what it holds may be of the link's pools
          end(*calls);
        });
  } catch (...) {
    end(*link_.calls_);
    throw;
  }
  // After the call: if it throws, `next` is never called, and the destructor has to wait.
  handed_on_ = true;
}

}  // namespace gradwire::kvstore
