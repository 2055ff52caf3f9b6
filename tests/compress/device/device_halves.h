// Conversions of runs on a device, compared with dense/halves.h: every 16-bit pattern, any float, any length,
// any address.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "compress/dense/halves.h"
#include "compress/device/device.h"

namespace gradwire::compress {

/// A run on the device, from element `shift` of its memory on, so that it need not be aligned.
template <typename T>
class RunOnDevice {
 public:
  RunOnDevice(const Device& device, const DeviceStream& stream, std::vector<T> values, std::size_t shift)
      : device_(device),
        stream_(stream),
        values_(std::move(values)),
        memory_(device.allocate((values_.size() + shift) * sizeof(T))),
        at_(reinterpret_cast<T*>(memory_.get()) + shift) {
    device_.copy(values_.data(), at_, values_.size() * sizeof(T), stream_);
    device_.finish(stream_);
  }
  std::span<T> span() const { return {at_, values_.size()}; }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(at_); }
  std::vector<T> fetched() const {
    std::vector<T> here(values_.size());
    device_.copy(at_, here.data(), here.size() * sizeof(T), stream_);
    device_.finish(stream_);
    return here;
  }

 private:
  const Device& device_;
  const DeviceStream& stream_;
  std::vector<T> values_;
  Device::Memory memory_;
  T* at_;
};

inline void expect_halves_as_on_the_host(const Device& device) {
  using dense::Format;
  device.use();
  const auto stream = device.open_stream();
  std::vector<std::uint16_t> patterns(0x10000);
  for (std::uint32_t p = 0; p < patterns.size(); ++p) patterns[p] = static_cast<std::uint16_t>(p);
  std::vector<float> floats;
  for (const std::uint32_t bits :
       {0x00000000U, 0x80000000U, 0x7f800000U, 0xff800000U, 0x7fc00000U, 0x7f800001U, 0x7f7fffffU,
        0x7f7f8000U, 0x7f7f7fffU, 0x477fefffU, 0x477ff000U, 0xc77ff000U, 0x33000000U, 0x33000001U,
        0x00000001U, 0x3f808000U, 0x3f818000U})
    floats.push_back(std::bit_cast<float>(bits));
  std::mt19937 random(7);
  while (floats.size() < 10'001) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));

  const auto check = [&](std::size_t first, std::size_t count, std::size_t shift) {
    SCOPED_TRACE(testing::Message() << count << " elements from " << first << ", shifted by " << shift);
    const std::vector<std::uint16_t> halves(patterns.begin() + static_cast<std::ptrdiff_t>(first),
                                            patterns.begin() + static_cast<std::ptrdiff_t>(first + count));
    const RunOnDevice<std::uint16_t> from(device, *stream, halves, shift);
    const RunOnDevice<float> to(device, *stream, std::vector<float>(count), shift);
    for (const Format format : {Format::kF16, Format::kBf16}) {
      device.floats_from_halves(format, from.bytes(), to.span(), *stream);
      const auto got = to.fetched();
      std::vector<float> expected(count);
      dense::floats_from_halves(format, std::as_bytes(std::span(halves)), expected);
      for (std::size_t i = 0; i < count; ++i) {
        if (std::isnan(expected[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << halves[i];
        } else {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
              << halves[i];
        }
      }
    }
    const std::vector<float> values(
        floats.begin(), floats.begin() + static_cast<std::ptrdiff_t>(std::min(count, floats.size())));
    const RunOnDevice<float> wide(device, *stream, values, shift);
    const RunOnDevice<std::uint16_t> narrow(device, *stream, std::vector<std::uint16_t>(values.size()),
                                            shift);
    std::vector<std::uint16_t> expected(values.size());
    const auto room = std::as_writable_bytes(std::span(expected));
    for (const Format format : {Format::kF16, Format::kBf16}) {
      device.halves_from_floats(format, wide.span(), narrow.bytes(), *stream);
      dense::halves_from_floats(format, values, room);
      EXPECT_EQ(narrow.fetched(), expected);
    }
    device.bf16_from_residuals(wide.span(), narrow.bytes(), *stream);
    dense::bf16_from_residuals(values, room);
    EXPECT_EQ(narrow.fetched(), expected);
  };
  check(0, patterns.size(), 0);
  for (std::size_t count = 1; count <= 9; ++count) {
    for (std::size_t shift = 0; shift < 4; ++shift) check(0x3c00, count, shift);
  }
  check(0x7c00, 1000, 1);
}

}  // namespace gradwire::compress
