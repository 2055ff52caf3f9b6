#include "compress/device/device_codec.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "compress/payload/payloads.h"

namespace gradwire::compress {

void DeviceCodec::check_report(const DeviceReport& report, std::size_t ways) const {
  expect_counts(codec().name(), report.bad_count, ways);
}

void expect_aligned(std::string_view codec, std::string_view what, const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  if (value != 0 && value % kDeviceAlignment == 0) return;
  throw std::invalid_argument(std::string(codec) + ": " + std::string(what) + " lies at address " +
                              std::to_string(value) + ", a device needs a multiple of " +
                              std::to_string(kDeviceAlignment) + " above 0");
}

void expect_work(std::string_view codec, const DeviceWork& work, std::size_t scratch_bytes) {
  if (work.report == nullptr) {
    throw std::invalid_argument(std::string(codec) +
                                ": no report was given; a device has nowhere to say what it met");
  }
  if (scratch_bytes == 0) return;
  if (work.scratch.size() < scratch_bytes) {
    throw std::invalid_argument(std::string(codec) + ": the scratch has " +
                                std::to_string(work.scratch.size()) + " bytes, expected " +
                                std::to_string(scratch_bytes) + ", as scratch_bytes() says");
  }
  expect_aligned(codec, "the scratch", work.scratch.data());
}

void expect_block(std::string_view codec, const DevicePayloads& payloads) {
  expect_aligned(codec, "the first payload", payloads.device);
  if (payloads.host.size() < 2) return;
  std::size_t largest = 0;
  for (const Payload& payload : payloads.host) largest = std::max(largest, payload.size());
  if (payloads.stride % kDeviceAlignment == 0 && payloads.stride >= largest) return;
  throw std::invalid_argument(std::string(codec) + ": payloads of up to " + std::to_string(largest) +
                              " bytes lie " + std::to_string(payloads.stride) +
                              " bytes apart, a device needs that length at least and a multiple of " +
                              std::to_string(kDeviceAlignment));
}

void expect_round(const Codec& codec, const DevicePayloads& payloads, std::size_t elements) {
  expect_ways(codec.name(), payloads.host.size());
  expect_payload_bytes(codec.name(), payloads.host, codec.max_encoded_size(elements), elements);
  expect_block(codec.name(), payloads);
}

}  // namespace gradwire::compress
