// MpiCollective against sums computed here. One rank is enough for MpiSums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <future>
#include <numeric>

#include "tests/transport/frames.h"
#include "tests/transport/mpi_ranks/ranks.h"

namespace gradwire::transport {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

struct Outcome {
  Buffer values;
  std::exception_ptr error;
};

/// What a Done will have been given.
class Outcomes {
 public:
  Collective::Done done() {
    auto promise = std::make_shared<std::promise<Outcome>>();
    futures_.push_back(promise->get_future());
    return [promise](Buffer values, std::exception_ptr error) {
      promise->set_value({std::move(values), std::move(error)});
    };
  }

  /// Of the i-th done(); throws its error.
  Buffer get(std::size_t i) {
    if (futures_[i].wait_for(kPatience) != std::future_status::ready)
      throw std::runtime_error("sum " + std::to_string(i) + " did not end");
    Outcome outcome = futures_[i].get();
    if (outcome.error) std::rethrow_exception(outcome.error);
    return std::move(outcome.values);
  }

 private:
  std::vector<std::future<Outcome>> futures_;
};

/// The job of this rank for sums.
class SumRank {
 public:
  explicit SumRank(const MpiOptions& options = mpi_options()) : native_(connect_mpi_native(options)) {}
  Collective& sums() { return *native_.collective; }
  Messenger& messenger() { return *native_.messenger; }
  MpiNative& native() { return native_; }
  std::uint32_t rank() { return sums().rank(); }
  std::uint32_t size() { return sums().size(); }

 private:
  MpiNative native_;
};

template <typename T>
Buffer buffer_of(const std::vector<T>& values) {
  return Buffer::borrow(std::as_bytes(std::span(values))).copy();
}

template <typename T>
std::vector<T> values_of(const Buffer& buffer) {
  std::vector<T> values(buffer.size_bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), buffer.bytes().data(), buffer.size_bytes());
  return values;
}

// Small whole numbers: every type here adds them exactly, in any order.
int small_value(std::uint32_t rank, std::size_t i) { return static_cast<int>((i * 7 + rank * 13) % 21) - 10; }

int small_sum(std::uint32_t size, std::size_t i) {
  int sum = 0;
  for (std::uint32_t rank = 0; rank < size; ++rank) sum += small_value(rank, i);
  return sum;
}

const std::vector<std::size_t> kCounts = {0, 1, 2, 7, 1001, 65'537, 300'000};

template <typename T, typename Encode>
void expect_exact_sums(ElementType type, const Encode& encode) {
  SumRank rank;
  Outcomes outcomes;
  for (const std::size_t count : kCounts) {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = encode(small_value(rank.rank(), i));
    rank.sums().all_reduce(buffer_of(values), type, outcomes.done());
  }
  for (std::size_t n = 0; n < kCounts.size(); ++n) {
    std::vector<T> expected(kCounts[n]);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = encode(small_sum(rank.size(), i));
    EXPECT_EQ(values_of<T>(outcomes.get(n)), expected) << kCounts[n];
  }
}

// bfloat16 of a small whole number: the upper half of its float.
std::uint16_t bfloat16_of(int value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
}

// binary16 of a whole number below 2048.
std::uint16_t float16_of(int value) {
  if (value == 0) return 0;
  const unsigned magnitude = static_cast<unsigned>(std::abs(value));
  const int exponent = std::bit_width(magnitude) - 1;
  const unsigned mantissa = (magnitude << (10 - exponent)) & 0x3FFU;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000U : 0U) | static_cast<unsigned>(exponent + 15) << 10 |
                                    mantissa);
}

