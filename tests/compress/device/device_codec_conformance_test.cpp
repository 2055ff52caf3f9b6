#include "tests/compress/device/device_codec_conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "compress/payload/payloads.h"
#include "compress/two_bit/two_bit_auto_layout.h"
#include "compress/two_bit/two_bit_scalar.h"
#include "compress/two_bit/two_bit_sums_scalar.h"
#include "tests/compress/golden_keys.h"
#include "tests/compress/rough_values.h"

namespace gradwire::compress {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kPoison{0xee};
constexpr std::size_t kGuard = 8;  // bytes behind an output that must stay

constexpr std::size_t kSizes[] = {
    1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 255, 256, 1000, 4099, kUnitElements, 2 * kUnitElements + 77};
constexpr std::size_t kSmallSizes[] = {1, 5, 64, 67, 1003, kUnitElements + 70};

// A build with neither CCCL's headers nor CUDA has no device to ask.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceCodecConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceGolden);

/// Runs calls of a twin on one stream and brings back what they wrote.
class Runner {
 public:
  Runner(TestDevice& device, const DeviceCodec& twin, std::size_t elements, std::size_t stream = 0)
      : device_(device),
        twin_(twin),
        report_(device, std::vector<DeviceReport>(1)),
        scratch_(device, Bytes(twin.scratch_bytes(elements), kPoison)),
        work_{device.stream(stream), report_.data(), scratch_.span()} {}

  const DeviceWork& work() const { return work_; }
  DeviceReport report() const { return report_.values()[0]; }

  /// Calls use(out, work), which returns a length, and gives the bytes; those behind must stay.
  template <typename Use>
  Bytes bytes(std::size_t most, const Use& use) {
    const DeviceArray<std::byte> out(device_, Bytes(most + kGuard, kPoison));
    const std::size_t length = use(out.span().first(most), work_);
    device_.finish(work_.stream);
    Bytes all = out.values();
    EXPECT_TRUE(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(length), all.end(),
                            [](std::byte b) { return b == kPoison; }));
    all.resize(length);
    return all;
  }

  /// Calls use(out, work) and gives the floats.
  template <typename Use>
  std::vector<float> floats(std::size_t elements, const Use& use, std::size_t shift = 0) {
    const DeviceArray<float> out(device_, std::vector<float>(elements, -99), shift);
    use(out.span(), work_);
    device_.finish(work_.stream);
    return out.values();
  }

 private:
  TestDevice& device_;
  const DeviceCodec& twin_;
  DeviceArray<DeviceReport> report_;
  DeviceArray<std::byte> scratch_;
  DeviceWork work_;
};

/// The payloads of a round on both sides.
class Block {
 public:
  Block(TestDevice& device, const std::vector<Bytes>& payloads)
      : host_(payloads.begin(), payloads.end()),
        stride_(stride(payloads)),
        slots_(device, joined(payloads)) {}

  DevicePayloads payloads() const { return {host_, slots_.data(), stride_}; }

