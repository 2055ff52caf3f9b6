// Tensors that travel as one have the bits of tensors that travel alone, under every codec; one that draws is
// told how many units lie before.
#include "compress/payload/segmented.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;

constexpr std::size_t kWorkers = 3;
const std::vector<std::uint32_t> kSegments = {256, 1, 70'000, 17, 65'536, 300};

std::size_t total(const std::vector<std::uint32_t>& segments) {
  std::size_t elements = 0;
  for (const std::uint32_t segment : segments) elements += segment;
  return elements;
}

/// What three workers and a Server hold of a run, and how a round changes it.
struct Job {
  const Codec& codec;
  ReplyKind kind;
  std::size_t elements;
  std::size_t units;
  std::size_t units_before = 0;  ///< what a codec that draws is told of the segments before
  std::vector<std::vector<float>> residuals = std::vector(kWorkers, std::vector<float>(elements));
  std::vector<float> server_residual = std::vector<float>(elements);
  std::vector<float> sum = std::vector<float>(elements);
  std::vector<UnitScale> scales = std::vector<UnitScale>(units);
  bool scales_known = false;

  void round(const std::vector<std::vector<float>>& grads, std::size_t first) {
    std::vector<std::vector<std::byte>> bytes;
    for (std::size_t w = 0; w < kWorkers; ++w) {
      const auto known = scales_known ? std::span<const UnitScale>(scales) : std::span<const UnitScale>();
      bytes.push_back(encoded(codec, std::span(grads[w]).subspan(first, elements), residuals[w], known,
                              nullptr, {0, 0, 0, units_before * kUnitElements}));
      codec.validate(bytes.back(), elements);
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    const auto reply = replied(codec, payloads, elements, kind,
                               kind == ReplyKind::kSame ? std::span(server_residual) : std::span<float>());
    codec.decode_reply(reply, kWorkers, kind, sum, scales);
    scales_known = codec.agrees_scales();
  }
};

class SegmentedConformance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make(parse_spec(GetParam()));
};

TEST_P(SegmentedConformance, HasTheBitsOfTensorsSentAlone) {
  const Segmented fused(*codec_, kSegments);
  const std::size_t elements = total(kSegments);
  for (const ReplyKind kind : reply_kinds(*codec_)) {
    const bool agrees = codec_->agrees_scales();
    Job together{fused, kind, elements, agrees ? fused.unit_count() : 0};
    std::vector<Job> alone;
    std::size_t units = 0;
    for (const std::uint32_t segment : kSegments) {
      alone.push_back({*codec_, kind, segment, agrees ? unit_count(segment) : 0, units});
      units += unit_count(segment);
    }
    for (unsigned round = 0; round < 3; ++round) {
      std::vector<std::vector<float>> grads;
      for (unsigned w = 0; w < kWorkers; ++w) grads.push_back(gaussian(elements, 10 * round + w));
      together.round(grads, 0);
      std::size_t first = 0, unit = 0;
      for (Job& one : alone) {
        one.round(grads, first);
        const auto same = [&](const std::vector<float>& whole, const std::vector<float>& part) {
          return std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first));
        };
        ASSERT_TRUE(same(together.sum, one.sum)) << "segment at " << first << ", round " << round;
        ASSERT_TRUE(same(together.server_residual, one.server_residual)) << first;
        for (std::size_t w = 0; w < kWorkers; ++w)
          ASSERT_TRUE(same(together.residuals[w], one.residuals[w])) << first;
        for (const UnitScale& scale : one.scales) ASSERT_EQ(scale, together.scales[unit++]) << first;
        first += one.elements;
      }
    }
  }
}

TEST_P(SegmentedConformance, SumsAsTheCodecDoes) {
  const Segmented fused(*codec_, {300, 17});
  std::vector<std::vector<std::byte>> bytes;
  std::vector<float> expected(317);
  for (unsigned w = 0; w < kWorkers; ++w) {
    const auto grad = gaussian(317, w);
    bytes.push_back(encoded(fused, grad, {}, {}));
    std::vector<float> one(317);
    codec_->decode(encoded(*codec_, std::span(grad).first(300), {}, {}), std::span(one).first(300));
    codec_->decode(encoded(*codec_, std::span(grad).last(17), {}, {}, nullptr, {0, 0, 0, kUnitElements}),
                   std::span(one).last(17));
    for (std::size_t i = 0; i < 317; ++i) expected[i] += one[i];
  }
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  std::vector<float> sum(317);
  fused.decode_sum(payloads, sum);
  for (std::size_t i = 0; i < 317; ++i) ASSERT_NEAR(sum[i], expected[i], 1e-5F);
}

TEST_P(SegmentedConformance, ConcatenatesOnlyWhereItSays) {
  const auto grad = gaussian(300, 1);
  auto front = encoded(*codec_, std::span(grad).first(77), {}, {});
  const auto back = encoded(*codec_, std::span(grad).last(223), {}, {});
  front.insert(front.end(), back.begin(), back.end());
  if (codec_->concatenates()) {
    EXPECT_EQ(front, encoded(*codec_, grad, {}, {}));
  }
}

