// What the contract in codec.h promises, asked of every codec.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

class CodecConformance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make(parse_spec(GetParam()));

  std::vector<float> decoded(Payload payload, std::size_t elements) const {
    std::vector<float> out(elements, -99);
    codec_->decode(payload, out);
    return out;
  }
};

TEST_P(CodecConformance, SentAndKeptMakeUpGradientAndResidual) {
  for (std::size_t elements : {1, 15, 16, 17, 63, 64, 65, 1000, 4099, 70000}) {
    const auto grad = gaussian(elements, 1);
    for (const auto& scales : {std::vector<UnitScale>{}, scales_after_a_round(*codec_, grad)}) {
      auto residual = gaussian(elements, 2, 0.1f);
      const auto before = residual;
      bool nonfinite = true;
      const auto payload = encoded(*codec_, grad, residual, scales, &nonfinite);
      EXPECT_FALSE(nonfinite);
      EXPECT_LE(payload.size(), codec_->max_encoded_size(elements));
      codec_->validate(payload, elements);
      const auto sent = decoded(payload, elements);
      for (std::size_t i = 0; i < elements; ++i) {
        const float x = before[i] + grad[i];
        ASSERT_NEAR(sent[i] + residual[i], x, 1e-6f) << i << " of " << elements;
      }
    }
  }
}

TEST_P(CodecConformance, WorksWithoutResidual) {
  const auto grad = gaussian(333, 1);
  std::vector<float> zeros(grad.size());
  const auto scales = scales_after_a_round(*codec_, grad);
  EXPECT_EQ(encoded(*codec_, grad, {}, scales), encoded(*codec_, grad, zeros, scales));
}

TEST_P(CodecConformance, ErrorFeedbackDeliversTheMeanInTheLongRun) {
  const auto grad = gaussian(300, 3, 0.05f);
  const auto scales = scales_after_a_round(*codec_, grad);
  std::vector<float> residual(grad.size());
  std::vector<double> total(grad.size());
  const int rounds = 200;
  for (int round = 0; round < rounds; ++round) {
    const auto sent = decoded(encoded(*codec_, grad, residual, scales), grad.size());
    for (std::size_t i = 0; i < grad.size(); ++i) total[i] += sent[i];
  }
  for (std::size_t i = 0; i < grad.size(); ++i) {
    ASSERT_NEAR(total[i] + residual[i], double{grad[i]} * rounds, 1e-3) << i;
  }
}

TEST_P(CodecConformance, TheResidualStaysBoundedUnderConstantPushes) {
  if (!codec_->lossy()) return;
  const auto grad = gaussian(500, 3, 0.02f);
  auto scales = scales_after_a_round(*codec_, grad);
  std::vector<float> residual(grad.size());
  std::vector<float> sum(grad.size());
  std::vector<double> most(2);
  const int rounds = 16000;
  for (int round = 0; round < rounds; ++round) {
    const Position position{7, 0, static_cast<std::uint64_t>(round), 0};
    const auto payload = encoded(*codec_, grad, residual, scales, nullptr, position);
    const Payload payloads[] = {payload};
    const auto reply = replied(*codec_, payloads, grad.size(), ReplyKind::kFp32, {});
    codec_->decode_reply(reply, 1, ReplyKind::kFp32, sum, scales);
    double squares = 0;
    for (float kept : residual) squares += double{kept} * kept;
    double& half = most[2 * round / rounds];
    half = std::max(half, std::sqrt(squares));
  }
  EXPECT_LE(most[1], 1.1 * most[0]) << "still growing after " << rounds / 2 << " rounds";
}

/// One round of three workers over [first, first + elements): sum, next scales, residuals of workers and
/// server.
struct RoundResult {
  std::vector<float> sum;
  std::vector<std::vector<float>> residuals;
  std::vector<float> server_residual;
  std::vector<UnitScale> next;
};

void run_piece(const Codec& codec, ReplyKind kind, std::size_t first, std::size_t elements,
               const std::vector<std::vector<float>>& grads, std::span<const UnitScale> scales,
               std::uint64_t step, RoundResult& round) {
  const std::size_t units = codec.agrees_scales() ? unit_count(elements) : 0;
  const std::size_t first_unit = first / kUnitElements;
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t w = 0; w < grads.size(); ++w) {
    bytes.push_back(encoded(codec, std::span(grads[w]).subspan(first, elements),
                            std::span(round.residuals[w]).subspan(first, elements),
                            scales.empty() ? scales : scales.subspan(first_unit, units), nullptr,
                            {3, static_cast<std::uint32_t>(w), step, first}));
  }
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  const auto reply =
      replied(codec, payloads, elements, kind, std::span(round.server_residual).subspan(first, elements));
  codec.decode_reply(reply, grads.size(), kind, std::span(round.sum).subspan(first, elements),
                     std::span(round.next).subspan(units == 0 ? 0 : first_unit, units));
  if (kind == ReplyKind::kSame) return;
  std::vector<float> sum(elements);
  codec.decode_sum(payloads, sum);
  EXPECT_TRUE(std::equal(sum.begin(), sum.end(), round.sum.begin() + static_cast<std::ptrdiff_t>(first)));
}

