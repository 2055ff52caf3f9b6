// What a format cannot hold is reported as an infinity is: from where IEEE rounding makes one of it. The
// largest value is sent, and the rest kept.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "tests/compress/codec_cases.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress {
namespace {

constexpr float kF16Largest = 65504;
constexpr float kF16Beyond = 65520;  // from here on the nearest binary16 is infinity
constexpr float kBf16Largest = 0x1.fep127f;
constexpr float kBf16Beyond = 0x1.ffp127f;

struct Edge {
  const char* spec;
  float largest;
  float beyond;
};

void PrintTo(const Edge& edge, std::ostream* out) { *out << edge.spec; }

constexpr Edge kEdges[] = {
    {"fp16", kF16Largest, kF16Beyond},
    {"bf16", kBf16Largest, kBf16Beyond},
    {"topk:ratio=1,values=fp16", kF16Largest, kF16Beyond},
    {"topk:ratio=1,values=bf16", kBf16Largest, kBf16Beyond},
    {"randomk:ratio=1,values=fp16", kF16Largest, kF16Beyond},
    {"randomk:ratio=1,values=bf16", kBf16Largest, kBf16Beyond},
};

class BeyondFormat : public testing::TestWithParam<Edge> {
 protected:
  std::unique_ptr<Codec> codec_ = make(parse_spec(GetParam().spec));
};

TEST_P(BeyondFormat, IsReportedAndKept) {
  const auto& [spec, largest, beyond] = GetParam();
  on_every_target([&] {
    for (std::size_t elements : {1, 17, 40, 4099}) {
      for (std::size_t at : {std::size_t{0}, elements / 2, elements - 1}) {
        for (float sign : {1.0f, -1.0f}) {
          std::vector<float> grad(elements, 1);
          std::vector<float> residual(elements);
          bool flagged = true;
          grad[at] = sign * std::nextafter(beyond, 0.0f);
          encoded(*codec_, grad, residual, {}, &flagged);
          EXPECT_FALSE(flagged) << "is nearest to the largest";
          residual.assign(elements, 0);
          residual[at] = sign * beyond / 2;
          grad[at] = sign * beyond / 2;
          const auto payload = encoded(*codec_, grad, residual, {}, &flagged);
          EXPECT_TRUE(flagged);
          EXPECT_EQ(residual[at], sign * (beyond - largest));
          std::vector<float> sent(elements);
          codec_->decode(payload, sent);
          EXPECT_EQ(sent[at], sign * largest);
          encoded(*codec_, grad, {}, {}, &flagged);
          EXPECT_FALSE(flagged) << "half of it fits";
        }
      }
    }
  });
}

TEST_P(BeyondFormat, OfTheSumIsReportedInTheOwnNameReply) {
  const auto& [spec, largest, beyond] = GetParam();
  const float part = std::exp2(std::floor(std::log2(largest))) * 1.5f;  // fits, twice of it does not
  const std::vector<float> grad(20, part);
  bool flagged = true;
  const auto payload = encoded(*codec_, grad, {}, {}, &flagged);
  EXPECT_FALSE(flagged);
  const Payload payloads[] = {payload, payload};
  replied(*codec_, payloads, 20, ReplyKind::kFp32, {}, &flagged);
  const bool overflows = largest > 1e38f;  // float32's own
  EXPECT_EQ(flagged, overflows);
  std::vector<float> residual(20);
  const auto reply = replied(*codec_, payloads, 20, ReplyKind::kSame, residual, &flagged);
  const bool sums_as_they_are = std::string(spec).starts_with("randomk");
  EXPECT_EQ(flagged, !sums_as_they_are || overflows);
  std::vector<float> out(20);
  codec_->decode_reply(reply, 2, ReplyKind::kSame, out, {});
  if (overflows || sums_as_they_are) return;
  EXPECT_EQ(out, std::vector<float>(20, largest));
  EXPECT_EQ(residual[3], 2 * part - largest);
}

std::string edge_name(const testing::TestParamInfo<Edge>& info) {
  std::string name;
  for (char c : std::string(info.param.spec))
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, BeyondFormat, testing::ValuesIn(kEdges), edge_name);

TEST(BeyondFormat, CodecsWithScalesHaveNone) {
  for (const char* spec : {"none", "int8", "int4", "fp8", "fp8:format=e5m2", "qsgd", "terngrad", "1bit",
                           "2bit:threshold=auto", "topk:ratio=1", "randomk:ratio=1"}) {
    const auto codec = make(parse_spec(spec));
    for (float size : {kF16Beyond, 1e30f, 1e36f}) {
      bool flagged = true;
      const std::vector<float> grad(100, size);
      const auto payload = encoded(*codec, grad, {}, {}, &flagged);
      EXPECT_FALSE(flagged) << spec << " of " << size;
      std::vector<float> out(100);
      codec->decode(payload, out);
      EXPECT_NEAR(out[7] / size, 1, 1e-6) << spec << " of " << size;
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
