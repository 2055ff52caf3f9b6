// Specs as users write them: what is accepted, how it prints, what the errors say.
#include "compress/codecs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "compress/payload/parameters.h"
#include "compress/suggestions.h"

namespace gradwire::compress {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

std::string make_error(const std::string& text) {
  return error_of([&] { make(parse_spec(text)); });
}

TEST(Codecs, TableNamesAndIdsAreFixed) {
  const auto table = codecs();
  ASSERT_GE(table.size(), 4u);
  EXPECT_EQ(table[0].name, "none");
  EXPECT_EQ(table[1].name, "fp16");
  EXPECT_EQ(table[2].name, "bf16");
  EXPECT_EQ(table[3].name, "2bit");
  for (const CodecEntry& entry : table) {
    const auto codec = entry.make({std::string(entry.name), {}});
    EXPECT_EQ(codec->name(), entry.name);
    EXPECT_EQ(codec->wire_id(), entry.wire_id);
    EXPECT_FALSE(entry.summary.empty());
  }
}

TEST(Codecs, ParsesNumbersAndWords) {
  const CodecSpec spec = parse_spec("2bit:threshold=auto,scale=2.5");
  EXPECT_EQ(spec.name, "2bit");
  EXPECT_EQ(spec.parameters, (std::vector<Parameter>{{"threshold", "auto"}, {"scale", 2.5}}));
  EXPECT_EQ(parse_spec("none"), (CodecSpec{"none", {}}));
}

TEST(Codecs, MalformedSpecsAreRefused) {
  for (const char* text : {"", ":", ":threshold=1", "2bit:", "2bit:threshold", "2bit:=1",
                           "2bit:threshold=", "2bit:threshold=1,", "2bit:,threshold=1"}) {
    EXPECT_THROW(parse_spec(text), std::invalid_argument) << text;
  }
}

TEST(Codecs, CanonicalSpecWritesEveryParameterThatApplies) {
  EXPECT_EQ(canonical_spec(parse_spec("none")), "none");
  EXPECT_EQ(canonical_spec(parse_spec("fp16")), "fp16:nonfinite=skip");
  EXPECT_EQ(canonical_spec(parse_spec("2bit")), "2bit:threshold=0.5,nonfinite=skip");
  EXPECT_EQ(canonical_spec(parse_spec("2bit:nonfinite=mxnet,threshold=2")),
            "2bit:threshold=2,nonfinite=mxnet");
  EXPECT_EQ(canonical_spec(parse_spec("2bit:threshold=auto")),
            "2bit:threshold=auto,nonfinite=skip,scale=1.5,reply_scale=1.5");
  EXPECT_EQ(canonical_spec({"2bit", {{"threshold", "0.25"}}}), "2bit:threshold=0.25,nonfinite=skip");
}

TEST(Codecs, DefaultsOfTheTableAreThoseOfTheCodec) {
  for (const CodecEntry& entry : codecs()) {
    const CodecSpec full = entry.make({std::string(entry.name), {}})->spec();
    for (const Parameter& parameter : full.parameters) {
      for (const ParameterInfo& info : entry.parameters) {
        if (info.name != parameter.name) continue;
        EXPECT_EQ(parameter_text(parameter.value), info.default_value);
      }
    }
  }
  const CodecSpec full = make(parse_spec("2bit:threshold=auto"))->spec();
  for (const ParameterInfo& info : codecs()[3].parameters) {
    if (info.name == "threshold") continue;
    if (info.name == "lossless") {  // written only where it is on
      EXPECT_EQ(find_parameter(full, info.name), nullptr);
      continue;
    }
    EXPECT_EQ(parameter_text(*find_parameter(full, info.name)), info.default_value);
  }
}

TEST(Codecs, TheLosslessStageIsWrittenWhereItIsOn) {
  for (const std::string text : {"2bit:threshold=0.5,nonfinite=skip",
                                 "2bit:threshold=auto,nonfinite=skip,scale=1.5,reply_scale=1.5"}) {
    EXPECT_EQ(canonical_spec(parse_spec(text + ",lossless=off")), text);
    EXPECT_EQ(canonical_spec(parse_spec(text + ",lossless=on")), text + ",lossless=on");
    EXPECT_TRUE(make(parse_spec(text + ",lossless=on"))->wants_lossless_stage());
    EXPECT_FALSE(make(parse_spec(text))->wants_lossless_stage());
  }
}

TEST(Codecs, ThresholdsRoundTripAsFloat32) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const float threshold = std::fabs(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    if (!std::isfinite(threshold) || threshold == 0) continue;
    const auto codec = make({"2bit", {{"threshold", double{threshold}}}});
    const auto again = make(parse_spec(canonical_spec(codec->spec())));
    ASSERT_EQ(again->wire_parameters(), codec->wire_parameters());
    ASSERT_EQ(codec->wire_parameters()[0], std::bit_cast<std::uint32_t>(threshold));
  }
}