TEST_P(CodecConformance, CuttingATensorIntoOtherPartitionsChangesNoBit) {
  const std::size_t elements = 3 * kUnitElements + 1234;
  const std::vector<std::vector<float>> grads{gaussian(elements, 1), gaussian(elements, 2, 0.1f),
                                              gaussian(elements, 3, 2)};
  const std::size_t units = codec_->agrees_scales() ? unit_count(elements) : 0;
  const auto rounds = [&](ReplyKind kind, std::size_t piece) {
    RoundResult result{std::vector<float>(elements),
                       std::vector<std::vector<float>>(3, std::vector<float>(elements)),
                       std::vector<float>(elements), std::vector<UnitScale>(units)};
    std::vector<UnitScale> scales;
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::size_t first = 0; first < elements; first += piece) {
        run_piece(*codec_, kind, first, std::min(piece, elements - first), grads, scales, step, result);
      }
      scales = result.next;
    }
    return result;
  };
  for (ReplyKind kind : reply_kinds(*codec_)) {
    const RoundResult whole = rounds(kind, elements);
    for (std::size_t piece : {kUnitElements, 2 * kUnitElements}) {
      const RoundResult cut = rounds(kind, piece);
      EXPECT_EQ(cut.sum, whole.sum);
      EXPECT_EQ(cut.residuals, whole.residuals);
      EXPECT_EQ(cut.server_residual, whole.server_residual);
      EXPECT_EQ(cut.next, whole.next);
    }
  }
}

TEST_P(CodecConformance, RepliesCarryTheSum) {
  for (std::size_t ways : {1, 2, 5, 8}) {
    const std::size_t elements = 777;
    std::vector<std::vector<std::byte>> bytes;
    const auto scales = scales_after_a_round(*codec_, gaussian(elements, 9));
    for (std::size_t w = 0; w < ways; ++w) {
      bytes.push_back(encoded(*codec_, gaussian(elements, static_cast<unsigned>(w)), {}, scales));
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    std::vector<float> sum(elements);
    codec_->decode_sum(payloads, sum);
    std::vector<float> in_order(elements);
    for (std::size_t w = 0; w < ways; ++w) {
      const auto one = decoded(payloads[w], elements);
      for (std::size_t i = 0; i < elements; ++i) in_order[i] = w == 0 ? one[i] : in_order[i] + one[i];
    }
    for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(sum[i], in_order[i], 1e-5f);
    if (!codec_->has_exact_reply()) {
      EXPECT_EQ(sum, in_order);
    }
    for (ReplyKind kind : reply_kinds(*codec_)) {
      std::vector<float> residual(kind == ReplyKind::kSame ? elements : 0);
      bool nonfinite = true;
      const auto reply = replied(*codec_, payloads, elements, kind, residual, &nonfinite);
      EXPECT_FALSE(nonfinite);
      std::vector<float> answer(elements);
      codec_->decode_reply(reply, ways, kind, answer, {});
      for (std::size_t i = 0; i < elements; ++i) {
        const float kept = residual.empty() ? 0 : residual[i];
        ASSERT_NEAR(answer[i] + kept, sum[i], residual.empty() ? 0 : 1e-6f) << i;
      }
      std::vector<float> third(elements);
      codec_->decode_reply_scaled(reply, ways, kind, 1.0f / 3, third, {});
      for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(third[i], answer[i] * (1.0f / 3)) << i;
    }
  }
}

TEST_P(CodecConformance, ParametersTravelAsBits) {
  const auto twin = from_wire(codec_->wire_id(), codec_->wire_parameters());
  EXPECT_EQ(twin->name(), codec_->name());
  EXPECT_EQ(twin->wire_parameters(), codec_->wire_parameters());
  EXPECT_EQ(twin->agrees_scales(), codec_->agrees_scales());
  const auto grad = gaussian(100, 1);
  const auto payload = encoded(*codec_, grad, {}, scales_after_a_round(*codec_, grad));
  std::vector<float> out(100);
  twin->decode(payload, out);
  EXPECT_EQ(out, decoded(payload, 100));
  WireParameters bad = codec_->wire_parameters();
  bad[3] += 7;
  EXPECT_THROW(from_wire(codec_->wire_id(), bad), DecodeError);
}

TEST_P(CodecConformance, CanonicalSpecMakesTheSameCodec) {
  const std::string text = canonical_spec(parse_spec(GetParam()));
  EXPECT_EQ(canonical_spec(parse_spec(text)), text);
  EXPECT_EQ(make(parse_spec(text))->wire_parameters(), codec_->wire_parameters());
  EXPECT_EQ(make(parse_spec(text))->spec(), codec_->spec());
}

TEST_P(CodecConformance, NonFiniteValuesAreReported) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {nan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (std::size_t at : {0, 20, 98}) {
      auto grad = gaussian(99, 1);
      const auto scales = scales_after_a_round(*codec_, grad);
      grad[at] = bad;
      std::vector<float> residual(99, 0.125f);
      bool nonfinite = false;
      const auto payload = encoded(*codec_, grad, residual, scales, &nonfinite);
      EXPECT_TRUE(nonfinite);
      const auto sent = decoded(payload, 99);
      const bool without_zero = codec_->name() == "1bit" || codec_->name() == "nf2";
      const bool skips = codec_->lossy() && GetParam().find("mxnet") == std::string::npos;
      for (std::size_t i = 0; i < 99; ++i) {
        if (i == at && !skips) continue;
        EXPECT_TRUE(std::isfinite(residual[i]) && std::isfinite(sent[i])) << i;
        if (i != at) continue;
        EXPECT_NEAR(sent[i] + residual[i], 0.125f, 1e-6f) << "the gradient counts as 0";
        EXPECT_TRUE(without_zero || sent[i] == 0) << "others have a code for 0";
      }
    }
  }
}

