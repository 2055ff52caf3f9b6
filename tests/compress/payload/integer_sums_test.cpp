// A round that a library has summed as integers has the bits of one that is summed from payloads: asked of
// every codec that offers it.
#include "compress/payload/integer_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compress/payload/little_endian.h"
#include "compress/payload/segmented.h"
#include "tests/compress/codec_cases.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

std::int32_t integer_at(const Bytes& bytes, IntegerWidth width, std::size_t i) {
  return width == IntegerWidth::kInt8 ? load<std::int8_t>(&bytes[i])
                                      : load<std::int16_t>(&bytes[i * sizeof(std::int16_t)]);
}

void set_integer(Bytes& bytes, IntegerWidth width, std::size_t i, std::int32_t value) {
  if (width == IntegerWidth::kInt8) return store(static_cast<std::int8_t>(value), &bytes[i]);
  store(static_cast<std::int16_t>(value), &bytes[i * sizeof(std::int16_t)]);
}

/// One round of so many workers: what each sends, and what a library makes of it.
class Summed {
 public:
  Summed(const Codec& codec, std::span<const UnitScale> scales, std::size_t ways, std::size_t elements,
         IntegerWidth width)
      : width_(width) {
    const IntegerSums& sums = *codec.integer_sums();
    for (unsigned way = 0; way < ways; ++way)
      bytes_.push_back(encoded(codec, gaussian(elements, way), {}, scales));
    sums_.resize(elements * bytes_of(width));
    Bytes one(sums_.size(), std::byte{0xee});
    for (const Bytes& payload : bytes_) {
      sums.expand(payload, elements, width, one);
      for (std::size_t i = 0; i < elements; ++i)
        set_integer(sums_, width, i, integer_at(sums_, width, i) + integer_at(one, width, i));
      payloads_.emplace_back(payload);
      if (const std::size_t head = sums.head_bytes(elements); head > 0) {
        head_bytes_.emplace_back(head);
        sums.write_head(payload, elements, head_bytes_.back());
      }
    }
    for (const Bytes& head : head_bytes_) heads_.emplace_back(head);
  }

  std::span<const Payload> payloads() const { return payloads_; }
  SummedRound round() const { return {payloads_.size(), heads_, sums_, width_}; }
  Bytes& sums() { return sums_; }
  Bytes& payload(std::size_t way) { return bytes_[way]; }

 private:
  IntegerWidth width_;
  std::vector<Bytes> bytes_;
  std::vector<Payload> payloads_;
  std::vector<Bytes> head_bytes_;
  std::vector<Payload> heads_;
  Bytes sums_;
};

std::vector<std::string> specs_with_integers() {
  std::vector<std::string> specs;
  for (const std::string& spec : specs_under_test()) {
    if (make(parse_spec(spec))->integer_sums() != nullptr) specs.push_back(spec);
  }
  return specs;
}

