// The checks of addresses that every DeviceCodec makes.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <string_view>

#include "compress/device/device_codec.h"

namespace gradwire::compress {

/// Throws std::invalid_argument unless `address` is a multiple of kDeviceAlignment. `what` lies there: "the
/// reply".
void expect_aligned(std::string_view codec, std::string_view what, const void* address);

/// Throws std::invalid_argument unless there is a report and an aligned scratch of scratch_bytes.
void expect_work(std::string_view codec, const DeviceWork& work, std::size_t scratch_bytes);

/// Throws std::invalid_argument unless every payload lies aligned and inside its own stride.
void expect_block(std::string_view codec, const DevicePayloads& payloads);

/// For codecs whose payloads all have max_encoded_size() bytes: throws as expect_ways(),
/// expect_payload_bytes() and expect_block().
void expect_round(const Codec& codec, const DevicePayloads& payloads, std::size_t elements);

}  // namespace gradwire::compress
