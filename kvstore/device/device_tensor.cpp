#include "kvstore/device/device_tensor.h"

#include <algorithm>
#include <cstring>

#include "kvstore/residual.h"

namespace gradwire::kvstore {
namespace {

using compress::DeviceReport;
using compress::kDeviceAlignment;
using compress::UnitScale;

/// The next multiple of kDeviceAlignment, of bytes or of floats.
constexpr std::size_t padded(std::size_t count) {
  return (count + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

/// A report in pinned memory, behind `bytes` of payload.
DeviceReport* report_behind(transport::Buffer& pinned, std::size_t bytes) {
  // The device writes the report, at an address that suits it.
  std::byte* const at = pinned.bytes().data() + padded(bytes);
  std::memset(at, 0, sizeof(DeviceReport));
  return reinterpret_cast<DeviceReport*>(at);
}

const compress::Codec& codec_of(const DeviceRound& round) {
  if (round.segmented != nullptr) return *round.segmented;
  return round.twin->codec();
}

}  // namespace

DevicePayload::DevicePayload(DeviceLink& link, const compress::Codec& codec, std::size_t elements)
    : pinned_(link.take_pinned(padded(codec.max_encoded_size(elements)) + sizeof(DeviceReport))),
      report_(report_behind(pinned_, codec.max_encoded_size(elements))) {}

transport::Buffer DevicePayload::take(const compress::Segmented* segmented) {
  const std::size_t bytes =
      segmented == nullptr ? segment_bytes.front() : segmented->frame(segment_bytes, pinned_.bytes());
  return pinned_.share(0, bytes);
}

void DeviceTensor::prepare(const compress::Codec& codec, std::size_t units, ConstArrayView residual) {
  const bool needs_residual = residual_type_ && (codec.lossy() || !residual.empty()) && !residual_;
  // Where several tensors travel as one, units are counted by segment, and otherwise by element.
  if (codec.agrees_scales() && units_ != units) {
    scales_ = link_->allocate(units * sizeof(UnitScale));
    units_ = units;
    // It has room for another number of scales.
    scales_before_.reset();
  }
  if (!needs_residual) return;
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToDevice);
  make_residual(batch);
  if (!residual.empty()) batch.cross(residual.bytes().data(), residual_.get(), residual.bytes().size());
  batch.finish();
}

/// All of it; empty where there is none.
ArrayView DeviceTensor::residual() const {
  if (!residual_) return {};
  return {*residual_type_, {residual_.get(), elements_ * transport::bytes_of(*residual_type_)}};
}

void DeviceTensor::make_residual(DeviceLink::Batch& batch) {
  const std::size_t bytes = elements_ * transport::bytes_of(*residual_type_);
  residual_ = link_->allocate(bytes);
  link_->device().zero(residual_.get(), bytes, batch.stream());
}

void DeviceTensor::store_residual(std::size_t offset, std::span<const float> values) {
  Residual rounded(*residual_type_);
  rounded.assign(values);
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToDevice);
  if (!residual_) make_residual(batch);
  const ArrayView there = residual().subspan(offset, values.size());
  batch.cross(rounded.view().bytes().data(), there.bytes().data(), there.bytes().size());
  batch.finish();
}

std::vector<float> DeviceTensor::fetch_residual() const {
  const ArrayView there = residual();
  std::vector<float> floats(there.size());
  if (floats.empty()) return floats;
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToHost);
  batch.fetch(there, floats);
  batch.finish();
  return floats;
}

std::span<std::byte> DeviceTensor::scale_bytes() const { return {scales_.get(), units_ * sizeof(UnitScale)}; }

std::vector<UnitScale> DeviceTensor::fetch_scales() const {
  std::vector<UnitScale> scales(units_);
  if (scales.empty()) return scales;
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToHost);
  batch.cross(scales_.get(), scales.data(), units_ * sizeof(UnitScale));
  batch.finish();
  return scales;
}

void DeviceTensor::keep_what_was() {
  const std::span<std::byte> residual = this->residual().bytes(), scales = scale_bytes();
  if (!residual.empty() && !residual_before_) residual_before_ = link_->allocate(residual.size());
  if (!scales.empty() && !scales_before_) scales_before_ = link_->allocate(scales.size());
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToHost);
  // On the stream that encodes: what is encoded behind this changes the residual only when it is copied.
  if (!residual.empty()) batch.copy(residual, {residual_before_.get(), residual.size()});
  if (!scales.empty()) batch.copy(scales, {scales_before_.get(), scales.size()});
  batch.then(
      [](const std::exception_ptr&) {});  // what follows on this stream finds it done, or fails as it did
}

void DeviceTensor::roll_back() {
  const std::span<std::byte> residual = this->residual().bytes(), scales = scale_bytes();
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToHost);
  if (!residual.empty()) batch.copy({residual_before_.get(), residual.size()}, residual);
  if (!scales.empty()) batch.copy({scales_before_.get(), scales.size()}, scales);
  batch.finish();
}

std::span<float> DeviceTensor::value() {
  if (!value_) value_ = link_->allocate_floats(elements_);
  return {value_.get(), elements_};
}

std::span<float> DeviceTensor::together() {
  if (!together_) together_ = link_->allocate_floats(elements_);
  return {together_.get(), elements_};
}

std::vector<DeviceTensor::Run> DeviceTensor::runs_of(const DeviceRound& round, const Part& part) {
  if (round.segmented == nullptr) return {{part.offset, part.count, part.offset / compress::kUnitElements}};
  std::vector<Run> runs;
  Run run;
  for (const std::uint32_t elements : round.segmented->segment_elements()) {
    run.count = elements;
    runs.push_back(run);
    run.first += elements;
    run.first_unit += compress::unit_count(elements);
  }
  return runs;
}