TEST_P(SegmentedConformance, HostileBytesAreDecodeErrorsAndNothingElse) {
  const std::vector<std::uint32_t> segments = {40, 1, 300};
  const Segmented fused(*codec_, segments);
  const auto good = encoded(fused, gaussian(341, 1), {}, {});
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto bytes = good;
    for (unsigned edits = 1 + random() % 3; edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at =
          random() % (random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 48) : bytes.size());
      if (random() % 4 == 0) {
        bytes.resize(random() % 2 == 0 ? at : bytes.size() + at % 40);
      } else {
        bytes[at] = static_cast<std::byte>(random());
      }
    }
    bytes.shrink_to_fit();
    std::vector<float> out(341);
    std::vector<UnitScale> scales(codec_->agrees_scales() ? segments.size() : 0);
    try {
      EXPECT_EQ(Segmented::segments_of(bytes, 341).size() <= 341, true);
      const Payload payloads[] = {good, bytes};
      fused.validate(bytes, 341);
      fused.decode_sum(payloads, out);
      fused.decode_reply(bytes, 1, ReplyKind::kSame, out, scales);
    } catch (const DecodeError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

INSTANTIATE_TEST_SUITE_P(Codecs, SegmentedConformance, testing::ValuesIn(specs_under_test()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

std::string refusal(const Segmented& codec, Payload payload, std::size_t elements) {
  try {
    codec.validate(payload, elements);
  } catch (const DecodeError& error) {
    return error.what();
  }
  return "taken";
}

TEST(Segmented, SaysWhichSegmentsDiffer) {
  const auto inner = make(parse_spec("2bit:threshold=0.5"));
  const Segmented expected(*inner, {40, 300});
  const auto of = [&](const std::vector<std::uint32_t>& segments) {
    const Segmented other(*inner, segments);
    return encoded(other, gaussian(total(segments), 1), {}, {});
  };
  EXPECT_EQ(refusal(expected, of({40, 300}), 340), "taken");
  EXPECT_THAT(refusal(expected, of({40, 200, 100}), 340), HasSubstr("has 3 segments, expected 2"));
  EXPECT_THAT(refusal(expected, of({41, 299}), 340), HasSubstr("has 41 elements in segment 0, expected 40"));
  EXPECT_EQ(Segmented::segments_of(of({41, 299}), 340), (std::vector<std::uint32_t>{41, 299}));
  EXPECT_THROW(Segmented::segments_of(of({41, 299}), 341), DecodeError);
  EXPECT_THROW(Segmented::segments_of({}, 0), DecodeError);
}

TEST(Segmented, MisuseIsAnInvalidArgument) {
  const auto inner = make({});
  EXPECT_THROW(Segmented(*inner, {}), std::invalid_argument);
  EXPECT_THROW(Segmented(*inner, {3, 0}), std::invalid_argument);
  std::vector<std::byte> out(1000);
  EXPECT_THROW(Segmented(*inner, {3, 4}).encode(gaussian(8, 1), {}, {}, out), std::invalid_argument);
}

// Segments are parts of what a caller gives, so what is too short is refused before the first one is cut off.
TEST(Segmented, WhatIsTooShortForAllSegmentsIsAnInvalidArgument) {
  const auto inner = make(parse_spec("2bit:threshold=auto"));
  const Segmented codec(*inner, {3, 4});
  const auto grad = gaussian(7, 1);
  std::vector<float> residual(7, 1), sum(7);
  std::vector<UnitScale> scales(2, {1, 1});
  std::vector<std::byte> out(codec.max_encoded_size(7));
  EXPECT_THROW(codec.encode(grad, std::span(residual).first(6), {}, out), std::invalid_argument);
  EXPECT_THROW(codec.encode(grad, residual, {}, std::span(out).first(out.size() - 1)), std::invalid_argument);
  EXPECT_THROW(codec.encode(grad, residual, std::span(scales).first(1), out), std::invalid_argument);
  EXPECT_EQ(residual, std::vector<float>(7, 1));

  const auto payload = encoded(codec, grad, {}, {});
  const Payload payloads[] = {payload};
  std::vector<std::byte> reply(codec.max_reply_size(7, 1, ReplyKind::kSame));
  EXPECT_THROW(codec.encode_reply(payloads, 7, ReplyKind::kSame, std::span(residual).first(6), reply),
               std::invalid_argument);
  EXPECT_THROW(codec.encode_reply(payloads, 7, ReplyKind::kSame, residual, std::span(reply).first(20)),
               std::invalid_argument);
  reply.resize(codec.encode_reply(payloads, 7, ReplyKind::kSame, residual, reply).bytes);
  EXPECT_THROW(codec.decode_reply(reply, 1, ReplyKind::kSame, sum, std::span(scales).first(1)),
               std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::compress
