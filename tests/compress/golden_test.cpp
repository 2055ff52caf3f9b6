// 2bit against what MXNet 1.9.1 sent and answered (tests/golden/README.md).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "tests/compress/golden_keys.h"

namespace gradwire::compress {
namespace {

using golden::Key;
using golden::keys;
using golden::Push;
using golden::same;
using golden::Step;

std::unique_ptr<Codec> codec_for(const Key& key, const char* nonfinite) {
  return make({"2bit", {{"threshold", static_cast<double>(key.threshold)}, {"nonfinite", nonfinite}}});
}

TEST(Golden, HoldsAllCaptures) { EXPECT_EQ(keys().size(), 54u); }

TEST(Golden, MxnetModeEqualsMxnetToTheBit) {
  for (const Key& key : keys()) {
    const auto codec = codec_for(key, "mxnet");
    const std::size_t workers = key.steps[0].pushes.size();
    std::vector<std::vector<float>> residuals(workers, std::vector<float>(key.elements));
    for (std::size_t s = 0; s < key.steps.size(); ++s) {
      SCOPED_TRACE("n=" + std::to_string(key.elements) + " step " + std::to_string(s));
      std::vector<std::vector<std::byte>> packed;
      for (std::size_t w = 0; w < workers; ++w) {
        const Push& push = key.steps[s].pushes[w];
        auto& bytes = packed.emplace_back(codec->max_encoded_size(key.elements));
        EXPECT_EQ(codec->encode(push.grad, residuals[w], {}, bytes).bytes, push.packed.size());
        EXPECT_EQ(bytes, push.packed);
        for (std::size_t i = 0; i < key.elements; ++i) {
          ASSERT_TRUE(same(residuals[w][i], push.residual[i]))
              << i << ": " << residuals[w][i] << " " << push.residual[i];
        }
      }
      const std::vector<Payload> payloads(packed.begin(), packed.end());
      std::vector<float> pulled(key.elements);
      codec->decode_sum(payloads, pulled);
      for (std::size_t i = 0; i < key.elements; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(pulled[i]),
                  std::bit_cast<std::uint32_t>(key.steps[s].pulled[i]))
            << i;
      }
      for (ReplyKind kind : {ReplyKind::kExact, ReplyKind::kFp32}) {
        std::vector<std::byte> reply(codec->max_reply_size(key.elements, workers, kind));
        reply.resize(codec->encode_reply(payloads, key.elements, kind, {}, reply).bytes);
        std::vector<float> answered(key.elements, -1);
        codec->decode_reply(reply, workers, kind, answered, {});
        EXPECT_EQ(answered, key.steps[s].pulled);
      }
    }
  }
}

TEST(Golden, SkipModeEqualsMxnetWhereNothingWasNonFinite) {
  std::size_t skipped = 0;
  for (const Key& key : keys()) {
    const auto codec = codec_for(key, "skip");
    for (std::size_t w = 0; w < key.steps[0].pushes.size(); ++w) {
      std::vector<float> residual(key.elements);
      std::vector<bool> tainted(key.elements);
      for (const Step& step : key.steps) {
        const Push& push = step.pushes[w];
        const std::vector<float> before = residual;
        std::vector<std::byte> packed(codec->max_encoded_size(key.elements));
        const Encoded encoded = codec->encode(push.grad, residual, {}, packed);
        bool expect_flag = false;
        for (std::size_t i = 0; i < key.elements; ++i) {
          const std::byte mask{static_cast<std::uint8_t>(0xc0 >> (2 * (i % 4)))};
          if (!std::isfinite(before[i] + push.grad[i])) {
            expect_flag = tainted[i] = true;
            ++skipped;
            ASSERT_EQ(packed[i / 4] & mask, std::byte{0}) << i;
            ASSERT_TRUE(same(residual[i], before[i])) << i;
          } else if (!tainted[i]) {
            ASSERT_EQ(packed[i / 4] & mask, push.packed[i / 4] & mask) << i;
            ASSERT_TRUE(same(residual[i], push.residual[i])) << i;
          }
        }
        EXPECT_EQ(encoded.nonfinite, expect_flag);
      }
    }
  }
  EXPECT_GT(skipped, 100u);
}

}  // namespace
}  // namespace gradwire::compress