TEST(MpiSums, OfFloatsAreThoseOfTheRanks) {
  expect_exact_sums<float>(ElementType::kFloat32, [](int value) { return static_cast<float>(value) / 4; });
}
TEST(MpiSums, OfFloat16AreThoseOfTheRanks) {
  expect_exact_sums<std::uint16_t>(ElementType::kFloat16, float16_of);
}
TEST(MpiSums, OfBfloat16AreThoseOfTheRanks) {
  expect_exact_sums<std::uint16_t>(ElementType::kBfloat16, bfloat16_of);
}
TEST(MpiSums, OfInt8WrapAsTheyDoInMemory) {
  expect_exact_sums<std::int8_t>(ElementType::kInt8,
                                 [](int value) { return static_cast<std::int8_t>(value * 12); });
}
TEST(MpiSums, OfInt16WrapAsTheyDoInMemory) {
  expect_exact_sums<std::int16_t>(ElementType::kInt16,
                                  [](int value) { return static_cast<std::int16_t>(value * 3001); });
}
TEST(MpiSums, OfInt32WrapAsTheyDoInMemory) {
  expect_exact_sums<std::int32_t>(ElementType::kInt32, [](int value) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(value) * 200'000'003U);
  });
}

// Sums whose order matters: the bound of any order, |error| <= (n - 1) * 2^-24 * sum of magnitudes.
TEST(MpiSums, OfAnyFloatsAreWithinTheBoundOfTheirRounding) {
  SumRank rank;
  constexpr std::size_t kCount = 100'003;
  const auto value_of = [](std::uint32_t of, std::size_t i) {
    return static_cast<float>(static_cast<double>((i * 2654435761U + of * 40503U) % 1000003U) / 1000003.0 -
                              0.5);
  };
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = value_of(rank.rank(), i);
  Outcomes outcomes;
  rank.sums().all_reduce(buffer_of(values), ElementType::kFloat32, outcomes.done());
  const auto sums = values_of<float>(outcomes.get(0));
  for (std::size_t i = 0; i < kCount; ++i) {
    double exact = 0, magnitudes = 0;
    for (std::uint32_t of = 0; of < rank.size(); ++of) {
      exact += value_of(of, i);
      magnitudes += std::abs(value_of(of, i));
    }
    ASSERT_LE(std::abs(sums[i] - exact), (rank.size() - 1) * 0x1p-24 * magnitudes) << i;
  }
}

TEST(MpiSums, SeveralAreUnderWayAtOnceAndStayApart) {
  constexpr int kSums = 200;
  SumRank rank;
  Outcomes outcomes;
  for (int n = 0; n < kSums; ++n) {
    const std::vector<std::int32_t> values(static_cast<std::size_t>(1 + n * 37 % 5000), n);
    rank.sums().all_reduce(buffer_of(values), ElementType::kInt32, outcomes.done());
    if (n % 10 == 0) {  // between them, gathers
      rank.sums().all_gather(buffer_of(std::vector<std::uint32_t>{rank.rank()}), [](Buffer, auto) {});
    }
  }
  for (int n = 0; n < kSums; ++n) {
    EXPECT_THAT(values_of<std::int32_t>(outcomes.get(static_cast<std::size_t>(n))),
                Each(n * static_cast<int>(rank.size())));
  }
}

TEST(MpiSums, ComeBackInTheMemoryThatWasGiven) {
  SumRank rank;
  Outcomes outcomes;
  Buffer values = buffer_of(std::vector<float>(1000, 1.0F));
  const std::byte* where = values.bytes().data();
  rank.sums().all_reduce(std::move(values), ElementType::kFloat32, outcomes.done());
  EXPECT_EQ(outcomes.get(0).bytes().data(), where);
}

TEST(MpiSums, LongArraysGoInPieces) {
  MpiOptions options = mpi_options();
  options.largest_message_bytes = 1001;  // no multiple of any element but the smallest
  SumRank rank(options);
  Outcomes outcomes;
  constexpr std::size_t kCount = 5003;
  std::vector<std::int32_t> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = small_value(rank.rank(), i);
  rank.sums().all_reduce(buffer_of(values), ElementType::kInt32, outcomes.done());
  rank.sums().all_gather(buffer_of(values), outcomes.done());
  const auto sums = values_of<std::int32_t>(outcomes.get(0));
  const auto all = values_of<std::int32_t>(outcomes.get(1));
  ASSERT_EQ(all.size(), kCount * rank.size());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(sums[i], small_sum(rank.size(), i)) << i;
    for (std::uint32_t of = 0; of < rank.size(); ++of) ASSERT_EQ(all[of * kCount + i], small_value(of, i));
  }
}