 private:
  static std::size_t stride(const std::vector<Bytes>& payloads) {
    std::size_t most = 0;
    for (const Bytes& payload : payloads) most = std::max(most, payload.size());
    return (most + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  /// The last payload is not padded: reading behind it is reading what is not there.
  Bytes joined(const std::vector<Bytes>& payloads) const {
    Bytes all;
    for (std::size_t w = 0; w < payloads.size(); ++w) {
      all.resize(w * stride_, kPoison);
      all.insert(all.end(), payloads[w].begin(), payloads[w].end());
    }
    return all;
  }

  std::vector<Payload> host_;
  std::size_t stride_;
  DeviceArray<std::byte> slots_;
};

struct Decoded {
  std::vector<float> values;
  std::vector<UnitScale> next;
  DeviceReport report;
};

Decoded decode_reply(TestDevice& device, const DeviceCodec& twin, const Bytes& reply, std::size_t ways,
                     ReplyKind kind, float factor, std::size_t elements, std::size_t shift = 0) {
  Runner runner(device, twin, elements);
  const DeviceArray<std::byte> bytes(device, reply);
  const std::size_t units = twin.codec().agrees_scales() ? unit_count(elements) : 0;
  const DeviceArray<UnitScale> next(device, std::vector<UnitScale>(units));
  Decoded decoded;
  decoded.values = runner.floats(
      elements,
      [&](std::span<float> out, const DeviceWork& work) {
        twin.decode_reply({reply, bytes.data()}, ways, kind, factor, out, next.span(), work);
      },
      shift);
  decoded.next = next.values();
  decoded.report = runner.report();
  return decoded;
}

std::vector<float> times(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

/// Equal bytes, or floats that differ in the bits of a NaN only.
void expect_same_bytes(const Bytes& bytes, const Bytes& expected) {
  ASSERT_EQ(bytes.size(), expected.size());
  if (bytes == expected) return;
  ASSERT_EQ(bytes.size() % sizeof(float), 0u);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::vector<float> expected_floats(floats.size());
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  std::memcpy(expected_floats.data(), expected.data(), expected.size());
  ASSERT_EQ(bits(floats), bits(expected_floats));
}

/// What codecs draw by.
constexpr Position kPosition{7, 2, 5'000'000'001, 3 * kUnitElements};

void check_encode(TestDevice& device, const Codec& codec, const DeviceCodec& twin,
                  const std::vector<float>& grad, const std::vector<float>& kept, bool with_residual,
                  const std::vector<UnitScale>& scales, std::size_t shift, std::size_t stream = 0) {
  std::vector<float> expected_residual = kept;
  bool nonfinite = false;
  const Bytes expected =
      encoded(codec, grad, with_residual ? std::span<float>(expected_residual) : std::span<float>(), scales,
              &nonfinite, kPosition);
  Runner runner(device, twin, grad.size(), stream);
  const DeviceArray<float> grad_there(device, grad, shift);
  const DeviceArray<float> residual(device, kept, shift);
  const DeviceArray<UnitScale> scales_there(device, scales);
  const Bytes payload = runner.bytes(codec.max_encoded_size(grad.size()), [&](auto out, const auto& work) {
    return twin.encode(grad_there.span(), residual.span_if(with_residual), scales_there.span(), out,
                       kPosition, work);
  });
  expect_same_bytes(payload, expected);
  ASSERT_EQ(bits(residual.values()), bits(expected_residual));
  ASSERT_EQ(bits(grad_there.values()), bits(grad));
  ASSERT_EQ(runner.report().nonfinite, nonfinite ? 1u : 0u);
}

TEST_P(DeviceCodecConformance, EncodesTheSameBytesAndKeepsTheSameResidual) {
  for (const std::size_t elements : kSizes) {
    const auto grad = rough_values(elements, 1 + static_cast<unsigned>(elements), 300);
    const auto kept = rough_values(elements, 2, 300);
    for (const auto& scales : {std::vector<UnitScale>{}, scales_after_a_round(*codec_, grad)}) {
      for (const bool with_residual : {false, true}) {
        for (const std::size_t shift : {0, 1}) {
          if (shift > 0 && elements > 5000) continue;
          SCOPED_TRACE(std::to_string(elements) + " elements, shift " + std::to_string(shift));
          check_encode(*device_, *codec_, *twin_, grad, kept, with_residual, scales, shift);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(DeviceCodecConformance, ReportsWhatIsBeyondTheFormat) {
  for (const float largest : {65519.0f, 65520.0f, 1e6f, 3.38e38f, 3.4e38f}) {
    for (const std::size_t at : {0, 5, 66}) {
      auto grad = gaussian(67, 1);
      grad[at] = at == 5 ? -largest : largest;
      check_encode(*device_, *codec_, *twin_, grad, std::vector<float>(67), true, {}, 0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DeviceCodecConformance, RowsOfZerosAreTreatedAlike) {
  for (const std::size_t elements : {31, 32, 33, 96, 1000, 70000}) {
    auto grad = gaussian(elements, 1);
    auto kept = gaussian(elements, 2);
    for (std::size_t i = 0; i < elements; ++i) {
      if (i / 32 % 3 == 0) grad[i] = kept[i] = i % 2 == 0 ? 0.0f : -0.0f;
      if (i / 32 % 3 == 1) kept[i] = -grad[i];
    }
    for (const bool with_residual : {false, true}) {
      check_encode(*device_, *codec_, *twin_, grad, kept, with_residual, {}, 0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DeviceCodecConformance, SpecialValuesAreTreatedAlike) {
  for (std::size_t elements = 1; elements < 40; ++elements) {
    const auto grad = rough_values(elements, static_cast<unsigned>(elements), 2);
    const auto kept = rough_values(elements, 77, 3);
    const std::vector<UnitScale> given{{kRoughThreshold, 0.75f}};
    for (const auto& scales :
         {std::vector<UnitScale>{}, codec_->agrees_scales() ? given : std::vector<UnitScale>{}}) {
      for (const bool with_residual : {false, true}) {
        check_encode(*device_, *codec_, *twin_, grad, kept, with_residual, scales, 0);
        if (HasFatalFailure()) return;
      }
    }
  }
  if (!codec_->agrees_scales()) return;
  for (const UnitScale scale : {UnitScale{}, UnitScale{0, 1}, UnitScale{1, 0}, UnitScale{1e-40f, 3e38f}}) {
    check_encode(*device_, *codec_, *twin_, gaussian(100, 1), gaussian(100, 2), true, {scale}, 0);
  }
}

/// Payloads of one round, for a codec that agrees scales also dense ones and both mixed.
std::vector<std::vector<Bytes>> rounds_of(const Codec& codec, std::size_t elements, std::size_t ways) {
  const auto scales = scales_after_a_round(codec, gaussian(elements, 9));
  std::vector<std::vector<Bytes>> rounds(codec.agrees_scales() ? 3 : 1);
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    for (std::size_t w = 0; w < ways; ++w) {
      const bool dense = r == 1 || (r == 2 && w % 3 == 1);
      rounds[r].push_back(encoded(codec, rough_values(elements, static_cast<unsigned>(w), 200), {},
                                  dense ? std::vector<UnitScale>{} : scales));
    }
  }
  return rounds;
}

TEST_P(DeviceCodecConformance, SumsInRankOrder) {
  for (const std::size_t elements : kSmallSizes) {
    for (const std::size_t ways : {1, 2, 3, 8, 70, 130}) {
      if (ways > 8 && elements > 1003) continue;
      for (const auto& bytes : rounds_of(*codec_, elements, ways)) {
        const std::vector<Payload> payloads(bytes.begin(), bytes.end());
        std::vector<float> expected(elements);
        codec_->decode_sum(payloads, expected);
        const Block block(*device_, bytes);
        for (const float factor : {1.0f, 1.0f / 3}) {
          for (const std::size_t shift : {0, 1}) {
            const auto sum = Runner(*device_, *twin_, elements)
                                 .floats(
                                     elements,
                                     [&](std::span<float> out, const DeviceWork& work) {
                                       twin_->decode_sum(block.payloads(), factor, out, work);
                                     },
                                     shift);
            ASSERT_EQ(bits(sum), bits(times(expected, factor))) << ways << " ways, " << elements;
          }
        }
      }
    }
  }
}

TEST_P(DeviceCodecConformance, RepliesAreTheSameBytesAndDecodeAlike) {
  for (const std::size_t elements : kSmallSizes) {
    for (const std::size_t ways : {1, 2, 5, 130}) {
      if (ways > 5 && elements > 1003) continue;
      for (const auto& bytes : rounds_of(*codec_, elements, ways)) {
        const std::vector<Payload> payloads(bytes.begin(), bytes.end());
        const Block block(*device_, bytes);
        for (const ReplyKind kind : reply_kinds(*codec_)) {
          SCOPED_TRACE(std::to_string(elements) + " elements, " + std::to_string(ways) + " ways, reply " +
                       std::to_string(static_cast<int>(kind)));
          const bool with_residual = kind == ReplyKind::kSame && ways != 2;
          auto expected_residual = rough_values(elements, 5, 100);
          const DeviceArray<float> residual(*device_, expected_residual);
          bool nonfinite = false;
          const Bytes expected =
              replied(*codec_, payloads, elements, kind,
                      with_residual ? std::span<float>(expected_residual) : std::span<float>(), &nonfinite);
          Runner runner(*device_, *twin_, elements);
          const Bytes reply = runner.bytes(
              codec_->max_reply_size(elements, ways, kind), [&](auto out, const DeviceWork& work) {
                return twin_->encode_reply(block.payloads(), elements, kind, residual.span_if(with_residual),
                                           out, work);
              });
          expect_same_bytes(reply, expected);
          ASSERT_EQ(bits(residual.values()), bits(expected_residual));
          ASSERT_EQ(runner.report().nonfinite, nonfinite ? 1u : 0u);

          std::vector<float> values(elements);
          std::vector<UnitScale> next(codec_->agrees_scales() ? unit_count(elements) : 0);
          codec_->decode_reply(expected, ways, kind, values, next);
          const float factor = ways == 5 ? 0.2f : 1.0f;
          const Decoded decoded =
              decode_reply(*device_, *twin_, expected, ways, kind, factor, elements, ways == 2 ? 1 : 0);
          ASSERT_EQ(bits(decoded.values), bits(times(values, factor)));
          ASSERT_EQ(decoded.next, next);
          EXPECT_NO_THROW(twin_->check_report(decoded.report, ways));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(DeviceCodecConformance, RoundsWithErrorFeedbackStayOnTheDevice) {
  const std::size_t elements = kUnitElements + 1234;
  const std::size_t workers = 3;
  std::vector<std::vector<float>> kept(workers, std::vector<float>(elements));
  std::vector<std::unique_ptr<DeviceArray<float>>> residuals;
  for (const auto& values : kept) residuals.push_back(std::make_unique<DeviceArray<float>>(*device_, values));
  const std::size_t units = codec_->agrees_scales() ? unit_count(elements) : 0;
  const DeviceArray<UnitScale> next_there(*device_, std::vector<UnitScale>(units));
  std::vector<UnitScale> scales;
  for (unsigned round = 0; round < 4; ++round) {
    std::vector<Bytes> bytes;
    for (unsigned w = 0; w < workers; ++w) {
      const auto grad = gaussian(elements, 10 * round + w, 0.1f * static_cast<float>(w + 1));
      const DeviceArray<float> grad_there(*device_, grad);
      Runner runner(*device_, *twin_, elements);
      bytes.push_back(runner.bytes(codec_->max_encoded_size(elements), [&](auto out, const DeviceWork& work) {
        return twin_->encode(grad_there.span(), residuals[w]->span(), next_there.span_if(round > 0), out,
                             work);
      }));
      ASSERT_EQ(bytes.back(), encoded(*codec_, grad, kept[w], scales)) << "round " << round;
      ASSERT_EQ(residuals[w]->values(), kept[w]) << "round " << round;
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    const ReplyKind kind = reply_kinds(*codec_).back();
    const Bytes reply = replied(*codec_, payloads, elements, kind, {});
    std::vector<float> sum(elements);
    scales.resize(units);
    codec_->decode_reply(reply, workers, kind, sum, scales);
    const DeviceArray<std::byte> reply_there(*device_, reply);
    Runner runner(*device_, *twin_, elements);
    const auto sum_there = runner.floats(elements, [&](std::span<float> out, const DeviceWork& work) {
      twin_->decode_reply({reply, reply_there.data()}, workers, kind, 1, out, next_there.span(), work);
    });
    ASSERT_EQ(sum_there, sum) << "round " << round;
    ASSERT_EQ(next_there.values(), scales) << "round " << round;
  }
}

TEST_P(DeviceCodecConformance, StreamsDoNotDisturbEachOther) {
  const std::size_t elements = kUnitElements + 333;
  std::vector<std::jthread> threads;
  for (std::size_t s = 0; s < device_->stream_count(); ++s) {
    threads.emplace_back([&, s] {
      for (unsigned repeat = 0; repeat < 3; ++repeat) {
        const auto grad = rough_values(elements, static_cast<unsigned>(10 * s) + repeat, 300);
        check_encode(*device_, *codec_, *twin_, grad, gaussian(elements, repeat), true,
                     scales_after_a_round(*codec_, grad), 0, s);
      }
    });
  }
}

bool is_valid(const Codec& codec, const Bytes& payload, std::size_t elements) {
  try {
    codec.validate(payload, elements);
    return true;
  } catch (const DecodeError&) {
    return false;
  }
}

/// The payload with random words wherever these leave it one that a codec reads.
Bytes with_any_body(const Codec& codec, Bytes payload, std::size_t elements, unsigned seed) {
  const Bytes random = random_bytes(payload.size(), seed);
  for (std::size_t i = 0; i < payload.size(); i += sizeof(float)) {
    const Bytes honest = payload;
    std::copy_n(random.begin() + static_cast<std::ptrdiff_t>(i), std::min(sizeof(float), payload.size() - i),
                payload.begin() + static_cast<std::ptrdiff_t>(i));
    if (!is_valid(codec, payload, elements)) payload = honest;
  }
  return payload;
}

/// Any bytes may lie behind good headers: codes that no encoder writes, padding that is not 0, NaN.
TEST_P(DeviceCodecConformance, AnyBodyIsReadAlike) {
  for (const std::size_t elements : {1, 7, 70, 1003}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      std::vector<Bytes> bytes = rounds_of(*codec_, elements, 3)[0];
      const std::size_t headers = codec_->agrees_scales() ? two_bit::body_offset(elements) : 0;
      for (Bytes& payload : bytes) {
        // Headers that agree on a level are good together only.
        const Bytes head(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(headers));
        payload = with_any_body(*codec_, std::move(payload), elements, seed);
        std::ranges::copy(head, payload.begin());
      }
      const std::vector<Payload> payloads(bytes.begin(), bytes.end());
      std::vector<float> expected(elements);
      codec_->decode_sum(payloads, expected);
      const Block block(*device_, bytes);
      Runner runner(*device_, *twin_, elements);
      const auto sum = runner.floats(elements, [&](std::span<float> out, const DeviceWork& work) {
        twin_->decode_sum(block.payloads(), 1, out, work);
      });
      ASSERT_EQ(bits(sum), bits(expected)) << elements;
      for (const ReplyKind kind : reply_kinds(*codec_)) {
        bool nonfinite = false;
        const Bytes reply = replied(*codec_, payloads, elements, kind, {}, &nonfinite);
        const Bytes there =
            runner.bytes(codec_->max_reply_size(elements, 3, kind), [&](auto out, const DeviceWork& work) {
              return twin_->encode_reply(block.payloads(), elements, kind, {}, out, work);
            });
        expect_same_bytes(there, reply);
      }
    }
  }
}

TEST_P(DeviceCodecConformance, ImpossibleCountsAreReported) {
  if (!codec_->has_exact_reply()) {
    EXPECT_THROW(decode_reply(*device_, *twin_, Bytes(8), 1, ReplyKind::kExact, 1, 1), DecodeError);
    return;
  }
  std::size_t impossible = 0;
  for (const std::size_t ways : {1, 2, 8, 200}) {
    for (const std::size_t elements : {1, 64, 65, 1000}) {
      const auto bytes = rounds_of(*codec_, elements, ways)[0];
      Bytes reply =
          replied(*codec_, std::vector<Payload>(bytes.begin(), bytes.end()), elements, ReplyKind::kExact, {});
      // All bits of the last group's elements, whose counts may count where they are absent too.
      const std::size_t headers = codec_->agrees_scales() ? two_bit::body_offset(elements) : 0;
      const std::size_t groups = (elements + two_bit::kPlaneGroup - 1) / two_bit::kPlaneGroup;
      const auto group_bytes = static_cast<std::ptrdiff_t>((reply.size() - headers) / groups);
      std::fill(reply.end() - group_bytes, reply.end(), std::byte{0xff});
      std::vector<float> values(elements);
      std::string expected;
      try {
        codec_->decode_reply(reply, ways, ReplyKind::kExact, values, {});
      } catch (const DecodeError& error) {
        expected = error.what();
      }
      const Decoded decoded = decode_reply(*device_, *twin_, reply, ways, ReplyKind::kExact, 1, elements);
      std::string found;
      try {
        twin_->check_report(decoded.report, ways);
      } catch (const DecodeError& error) {
        found = error.what();
      }
      EXPECT_EQ(found, expected) << ways << " ways, " << elements;
      impossible += found.empty() ? 0 : 1;
    }
  }
  EXPECT_GE(impossible, 8U);  // of 16; where bits hold counts up to `ways` alone, none is impossible
}

/// What a call throws: its kind and its text, which must be the CPU codec's.
template <typename Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const DecodeError& error) {
    return std::string("DecodeError ") + error.what();
  } catch (const std::invalid_argument& error) {
    return std::string("invalid_argument ") + error.what();
  }
  return "nothing";
}

TEST_P(DeviceCodecConformance, BadBytesAreTheSameErrors) {
  const std::size_t elements = 100;
  std::vector<float> out(elements);
  for (const auto& honest : rounds_of(*codec_, elements, 2)) {
    for (std::size_t spoilt = 0; spoilt < 60; ++spoilt) {
      std::vector<Bytes> bytes = honest;
      Bytes& bad = bytes[1];
      if (spoilt < 30) {
        bad[spoilt % bad.size()] ^= std::byte{0xff};
      } else if (spoilt < 58) {
        bad.resize(spoilt < 45 ? bad.size() - std::min(bad.size(), spoilt - 29) : spoilt - 45);
      } else {
        bad.push_back(std::byte{0});
      }
      const std::vector<Payload> payloads(bytes.begin(), bytes.end());
      const Block block(*device_, bytes);
      Runner runner(*device_, *twin_, elements);
      const DeviceArray<float> out_there(*device_, out);
      EXPECT_EQ(thrown([&] { twin_->decode_sum(block.payloads(), 1, out_there.span(), runner.work()); }),
                thrown([&] { codec_->decode_sum(payloads, out); }));
      device_->finish(runner.work().stream);
    }
    const std::vector<Payload> payloads(honest.begin(), honest.end());
    for (const ReplyKind kind : reply_kinds(*codec_)) {
      const Bytes good = replied(*codec_, payloads, elements, kind, {});
      for (std::size_t spoilt = 0; spoilt < 32; ++spoilt) {
        Bytes bad = good;
        if (spoilt < 24 && codec_->agrees_scales()) bad[spoilt] ^= std::byte{0xff};
        if (spoilt >= 24)
          bad.resize(spoilt < 31 ? bad.size() - std::min(bad.size(), spoilt - 23) : bad.size() + 1);
        std::vector<UnitScale> next(codec_->agrees_scales() ? 1 : 0);
        EXPECT_EQ(thrown([&] { decode_reply(*device_, *twin_, bad, 2, kind, 1, elements); }),
                  thrown([&] { codec_->decode_reply(bad, 2, kind, out, next); }));
      }
    }
  }
}

TEST_P(DeviceCodecConformance, MisuseIsAnInvalidArgument) {
  const std::size_t elements = 100;
  const DeviceArray<float> grad(*device_, gaussian(elements, 1));
  const DeviceArray<float> short_residual(*device_, std::vector<float>(99));
  const DeviceArray<std::byte> room(*device_, Bytes(codec_->max_encoded_size(elements) + 8));
  const DeviceArray<UnitScale> scales(*device_, std::vector<UnitScale>(2));
  Runner runner(*device_, *twin_, elements);
  const auto encode = [&](std::span<float> residual, std::span<std::byte> out, const DeviceWork& work) {
    return thrown([&] { twin_->encode(grad.span(), residual, {}, out, work); });
  };
  const auto room_span = room.span();
  EXPECT_THAT(encode(short_residual.span(), room_span, runner.work()), testing::HasSubstr("99 elements"));
  EXPECT_THAT(encode({}, room_span.first(room_span.size() - 9), runner.work()),
              testing::HasSubstr("the output"));
  EXPECT_THAT(encode({}, room_span.subspan(1), runner.work()), testing::HasSubstr("multiple of 8"));
  DeviceWork work = runner.work();
  work.report = nullptr;
  EXPECT_THAT(encode({}, room_span, work), testing::HasSubstr("no report"));
  if (twin_->scratch_bytes(elements) > 0) {
    work = runner.work();
    work.scratch = work.scratch.first(work.scratch.size() - 1);
    EXPECT_THAT(encode({}, room_span, work), testing::HasSubstr("the scratch has"));
  }
  if (codec_->agrees_scales()) {
    EXPECT_THAT(thrown([&] { twin_->encode(grad.span(), {}, scales.span(), room_span, runner.work()); }),
                testing::HasSubstr("2 scales were given"));
  }
  const auto bytes = rounds_of(*codec_, elements, 2)[0];
  const Block block(*device_, bytes);
  const DeviceArray<float> out(*device_, std::vector<float>(elements));
  DevicePayloads payloads = block.payloads();
  payloads.stride -= 8;
  const auto decode = [&] {
    return thrown([&] { twin_->decode_sum(payloads, 1, out.span(), runner.work()); });
  };
  EXPECT_THAT(decode(), testing::HasSubstr("bytes apart"));
  payloads.stride += 9;
  EXPECT_THAT(decode(), testing::HasSubstr("bytes apart"));
  payloads = {};
  EXPECT_THAT(decode(), testing::HasSubstr("0 payloads cannot be summed"));
  if (codec_->has_exact_reply()) return;
  EXPECT_THAT(thrown([&] {
                twin_->encode_reply(block.payloads(), elements, ReplyKind::kExact, {}, room_span,
                                    runner.work());
              }),
              testing::HasSubstr("has no exact reply"));
}

TEST_P(DeviceGolden, MxnetsBytesComeOut) {
  std::size_t compared = 0;
  for (const golden::Key& key : golden::keys()) {
    const CodecSpec spec{"2bit", {{"threshold", static_cast<double>(key.threshold)}, {"nonfinite", "mxnet"}}};
    const auto twin = device_->twin(spec);
    for (std::size_t w = 0; w < key.steps[0].pushes.size(); ++w) {
      const DeviceArray<float> residual(*device_, std::vector<float>(key.elements));
      for (const golden::Step& step : key.steps) {
        const golden::Push& push = step.pushes[w];
        const DeviceArray<float> grad(*device_, push.grad);
        Runner runner(*device_, *twin, key.elements);
        const Bytes packed =
            runner.bytes(twin->codec().max_encoded_size(key.elements), [&](auto out, const DeviceWork& work) {
              return twin->encode(grad.span(), residual.span(), {}, out, work);
            });
        ASSERT_EQ(packed, push.packed) << key.elements;
        ASSERT_EQ(bits(residual.values()), bits(push.residual)) << key.elements;
        ++compared;
      }
    }
    for (const golden::Step& step : key.steps) {
      std::vector<Bytes> packed;
      for (const golden::Push& push : step.pushes) packed.push_back(push.packed);
      const Block block(*device_, packed);
      const auto pulled = Runner(*device_, *twin, key.elements)
                              .floats(key.elements, [&](std::span<float> out, const DeviceWork& work) {
                                twin->decode_sum(block.payloads(), 1, out, work);
                              });
      ASSERT_EQ(bits(pulled), bits(step.pulled)) << key.elements;
    }
  }
  EXPECT_GT(compared, 150u);
}

}  // namespace
}  // namespace gradwire::compress
