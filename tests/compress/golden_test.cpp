// 2bit against what MXNet 1.9.1 sent and answered (tests/golden/README.md).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "compress/codecs.h"

namespace gradwire::compress {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  template <typename T>
  std::vector<T> array(std::size_t count) {
    if (position_ + count * sizeof(T) > bytes_.size())
      throw std::runtime_error("the golden file is truncated");
    std::vector<T> values(count);
    std::memcpy(values.data(), bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
    return values;
  }
  template <typename T>
  T one() {
    return array<T>(1)[0];
  }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

struct Push {
  std::vector<float> grad;
  std::vector<std::byte> packed;
  std::vector<float> residual;
};

struct Step {
  std::vector<Push> pushes;
  std::vector<float> pulled;
};

struct Key {
  float threshold;
  std::size_t elements;
  std::vector<Step> steps;
};

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    Reader reader(std::string(GRADWIRE_SOURCE_DIR) + "/tests/golden/mxnet191_2bit.bin");
    if (reader.one<std::uint32_t>() != 0x31475747) throw std::runtime_error("not a golden file");
    std::vector<Key> found;
    for (auto captures = reader.one<std::uint32_t>(); captures > 0; --captures) {
      const auto threshold = reader.one<float>();
      const auto workers = reader.one<std::uint32_t>();
      for (auto sizes = reader.one<std::uint32_t>(); sizes > 0; --sizes) {
        Key key{threshold, reader.one<std::uint32_t>(), std::vector<Step>(3)};
        for (Step& step : key.steps) {
          for (std::uint32_t w = 0; w < workers; ++w) {
            auto grad = reader.array<float>(key.elements);
            auto packed = reader.array<std::byte>((key.elements + 15) / 16 * 4);
            step.pushes.push_back({std::move(grad), std::move(packed), reader.array<float>(key.elements)});
          }
          step.pulled = reader.array<float>(key.elements);
        }
        found.push_back(std::move(key));
      }
    }
    if (!reader.at_end()) throw std::runtime_error("the golden file is too long");
    return found;
  }();
  return all;
}

/// Equal bits; every NaN counts as the same value, as a processor may choose its bits.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

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