compress::Position DeviceTensor::position_of(const DeviceRound& round, const Run& run) {
  compress::Position position = round.position;
  position.offset += run.first_unit * compress::kUnitElements;
  return position;
}

std::span<UnitScale> DeviceTensor::scales_of(const Run& run) const {
  return {reinterpret_cast<UnitScale*>(scales_.get()) + run.first_unit, compress::unit_count(run.count)};
}

void DeviceTensor::encode(const DeviceRound& round, const Part& part, ConstArrayView in,
                          std::span<const ArrayView> pieces, const DeviceLink::Marks& marks, Encoded next) {
  const compress::Codec& codec = codec_of(round);
  auto payload = std::make_shared<DevicePayload>(*link_, codec, part.count);
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToHost);
  batch.wait_for(marks);
  if (!pieces.empty()) {
    // The codec reads one array. Slots of a bucket lie apart.
    in = together();
    std::size_t at = 0;
    for (const ArrayView piece : pieces) {
      batch.copy_as_floats(piece, together().subspan(at, piece.size()));
      at += piece.size();
    }
  }
  ConstArrayView values = in.subspan(part.offset, part.count);
  const ArrayView kept =
      codec.lossy() && residual_ ? residual().subspan(part.offset, part.count) : ArrayView();
  ArrayView rest = kept;
  // Twins work in float32.
  const bool widens_values = !values.is_float32(), widens_rest = !rest.is_float32();
  const std::size_t room = padded(part.count);  // so that the second array begins at a multiple, too
  const auto widened = batch.widened(room * ((widens_values ? 1U : 0U) + (widens_rest ? 1U : 0U)));
  if (widens_values) {
    batch.copy_as_floats(values, widened.first(part.count));
    values = widened.first(part.count);
  }
  if (widens_rest) {
    rest = widened.last(room).first(part.count);
    batch.copy_as_floats(kept, rest.floats());
  }
  const auto staging = batch.staging(codec.max_encoded_size(part.count));
  std::size_t end = 0;
  for (const Run& run : runs_of(round, part)) {
    const std::size_t begin = round.segmented == nullptr ? 0 : round.segmented->segment_after(end);
    const std::size_t at = run.first - part.offset;
    const compress::DeviceWork work{batch.stream(), payload->report(),
                                    batch.scratch(round.twin->scratch_bytes(run.count))};
    const auto residual = rest.empty() ? std::span<float>() : rest.floats().subspan(at, run.count);
    // In a round that does not know them yet, the codec sends floats, which agree them.
    const auto scales = round.scales_known ? scales_of(run) : std::span<UnitScale>();
    payload->segment_bytes.push_back(round.twin->encode(values.floats().subspan(at, run.count), residual,
                                                        scales, staging.subspan(begin),
                                                        position_of(round, run), work));
    end = begin + payload->segment_bytes.back();
  }
  if (widens_rest) batch.round_residual(rest.floats(), kept);
  batch.cross(staging.data(), payload->data(), end);
  batch.then([payload = std::move(payload), next = std::move(next)](std::exception_ptr error) mutable {
    next(std::move(payload), std::move(error));
  });
}

void DeviceTensor::decode(const DeviceRound& round, const Part& part, const DeviceAnswer& answer,
                          ArrayView out, std::span<const ArrayView> pieces, const DeviceLink::Marks& marks,
                          Decoded next) {
  const std::size_t bytes = answer.reply.size();
  auto pinned = std::make_shared<transport::Buffer>(link_->take_pinned(padded(bytes) + sizeof(DeviceReport)));
  DeviceReport* const report = report_behind(*pinned, bytes);
  // The answer's frame ends before the device reads it, and only pinned memory crosses without a thread that
  // waits.
  std::ranges::copy(answer.reply, pinned->bytes().begin());
  const compress::Payload reply = pinned->bytes().first(bytes);
  const auto replies =
      round.segmented == nullptr ? std::vector<compress::Payload>{reply} : round.segmented->split(reply);
  if (!pieces.empty()) out = together();
  DeviceLink::Batch batch(*link_, DeviceLink::Way::kToDevice);
  batch.wait_for(marks);
  const auto staging = batch.staging(bytes);
  batch.cross(reply.data(), staging.data(), bytes);
  auto from = replies.begin();
  for (const Run& run : runs_of(round, part)) {
    const compress::DeviceWork work{batch.stream(), report, {}};
    // They stay on the device: the next round there needs them, and the host does not.
    const auto next_scales = round.twin->codec().agrees_scales() ? scales_of(run) : std::span<UnitScale>();
    const ArrayView to = out.subspan(run.first, run.count);
    const std::span<float> floats = to.is_float32() ? to.floats() : batch.widened(run.count);
    round.twin->decode_reply({*from, staging.data() + (from->data() - reply.data())}, answer.ways,
                             answer.kind, answer.scale, floats, next_scales, work);
    if (!to.is_float32()) batch.copy_floats(floats, to);
    ++from;
  }
  std::size_t at = 0;
  for (const ArrayView piece : pieces) {
    batch.copy_floats(out.floats().subspan(at, piece.size()), piece);
    at += piece.size();
  }
  batch.then([pinned = std::move(pinned), report, ways = answer.ways, twin = round.twin,
              next = std::move(next)](std::exception_ptr error) mutable {
    try {
      // Codes that no peer may send are found by the device. It reports them here, when it is done.
      if (!error) twin->check_report(*report, ways);
    } catch (...) {
      error = std::current_exception();
    }
    next(std::move(pinned), std::move(error));
  });
}

}  // namespace gradwire::kvstore