TEST(MpiSums, GathersGiveEveryBlockInRankOrder) {
  SumRank rank;
  Outcomes outcomes;
  for (const std::size_t count : kCounts) {
    const std::vector<std::uint8_t> block(count, static_cast<std::uint8_t>(rank.rank() + count));
    rank.sums().all_gather(buffer_of(block), outcomes.done());
  }
  for (std::size_t n = 0; n < kCounts.size(); ++n) {
    std::vector<std::uint8_t> expected;
    for (std::uint32_t of = 0; of < rank.size(); ++of)
      expected.insert(expected.end(), kCounts[n], static_cast<std::uint8_t>(of + kCounts[n]));
    EXPECT_EQ(values_of<std::uint8_t>(outcomes.get(n)), expected) << kCounts[n];
  }
}

TEST(MpiSums, TheControlPlaneHasWorkersAlone) {
  SumRank rank;
  EXPECT_EQ(rank.sums().name(), "mpi");
  EXPECT_EQ(rank.messenger().world().servers, 0u);
  EXPECT_EQ(rank.messenger().world().workers, rank.size());
  EXPECT_EQ(rank.messenger().self(), (Node{Role::kWorker, rank.rank()}));
  EXPECT_EQ(rank.messenger().exchange("meet", "x", kPatience).size(), rank.size());
  EXPECT_THROW(rank.messenger().send({Role::kServer, 0}, one(make_frame(Kind::kPush, 1))),
               std::invalid_argument);
}

TEST(MpiSums, BytesThatAreNoWholeElementsAreInvalidArguments) {
  SumRank rank;
  EXPECT_THROW(rank.sums().all_reduce(Buffer::allocate(6), ElementType::kFloat32, {}), std::invalid_argument);
  EXPECT_THROW(rank.sums().all_reduce(Buffer::allocate(1), ElementType::kBfloat16, {}),
               std::invalid_argument);
}

TEST(MpiSums, AfterLeavingThereAreNone) {
  SumRank rank;
  Outcomes outcomes;
  rank.messenger().leave(kPatience);
  rank.sums().all_reduce(buffer_of(std::vector<float>(10)), ElementType::kFloat32, outcomes.done());
  EXPECT_THAT(error_of([&] { outcomes.get(0); }), HasSubstr("has left the job"));
}

TEST(MpiSums, AfterAFailureEveryOneEndsWithTheFirstCause) {
  SumRank rank;
  Outcomes outcomes;
  error_of([&] { rank.messenger().exchange("meet", "", kPatience); });  // others may be quicker to fail
  rank.messenger().fail("the disk is full");
  rank.sums().all_reduce(buffer_of(std::vector<float>(10)), ElementType::kFloat32, outcomes.done());
  rank.sums().all_gather(buffer_of(std::vector<float>(10)), outcomes.done());
  EXPECT_THAT(error_of([&] { outcomes.get(0); }), HasSubstr("TransportError: the disk is full"));
  EXPECT_THAT(error_of([&] { outcomes.get(1); }), HasSubstr("TransportError: the disk is full"));
}

TEST(MpiManySums, ACollectiveThatIsClosedTooEarlyFailsTheJob) {
  std::vector<float> values(10);
  SumRank rank;
  Ear ear;
  rank.messenger().attach(ear);
  error_of([&] { rank.messenger().exchange("meet", "", kPatience); });  // others may be quicker to fail
  if (rank.rank() == 1) {
    Outcomes outcomes;
    rank.sums().all_reduce(Buffer::borrow(std::as_bytes(std::span(values))), ElementType::kFloat32,
                           outcomes.done());
    rank.native().collective.reset();
    EXPECT_THAT(error_of([&] { outcomes.get(0); }), HasSubstr("worker 1 closed its Collective while 1 of"));
  }
  EXPECT_THAT(ear.failures(1), Each(HasSubstr("worker 1 closed its Collective while 1 of its sums")));
  EXPECT_EQ(ear.failures(1).size(), 1u);
  rank.messenger().detach();
}

}  // namespace
}  // namespace gradwire::transport