class IntegerSumsOf : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make(parse_spec(GetParam()));
  const IntegerSums& sums_ = *codec_->integer_sums();

  Summed summed(std::size_t ways, std::size_t elements, IntegerWidth width) const {
    return Summed(*codec_, scales_after_a_round(*codec_, gaussian(elements, 99)), ways, elements, width);
  }

  void expect_bits_of_payloads(std::size_t ways, std::size_t elements, IntegerWidth width) const {
    SCOPED_TRACE(std::to_string(ways) + " ways, " + std::to_string(elements) + " elements");
    expect_equal(*codec_, summed(ways, elements, width));
  }

  static void expect_equal(const Codec& codec, const Summed& summed) {
    const std::size_t ways = summed.payloads().size();
    const SummedRound round = summed.round();
    const std::size_t elements = round.sums.size() / bytes_of(round.width);
    std::vector<float> expected(elements);
    std::vector<float> out(elements, -99);
    codec.decode_sum(summed.payloads(), expected);
    codec.integer_sums()->decode_sum(round, out);
    ASSERT_EQ(out, expected);
    for (ReplyKind kind : reply_kinds(codec)) {
      std::vector<float> expected_residual = gaussian(kind == ReplyKind::kSame ? elements : 0, 7, 0.1f);
      std::vector<float> residual = expected_residual;
      const Bytes expected_reply = replied(codec, summed.payloads(), elements, kind, expected_residual);
      Bytes reply(codec.max_reply_size(elements, ways, kind));
      const Encoded made = codec.integer_sums()->encode_reply(round, elements, kind, residual, reply);
      reply.resize(made.bytes);
      ASSERT_EQ(reply, expected_reply);
      ASSERT_EQ(residual, expected_residual);
    }
  }

  std::string error_of(const SummedRound& round, std::size_t elements) const {
    std::vector<float> out(elements);
    try {
      sums_.decode_sum(round, out);
    } catch (const DecodeError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_P(IntegerSumsOf, HaveTheBitsOfPayloads) {
  for (const std::size_t ways : {1, 2, 3, 9, 127}) {
    for (const std::size_t elements : {1, 15, 64, 65, 1000, 4097})
      expect_bits_of_payloads(ways, elements, IntegerWidth::kInt8);
  }
  for (const std::size_t ways : {2, 128, 300}) {
    for (const std::size_t elements : {1, 63, 500})
      expect_bits_of_payloads(ways, elements, IntegerWidth::kInt16);
  }
}

TEST_P(IntegerSumsOf, HaveThemWhereSeveralUnitsAreSummed) {
  for (const IntegerWidth width : {IntegerWidth::kInt8, IntegerWidth::kInt16})
    expect_bits_of_payloads(3, 2 * kUnitElements + 1234, width);
}

TEST_P(IntegerSumsOf, HaveThemWhereTensorsTravelTogether) {
  const std::vector<std::uint32_t> segments = {256, 1, 70'000, 17};
  const std::size_t elements = 256 + 1 + 70'000 + 17;
  const Segmented whole(*codec_, segments);
  std::vector<UnitScale> scales;
  for (const std::uint32_t segment : segments) {
    const auto one = scales_after_a_round(*codec_, gaussian(segment, segment));
    scales.insert(scales.end(), one.begin(), one.end());
  }
  expect_equal(whole, Summed(whole, scales, 5, elements, IntegerWidth::kInt8));
  EXPECT_EQ(whole.integer_sums()->holds_codes(encoded(whole, gaussian(elements, 1), {}, {})),
            !codec_->agrees_scales());

  const Summed summed(whole, scales, 2, elements, IntegerWidth::kInt16);
  const Segmented other(*codec_, {256, 1, 17, 70'000});
  std::vector<float> out(elements);
  EXPECT_THROW(other.integer_sums()->decode_sum(summed.round(), out), DecodeError);
  SummedRound cut = summed.round();
  cut.heads = cut.heads.first(1);
  EXPECT_THROW(whole.integer_sums()->decode_sum(cut, out), DecodeError);
  const Payload short_heads[] = {summed.round().heads[0], summed.round().heads[1].first(39)};
  cut.heads = short_heads;
  EXPECT_THROW(whole.integer_sums()->decode_sum(cut, out), DecodeError);
  cut = summed.round();
  cut.sums = cut.sums.first(cut.sums.size() - 1);
  EXPECT_THROW(whole.integer_sums()->decode_sum(cut, out), DecodeError);
}

TEST_P(IntegerSumsOf, HaveThemOnEveryTarget) {
  on_every_target([&] {
    for (const std::size_t elements : {64, 4099}) expect_bits_of_payloads(12, elements, IntegerWidth::kInt8);
  });
}

TEST_P(IntegerSumsOf, TellWhetherAPayloadHoldsCodes) {
  const auto grad = gaussian(100, 1);
  EXPECT_EQ(sums_.holds_codes(encoded(*codec_, grad, {}, {})), !codec_->agrees_scales());
  EXPECT_TRUE(sums_.holds_codes(encoded(*codec_, grad, {}, scales_after_a_round(*codec_, grad))));
  EXPECT_EQ(sums_.code_bits(), 2u);
}

TEST_P(IntegerSumsOf, SumsThatNoCodesHaveAreDecodeErrors) {
  for (const IntegerWidth width : {IntegerWidth::kInt8, IntegerWidth::kInt16}) {
    for (const std::int32_t bad : {4, -4, 100, -128}) {
      Summed summed = this->summed(3, 200, width);
      set_integer(summed.sums(), width, 199, bad);
      EXPECT_THAT(error_of(summed.round(), 200), HasSubstr("no 3 codes have the sum"));
    }
    Summed summed = this->summed(3, 200, width);
    SummedRound cut = summed.round();
    cut.sums = cut.sums.first(cut.sums.size() - 1);
    EXPECT_THAT(error_of(cut, 200), HasSubstr("200 elements need"));
  }
}

TEST_P(IntegerSumsOf, HeadsThatDoNotGoTogetherAreDecodeErrors) {
  const std::size_t elements = 200;
  if (sums_.head_bytes(elements) == 0) return;  // a fixed threshold needs none
  Summed summed = this->summed(3, elements, IntegerWidth::kInt8);
  const std::vector<Payload> heads(summed.round().heads.begin(), summed.round().heads.end());
  const auto with_heads = [&](const std::vector<Payload>& given) {
    SummedRound round = summed.round();
    round.heads = given;
    return error_of(round, elements);
  };
  EXPECT_THAT(with_heads({heads[0], heads[1]}), HasSubstr("2 heads"));
  EXPECT_THAT(with_heads({heads[0], heads[1], heads[2].first(10)}), HasSubstr("payload 2 of 3"));
  const Bytes dense = encoded(*codec_, gaussian(elements, 1), {}, {});
  EXPECT_THAT(with_heads({heads[0], Payload(dense).first(heads[1].size()), heads[2]}),
              HasSubstr("payload 1 of 3 holds no codes"));
  const auto other_scales = scales_after_a_round(*codec_, gaussian(elements, 5, 3));
  const Bytes other = encoded(*codec_, gaussian(elements, 1), {}, other_scales);
  EXPECT_THAT(with_heads({heads[0], heads[1], Payload(other).first(heads[2].size())}),
              HasSubstr("all workers of a round share one level"));
}

INSTANTIATE_TEST_SUITE_P(All, IntegerSumsOf, testing::ValuesIn(specs_with_integers()), [](const auto& info) {
  std::string name;
  for (char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(IntegerWidth, IsTheNarrowestThatHoldsTheSum) {
  EXPECT_EQ(integer_width(1), IntegerWidth::kInt8);
  EXPECT_EQ(integer_width(127), IntegerWidth::kInt8);
  EXPECT_EQ(integer_width(128), IntegerWidth::kInt16);
  EXPECT_EQ(integer_width(32767), IntegerWidth::kInt16);
  EXPECT_EQ(integer_width(32768), std::nullopt);
}

}  // namespace
}  // namespace gradwire::compress
