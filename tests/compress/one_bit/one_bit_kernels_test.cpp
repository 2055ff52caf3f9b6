// One bit an element: every SIMD target against the scalar specification, and counted votes against counting.
#include "compress/one_bit/one_bit_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "compress/one_bit/bit_plane_counters.h"
#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::one_bit {
namespace {

/// 0 to 257 elements, and many.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t elements = 0; elements <= 257; ++elements) all.push_back(elements);
  all.insert(all.end(), {4095, 4096, 4099, 65537});
  return all;
}

constexpr SignCode kCodes[] = {{kRoughThreshold, 0.75f, Zeros::kSigned}, {0, 0.75f, Zeros::kMarked}};

/// Values among which words of 32 are all 0, and others have the signs of kZeroWord.
std::vector<float> values_with_zeros(std::size_t elements, unsigned seed, unsigned rarity) {
  auto values = rough_values(elements, seed, rarity);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t word = i / kWordElements;
    if (word % 3 == 1) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (word % 5 == 2) values[i] = (kZeroWord & bit_in_word(i % kWordElements)) != 0 ? 0.5f : -0.5f;
  }
  return values;
}

TEST(OneBitKernels, EncodeEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      for (unsigned rarity : {20u, 4000u}) {
        for (const SignCode& code : kCodes) {
          const auto grad = values_with_zeros(elements, 1, rarity);
          for (bool with_residual : {false, true}) {
            auto expected_residual = values_with_zeros(elements, 2, rarity);
            auto residual = expected_residual;
            std::vector<std::byte> expected(packed_bytes(elements) + 16, std::byte{0xee});
            auto out = expected;
            const bool flag = encode_scalar(grad.data(), with_residual ? expected_residual.data() : nullptr,
                                            elements, code, expected.data());
            EXPECT_EQ(
                encode(grad.data(), with_residual ? residual.data() : nullptr, elements, code, out.data()),
                flag);
            ASSERT_EQ(out, expected) << elements;
            ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
            const float* const kept = with_residual ? residual.data() : nullptr;
            ASSERT_EQ(sent_elements(grad.data(), kept, elements),
                      sent_elements_scalar(grad.data(), kept, elements))
                << elements;
          }
        }
      }
    }
  });
}

TEST(OneBitKernels, DecodeEqualsScalarForAnyBytes) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      auto packed = random_bytes(packed_bytes(elements), 3);
      for (std::size_t word = 0; word < packed.size() / 4; word += 3)
        store(kZeroWord, packed.data() + 4 * word);
      for (SignCode code : kCodes) {
        code.level = -1.5f;
        for (bool add : {false, true}) {
          auto expected = rough_values(elements + 1, 5, 50);
          auto out = expected;
          decode_scalar(packed.data(), elements, code, add, expected.data());
          decode(packed.data(), elements, code, add, out.data());
          ASSERT_EQ(bits(out), bits(expected)) << elements;
        }
      }
    }
  });
}

TEST(BitPlaneCounters, CountWhatTheBitsSay) {
  for (std::size_t ways : {1, 2, 3, 4, 7, 8, 100}) {
    for (std::size_t elements : {1, 31, 32, 63, 64, 65, 257, 1000}) {
      std::vector<std::vector<std::byte>> bytes;
      for (std::size_t w = 0; w < ways; ++w) {
        bytes.push_back(random_bytes(packed_bytes(elements), static_cast<unsigned>(w)));
      }
      const std::vector<Payload> payloads(bytes.begin(), bytes.end());
      std::vector<std::byte> planes(plane_bytes(elements, ways));
      votes_to_planes(payloads, elements, planes.data());
      std::vector<float> sums(elements);
      std::size_t most = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        std::size_t count = 0;
        for (const auto& payload : bytes) count += bit_at(payload.data(), i) ? 1 : 0;
        most = std::max(most, count);
        sums[i] = static_cast<float>(count) - static_cast<float>(ways - count);
      }
      std::vector<float> out(elements);
      EXPECT_EQ(planes_to_sums(planes.data(), ways, elements, out.data()), most);
      EXPECT_EQ(out, sums) << elements << " elements, " << ways << " ways";
      if (elements % 64 != 0) {  // bits beyond the end of hostile payloads are not counted
        std::uint64_t last;
        std::memcpy(&last, planes.data() + planes.size() - 8, 8);
        EXPECT_EQ(last >> elements % 64, 0u);
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::compress::one_bit
