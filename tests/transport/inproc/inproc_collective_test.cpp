#include "transport/inproc/inproc_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/transport/collective_outcomes.h"

namespace gradwire::transport {
namespace {

using ::testing::HasSubstr;

/// The bytes that came back and the error that came with them.
std::pair<std::size_t, std::string> failure_of(std::future<Outcome> outcome) {
  auto [buffer, error] = outcome.get();
  return {buffer.size_bytes(), error_of([&] { std::rethrow_exception(error); })};
}

TEST(InprocCollective, ABufferComesBackFromASumThatFails) {
  InprocCollectives collectives(2);
  const auto first = collectives.connect(0);
  auto second = collectives.connect(1);
  auto under_way = start(*first, buffer_of<float>({1, 2}), ElementType::kFloat32);
  second.reset();
  const auto left = HasSubstr("rank 1 left while sums were under way");
  EXPECT_THAT(failure_of(std::move(under_way)), testing::Pair(8, left));
  auto too_late = start(*first, buffer_of<float>({1, 2, 3}), ElementType::kFloat32);
  EXPECT_THAT(failure_of(std::move(too_late)), testing::Pair(12, left));
}

TEST(InprocCollective, EmptyArraysAreSummedAndGathered) {
  InprocCollectives collectives(2);
  const auto first = collectives.connect(0), second = collectives.connect(1);
  for (const auto type : {std::optional(ElementType::kFloat32), std::optional<ElementType>()}) {
    auto one = start(*first, {}, type), other = start(*second, {}, type);
    EXPECT_EQ(values_of<float>(std::move(one)), std::vector<float>());
    EXPECT_EQ(values_of<float>(std::move(other)), std::vector<float>());
  }
}

TEST(InprocCollective, BuffersOfDifferentLengthsComeBackWithAnError) {
  InprocCollectives collectives(2);
  const auto first = collectives.connect(0), second = collectives.connect(1);
  auto two = start(*first, buffer_of<float>({1, 2}), ElementType::kFloat32);
  auto three = start(*second, buffer_of<float>({1, 2, 3}), ElementType::kFloat32);
  const auto differ = HasSubstr("rank 1 came with another type or length than rank 0");
  EXPECT_THAT(failure_of(std::move(two)), testing::Pair(8, differ));
  EXPECT_THAT(failure_of(std::move(three)), testing::Pair(12, differ));
}

}  // namespace
}  // namespace gradwire::transport