TEST(Codecs, UnknownNamesGetTheNearest) {
  EXPECT_THAT(make_error("2bits"), AllOf(HasSubstr("unknown codec 2bits"), HasSubstr("did you mean 2bit?"),
                                         HasSubstr("none, fp16, bf16, 2bit")));
  EXPECT_THAT(make_error("fpl6"), HasSubstr("did you mean fp16?"));
  EXPECT_THAT(make_error("8bit"), HasSubstr("did you mean int8?")) << "2bit is nearer by its letters";
  EXPECT_THAT(make_error("INT8"), HasSubstr("did you mean int8?"));
  EXPECT_THAT(make_error("fp32"), HasSubstr("did you mean none?"));
  EXPECT_THAT(make_error("powersgd"), AllOf(HasSubstr("gradwire.power_sgd"), HasSubstr("valid: none")));
  EXPECT_THAT(make_error("2bit:treshold=1"),
              AllOf(HasSubstr("treshold"), HasSubstr("did you mean threshold?"), HasSubstr("nonfinite")));
  EXPECT_THAT(make_error("2bit:nonfinite=mxnt"),
              AllOf(HasSubstr("nonfinite=mxnt"), HasSubstr("did you mean mxnet?")));
  EXPECT_THAT(make_error("none:threshold=1"), HasSubstr("threshold"));
  EXPECT_THAT(make_error("fp16:nonfinite=mxnet"), HasSubstr("valid: skip"));
  EXPECT_THAT(make_error("2bit:threshold=1,threshold=2"), HasSubstr("given twice"));
}

TEST(Codecs, BadThresholdsAreNamed) {
  for (const char* value : {"0", "-1", "nan", "inf", "-inf", "1e39", "1e-60", "-0", "Auto", "0.5x"}) {
    EXPECT_THAT(make_error(std::string("2bit:threshold=") + value),
                AllOf(HasSubstr("2bit: threshold="), HasSubstr("above 0"), HasSubstr("or the word auto")))
        << value;
  }
  EXPECT_THAT(make_error("2bit:threshold=auto,scale=0"), HasSubstr("scale=0"));
  EXPECT_THAT(make_error("2bit:threshold=auto,reply_scale=nan"), HasSubstr("reply_scale=nan"));
}

TEST(Codecs, ParametersThatDoNotApplyAreRefused) {
  EXPECT_THAT(make_error("2bit:scale=2"), HasSubstr("scale=2 applies to threshold=auto only"));
  EXPECT_THAT(make_error("2bit:threshold=0.5,reply_scale=2"), HasSubstr("applies to threshold=auto only"));
  EXPECT_THAT(make_error("2bit:threshold=auto,nonfinite=mxnet"), HasSubstr("nonfinite=mxnet"));
}

TEST(Codecs, RepliesByName) {
  const auto two_bit = make(parse_spec("2bit"));
  EXPECT_EQ(reply_kind(*two_bit, "exact"), ReplyKind::kExact);
  EXPECT_EQ(reply_kind(*two_bit, "2bit"), ReplyKind::kSame);
  EXPECT_EQ(reply_kind(*two_bit, "fp32"), ReplyKind::kFp32);
  EXPECT_EQ(reply_kind(*make(parse_spec("none")), "none"), ReplyKind::kSame);
  EXPECT_THAT(error_of([&] { reply_kind(*two_bit, "exat"); }),
              AllOf(HasSubstr("did you mean exact?"), HasSubstr("exact, 2bit, fp32")));
  EXPECT_THAT(error_of([] { reply_kind(*make(parse_spec("fp16")), "exact"); }),
              AllOf(HasSubstr("integer sums"), HasSubstr("2bit has"), HasSubstr("fp16, fp32")));
  EXPECT_THAT(error_of([] { reply_kind(*make(parse_spec("fp16")), "2bit"); }),
              HasSubstr("valid: fp16, fp32"));
}

TEST(Codecs, HostileWireParametersAreDecodeErrors) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(from_wire(static_cast<WireId>(200), {}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kNone, {1, 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTwoBit, {}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTwoBit, {bits(-1), 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTwoBit, {bits(nan), 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTwoBit, {bits(0.5f), bits(1), 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kTwoBit, {0, bits(1.5f), bits(nan), 0}), DecodeError);
  EXPECT_EQ(from_wire(WireId::kTwoBit, {bits(0.5f), 0, 0, 0})->wire_parameters()[0], bits(0.5f));
}

TEST(Codecs, NearestIsByEditDistance) {
  const std::string_view words[] = {"dist_sync", "local", "device"};
  EXPECT_EQ(nearest("dits_sync", words), "dist_sync");
  EXPECT_EQ(nearest("loc", words), "local");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("foo", words), "");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace gradwire::compress