TEST_P(CodecConformance, WrongSizesAreDecodeErrors) {
  const std::size_t elements = 100;
  const auto grad = gaussian(elements, 1);
  for (const auto& scales : {std::vector<UnitScale>{}, scales_after_a_round(*codec_, grad)}) {
    const auto payload = encoded(*codec_, grad, {}, scales);
    std::vector<float> out(elements);
    for (std::size_t length = 0; length < payload.size(); ++length) {
      const std::vector<std::byte> cut(payload.begin(),
                                       payload.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_THROW(codec_->validate(cut, elements), DecodeError);
      EXPECT_THROW(codec_->decode(cut, out), DecodeError);
    }
    auto longer = payload;
    longer.push_back(std::byte{0});
    EXPECT_THROW(codec_->validate(longer, elements), DecodeError);
    const Payload payloads[] = {payload, longer};
    try {
      codec_->decode_sum(payloads, out);
      FAIL() << "a payload too long was accepted";
    } catch (const DecodeError& error) {
      EXPECT_NE(std::string(error.what()).find("payload 1 of 2"), std::string::npos) << error.what();
    }
    for (ReplyKind kind : reply_kinds(*codec_)) {
      std::vector<std::byte> room(codec_->max_reply_size(elements, 2, kind));
      EXPECT_THROW(codec_->encode_reply(payloads, elements, kind, {}, room), DecodeError);
      auto reply = replied(*codec_, {payloads, 1}, elements, kind, {});
      reply.pop_back();
      EXPECT_THROW(codec_->decode_reply(reply, 1, kind, out, {}), DecodeError);
      EXPECT_THROW(codec_->decode_reply({}, 1, kind, out, {}), DecodeError);
    }
  }
}

TEST_P(CodecConformance, MisuseIsAnInvalidArgument) {
  const auto grad = gaussian(100, 1);
  std::vector<std::byte> room(codec_->max_encoded_size(100));
  std::vector<float> short_residual(99);
  EXPECT_THROW(codec_->encode(grad, short_residual, {}, room), std::invalid_argument);
  EXPECT_THROW(codec_->encode(grad, {}, {}, std::span(room).first(room.size() - 1)), std::invalid_argument);
  std::vector<float> out(100);
  EXPECT_THROW(codec_->decode_sum({}, out), std::invalid_argument);
  if (codec_->has_exact_reply()) return;
  const auto payload = encoded(*codec_, grad, {}, {});
  const Payload payloads[] = {payload};
  EXPECT_THROW(codec_->encode_reply(payloads, 100, ReplyKind::kExact, {}, room), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(All, CodecConformance, testing::ValuesIn(specs_under_test()), [](const auto& info) {
  std::string name;
  for (char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace gradwire::compress
