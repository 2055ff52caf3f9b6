// EngineThread between rounds: what it keeps of a tensor, and what servers keep of its parts, is read and put
// back.
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "compress/codecs.h"
#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Kind;
using Verb = EngineThread::Operation::Verb;

namespace {

/// Tells compressions apart whose scales mean different things.
std::string name_of(const Compression& compression) {
  return fmt::format("{} reply={}", compress::canonical_spec(compression.codec->spec()),
                     static_cast<int>(compression.reply));
}

}  // namespace

Ticket EngineThread::parts_of(KeyId key, std::vector<Part>& parts) {
  return between_rounds({key}, [this, key, &parts] {
    for (const PartState& state : tensors_[key]->parts) parts.push_back(state.part);
  });
}

Ticket EngineThread::read_tensor(KeyId key, TensorState& state) {
  return between_rounds({key}, [this, key, &state] {
    const Tensor& tensor = *tensors_[key];
    state.step = tensor.step;
    state.residual = tensor.on_device ? tensor.on_device->fetch_residual() : tensor.residual;
    if (!tensor.scales_known) return;
    state.scales = tensor.on_device ? tensor.on_device->fetch_scales() : tensor.scales;
    state.compression = name_of(*tensor.compression);
  });
}

Ticket EngineThread::write_tensor(KeyId key, const TensorState& state) {
  return between_rounds({key}, [this, key, &state] {
    Tensor& tensor = *tensors_[key];
    tensor.has_before = false;
    settle_on_host(tensor);
    tensor.step = state.step;
    tensor.value_current = tensor.is_shown = false;
    tensor.forget_weight();
    tensor.residual = state.residual;
    tensor.scales = state.scales;
    tensor.restored_scales_of = state.compression;
    take_restored_scales(tensor);
  });
}

const std::shared_ptr<const Compression>& EngineThread::compression_of(const Tensor& tensor) const {
  return tensor.own_compression ? tensor.own_compression : compression_;
}

/// Whether what a round was encoded by is what the next one will be: another thread may have pushed while
/// this was set. By name: it may be the same.
bool EngineThread::is_in_force(const Tensor& tensor) const {
  const auto& now = compression_of(tensor);
  return tensor.compression == now || name_of(*tensor.compression) == name_of(*now);
}

/// A checkpoint's wait for the codec that agreed them, which may be set after it was loaded, until a push.
void EngineThread::take_restored_scales(Tensor& tensor) {
  const auto& in_force = compression_of(tensor);
  tensor.use(in_force);
  tensor.scales_known = !tensor.scales.empty() && tensor.scales.size() == tensor.unit_count() &&
                        tensor.restored_scales_of == name_of(*in_force);
}

/// Scales are of the codec that agreed them. The same codec again goes on with them.
void EngineThread::renew_scales(Tensor& tensor, const Compression& before) {
  if (name_of(before) == name_of(*compression_of(tensor))) return;
  tensor.scales_known = tensor.scales_known_before = false;
  if (!tensor.restored_scales_of.empty()) take_restored_scales(tensor);
}

Ticket EngineThread::read_state(KeyId key, std::size_t part, Buffer& state) {
  return submit_state(Verb::kReadState, Kept::kAll, key, part, state);
}

Ticket EngineThread::write_state(KeyId key, std::size_t part, Buffer& state) {
  return submit_state(Verb::kWriteState, Kept::kAll, key, part, state);
}

Ticket EngineThread::read_optimizer(KeyId key, std::size_t part, Buffer& state) {
  return submit_state(Verb::kReadState, Kept::kOptimizer, key, part, state);
}

Ticket EngineThread::write_optimizer(KeyId key, std::size_t part, Buffer& state, std::uint64_t load) {
  return submit_state(Verb::kWriteState, Kept::kOptimizer, key, part, state, load);
}

Ticket EngineThread::submit_state(Verb verb, Kept kept, KeyId key, std::size_t part, Buffer& state,
                                  std::uint64_t number) {
  Operation operation;
  operation.verb = verb;
  operation.part = part;
  operation.state = &state;
  operation.kept = kept;
  operation.number = number;
  const Ticket done = operation.done;
  submit(key, std::move(operation));
  return done;
}

void EngineThread::start_state(Tensor& tensor) {
  const Operation& operation = *tensor.current;
  tensor.parts_left = 1;
  ++tensor.pulls;
  if (operation.verb == Verb::kReadState) return send(tensor, operation.part, Kind::kReadState, {}, 0);
  send(tensor, operation.part, Kind::kWriteState, operation.state->share(), 0);
}

}  // namespace gradwire::kvstore
