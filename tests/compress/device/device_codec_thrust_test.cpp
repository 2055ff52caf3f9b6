// The device codecs' algorithms without a device: Thrust's CPP backend runs the work items one after the
// other, and threads run them interleaved, so that ThreadSanitizer finds items that touch the same memory.
#include <thrust/system/cpp/execution_policy.h>

#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/compress/device/device_codec_conformance.h"
#include "tests/compress/device/thrust_twins.h"

namespace gradwire::compress {
namespace {

class CppBackend {
 public:
  explicit CppBackend(const DeviceStream&) {}

  template <typename Work>
  void each(std::size_t items, const Work& work) {
    for_each_item(thrust::cpp::par, items, work);
  }
  template <typename Work>
  void fold(std::size_t groups, const Work& work) {
    each(groups, FoldGroup<Work>{work});
  }
};

class ThreadsBackend {
 public:
  explicit ThreadsBackend(const DeviceStream&) {}

  template <typename Work>
  void each(std::size_t items, const Work& work) {
    constexpr std::size_t kThreads = 3;
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([=] {
        for (std::size_t i = t; i < items; i += kThreads) work(i);
      });
    }
  }
  template <typename Work>
  void fold(std::size_t groups, const Work& work) {
    each(groups, FoldGroup<Work>{work});
  }
};

template <typename Backend>
class HostDevice final : public TestDevice {
 public:
  static std::unique_ptr<TestDevice> open() { return std::make_unique<HostDevice>(); }
  static std::string missing() { return {}; }

  std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const override {
    return make_thrust_twin<Backend>(spec);
  }

  // malloc() gives exactly what was asked for to ASan, and 16-byte alignment.
  void* allocate(std::size_t bytes) override { return std::malloc(bytes == 0 ? 1 : bytes); }
  void release(void* memory) override { std::free(memory); }
  void upload(const void* from, void* to, std::size_t bytes) override { copy(from, to, bytes); }
  void download(const void* from, void* to, std::size_t bytes) override { copy(from, to, bytes); }

  std::size_t stream_count() const override { return 3; }
  DeviceStream stream(std::size_t) override { return {}; }
  void finish(const DeviceStream&) override {}

 private:
  static void copy(const void* from, void* to, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
};

TEST(ThrustTwins, AreMissingOnlyWhereThisSaysSo) {
  const std::string missing = codecs_without_twin(make_thrust_twin<CppBackend>);
  for (const char* name : {"none", "fp16", "bf16", "2bit", "int8", "int4", "nf2", "nf4", "fp8", "1bit",
                           "topk", "qsgd", "natural", "terngrad"}) {
    EXPECT_NE(make_thrust_twin<CppBackend>({name, {}}), nullptr) << name;
  }
  if (!missing.empty()) GTEST_SKIP() << "no device twin yet: " << missing;
}

const TestDeviceEntry kDevices[] = {
    {"cpp", HostDevice<CppBackend>::open, HostDevice<CppBackend>::missing},
    {"threads", HostDevice<ThreadsBackend>::open, HostDevice<ThreadsBackend>::missing},
};

INSTANTIATE_TEST_SUITE_P(Thrust, DeviceCodecConformance,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::ValuesIn(specs_with_twin(make_thrust_twin<CppBackend>))),
                         device_case_name);
INSTANTIATE_TEST_SUITE_P(Thrust, DeviceGolden, testing::ValuesIn(kDevices), device_name);

}  // namespace
}  // namespace gradwire::compress
