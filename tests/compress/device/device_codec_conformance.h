// The suite that every kind of device passes: DeviceCodec's promises, held against the Codec that it is the
// twin of. A kind joins by instantiating DeviceCodecConformance with its entry and specs_with_twin(),
// and DeviceGolden with its entry; a test of its own says which codecs have no twin.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "compress/suggestions.h"
#include "tests/compress/codec_cases.h"
#include "tests/compress/device/test_device.h"

namespace gradwire::compress {

using DeviceCase = std::tuple<TestDeviceEntry, std::string>;  ///< the kind, the spec of a codec

class DeviceCodecConformance : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    const auto& [entry, spec] = GetParam();
    const std::string missing = entry.missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    device_ = entry.open();
    codec_ = make(parse_spec(spec));
    twin_ = device_->twin(parse_spec(spec));
    ASSERT_NE(twin_, nullptr);
  }

  std::unique_ptr<TestDevice> device_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<DeviceCodec> twin_;
};

/// What MXNet sent, which one codec makes in all its thresholds.
class DeviceGolden : public testing::TestWithParam<TestDeviceEntry> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam().missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    device_ = GetParam().open();
  }

  std::unique_ptr<TestDevice> device_;
};

using MakeTwin = std::unique_ptr<DeviceCodec> (*)(const CodecSpec&);

/// The specs under test whose codec has a twin.
inline std::vector<std::string> specs_with_twin(MakeTwin make_twin) {
  std::vector<std::string> specs = specs_under_test();
  std::erase_if(specs, [&](const std::string& spec) { return make_twin(parse_spec(spec)) == nullptr; });
  return specs;
}

/// Rows of the table that a kind of device has no twin for, "int8, int4".
inline std::string codecs_without_twin(MakeTwin make_twin) {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : codecs()) {
    if (make_twin({std::string(entry.name), {}}) == nullptr) names.push_back(entry.name);
  }
  return join(names);
}

inline std::string device_name(const testing::TestParamInfo<TestDeviceEntry>& info) {
  return info.param.name;
}

inline std::string device_case_name(const testing::TestParamInfo<DeviceCase>& info) {
  std::string name = std::get<0>(info.param).name + "_";
  for (char c : std::get<1>(info.param)) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace gradwire::compress
