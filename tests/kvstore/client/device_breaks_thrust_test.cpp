// A device whose calls all fail from one of them on, as CUDA's do after an illegal memory access. Whichever
// call that is, the job ends, every worker hears why, and nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/kvstore/device_numbers.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using compress::StreamsDevice;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kElements = 70'000;
const std::string kReason = "an illegal memory access was encountered";

/// An array of rank 0, on its device, and the same of rank 1, on its host.
struct Twin {
  Twin(const std::shared_ptr<StreamsDevice>& device, std::size_t elements,
       ElementType type = ElementType::kFloat32)
      : there(device, std::vector<float>(elements, 1.0F), type), here(elements, 1.0F) {}

  ArrayView view(bool is_there) { return is_there ? there.view() : ArrayView(std::span<float>(here)); }
  OnDevice place(bool is_there) const { return is_there ? there.place() : OnDevice{}; }

  DeviceNumbers there;
  std::vector<float> here;
};

/// They outlive the engines, which may read and write them until they have ended.
struct Arrays {
  explicit Arrays(const std::shared_ptr<StreamsDevice>& device)
      : pushed(device, kElements),
        halves(device, kElements, ElementType::kBfloat16),
        slots{Twin(device, 100), Twin(device, 300)} {}

  Twin pushed, halves;
  std::array<Twin, 2> slots;
};

/// Takes steps until something fails. Pushes of one array overtake each other, so that they are staged.
void train(Engine& engine, const std::shared_ptr<StreamsDevice>& device, Arrays& arrays,
           const std::string& codec, int calls) {
  const bool is_there = engine.rank() == 0;
  engine.compression().set(spec(codec), codec);
  const auto keys = engine.declare(
      std::vector<KeySpec>{{"pushed", {kElements}}, {"halves", {kElements}}, {"a", {100}}, {"b", {300}}});
  const std::array<ArrayView, 2> slots{arrays.slots[0].view(is_there), arrays.slots[1].view(is_there)};
  engine.slots().bind(std::span(keys).subspan(2), slots, is_there ? device : nullptr);
  const ArrayView pushed = arrays.pushed.view(is_there), halves = arrays.halves.view(is_there);
  for (int step = 0; step < 3; ++step) {
    if (is_there && step == 1) device->break_after(calls, kReason);
    std::vector<BegunPush> begun;
    for (int push = 0; push < 3; ++push) {
      begun.push_back(engine.begin_push(keys[0], pushed, 0, arrays.pushed.place(is_there)));
    }
    const Ticket sum = engine.push_pull(keys[1], halves, halves, 0, 0.5F, arrays.halves.place(is_there));
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      engine.slots().mark_ready(slot, arrays.slots.at(slot).place(is_there).stream);
    }
    for (const BegunPush& push : begun) {
      push.taken.wait();
      push.done.wait();
    }
    sum.wait();
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    engine.pull(keys[0], pushed, 0, arrays.pushed.place(is_there)).wait();
    engine.residuals().of(keys[0]);
  }
}

struct Outcome {
  std::array<std::string, 2> errors;  ///< of ranks; empty: it has all values
  bool is_broken = false;             ///< the device, when rank 0 has all values
};

/// A job whose device breaks after so many calls of the second step.
Outcome train_until_it_breaks(const std::string& codec, int calls) {
  Outcome outcome;
  const auto device = std::make_shared<StreamsDevice>();
  Arrays arrays(device);
  try {
    run_job({2, 2}, [&](Engine& engine) {
      try {
        train(engine, device, arrays, codec, calls);
        if (engine.rank() == 0) outcome.is_broken = device->is_broken();
      } catch (const std::exception& error) {
        outcome.errors.at(engine.rank()) = error.what();
        engine.close(error.what());  // as a program that ends with an error that it has not caught
      }
    });
  } catch (const std::exception&) {  // as the ranks', or what a server says of it
  }
  return outcome;
}

class DeviceBreaks : public testing::TestWithParam<const char*> {};

TEST_P(DeviceBreaks, EndsTheJobWhicheverCallFailsFirst) {
  constexpr int kAtOnce = 16;  // some wait for two seconds, until a standstill is found
  int heard = 0;
  bool has_ended_well = false;
  for (int first = 0; first < 2000 && !has_ended_well; first += kAtOnce) {
    std::vector<std::future<Outcome>> jobs;
    for (int calls = first; calls < first + kAtOnce; ++calls) {
      jobs.push_back(std::async(std::launch::async, train_until_it_breaks, GetParam(), calls));
    }
    for (int calls = first; calls < first + kAtOnce; ++calls) {
      const Outcome outcome = jobs[calls - first].get();
      EXPECT_FALSE(outcome.is_broken) << calls << ": nobody was told";
      // Rank 1 may have all before the device of rank 0 breaks.
      EXPECT_THAT(outcome.errors, Each(AnyOf(IsEmpty(), HasSubstr(kReason)))) << calls;
      heard += !outcome.errors[1].empty();
      has_ended_well = outcome.errors[0].empty();
    }
    if (HasFailure()) return;
  }
  EXPECT_TRUE(has_ended_well);
  EXPECT_GT(heard, 20);
}
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceBreaks, testing::Values("none", "int8", "2bit"),
                         [](const auto& info) { return "of_" + std::string(info.param); });

}  // namespace
}  // namespace gradwire::kvstore
