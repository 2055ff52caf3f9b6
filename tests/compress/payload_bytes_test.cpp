// Golden bytes: payloads and residuals worked out by hand from compress/FORMAT.md, as its examples are.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "compress/codecs.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

/// 32 zeros, then values.
std::vector<float> behind_zeros(std::vector<float> values) {
  values.insert(values.begin(), 32, 0.0f);
  return values;
}

struct Example {
  std::string spec;
  std::vector<float> grad;
  std::vector<float> before;
  std::string payload;  ///< hexadecimal, spaces apart
  std::vector<float> after;
  std::vector<float> decoded;
};

const Example kExamples[] = {
    {"fp16", {1, -2, 1e6f}, {0, 0, 0}, "003c 00c0 ff7b", {0, 0, 1e6f - 65504}, {1, -2, 65504}},
    {"bf16", {1, -2}, {0, 0}, "803f 00c0", {0, 0}, {1, -2}},
    {"2bit",
     {.5f, -.5f, .49999997f, -.49999997f, 1, -1, 0, .3f},
     {0, 0, 0, 0, 0, 0, 0, 0},
     "e0e00000",
     {0, 0, .49999997f, -.49999997f, .5f, -.5f, 0, .3f},
     {.5f, -.5f, 0, 0, .5f, -.5f, 0, 0}},
    {"int8",
     {126, -63.5f, 1, .25f},
     {1, 0, 0, .25f},
     "0000803f 7f c0 01 00",
     {0, .5f, 0, .5f},
     {127, -64, 1, 0}},
    {"int4", {14, -7, 2, 1, -4}, {0, 0, 0, 0, 0}, "00000040 c7 01 0e", {0, 1, 0, 1, 0}, {14, -8, 2, 0, -4}},
    {"nf2", {8, -3, 2, -1, 2}, {0, 0, 0, 0, 0}, "0040 89 00", {0, -1, 0, 1, 0}, {8, -2, 2, -2, 2}},
    {"nf4",
     {250, -127, 30, -1, 5},
     {4, 0, 0, 0, 0},
     "0040 b8 02 00",
     {16, 5, -6, -1, 5},
     {238, -132, 36, 0, 0}},
    {"fp8",
     {896, -34, 2, 1.75f, .0078125f, -.00390625f},
     {0, 0, 0, 0, 0, 0},
     "00000040 7e d8 38 36 02 81",
     {0, -2, 0, 0, 0, 0},
     {896, -32, 2, 1.75f, .0078125f, -.00390625f}},
    {"fp8:format=e5m2",
     {57344, -9, 0, 1.125f, -0x1p-15f},
     {0, 0, 0, 0, 0},
     "0000803f 7b c8 00 3c 82",
     {0, -1, 0, .125f, 0},
     {57344, -8, 0, 1, -0x1p-15f}},
    {"1bit",
     {1, -2, 3, .5f},
     {0, 0, 0, .5f},
     "0000e03f b0000000",
     {-.75f, -.25f, 1.25f, -.75f},
     {1.75f, -1.75f, 1.75f, 1.75f}},
    {"1bit", behind_zeros({1, -2}), behind_zeros({0, 0}), "0000c03f 9e3779b9 80000000",
     behind_zeros({-.5f, -.5f}), behind_zeros({1.5f, -1.5f})},
    {"topk:ratio=0.25",
     {1, -5, 2, 5, 0, 3, -5, 0},
     {0, 0, 0, 0, 0, 0, 0, .5f},
     "0100 0300 0000a0c0 0000a040",
     {1, 0, 2, 0, 0, 3, -5, .5f},
     {0, -5, 0, 5, 0, 0, 0, 0}},
    {"topk:ratio=0.25,values=fp16",
     {0, 0, 0, -1e6f},
     {0, 0, 0, 0},
     "0300 fffb",
     {0, 0, 0, 65504 - 1e6f},
     {0, 0, 0, -65504}},
    {"randomk:ratio=0.375,seed=7",
     {1, 2, 3, 4, 5, 6, 7, 8},
     {0, 0, .5f, 0, 0, 0, 0, 0},
     "0000000000000000 00000000 00000000 00006040 00000041 0000a040",
     {1, 2, 0, 4, 0, 6, 7, 0},
     {0, 0, 3.5f, 0, 5, 0, 0, 8}},
    {"qsgd:seed=3",
     {7, -2.5f, .5f, -.25f, 3.75f, 0},
     {0, .25f, 0, 0, 0, 0},
     "0000803f e7f003",
     {0, -.25f, .5f, .75f, .75f, 0},
     {7, -2, 0, -1, 3, 0}},
    {"terngrad:clip=1,seed=3",
     {6, -1, -5, 5},
     {1, 0, 0, 0},
     "0000a040 cb000000",
     {2, -1, 0, 0},
     {5, 0, -5, 5}},
    {"natural:seed=3",
     {1, -3, 1, -.75f, 0, 6},
     {0, 0, .25f, 0, 0, 0},
     "7f80807e0082 0a",
     {0, -1, -.75f, -.25f, 0, -2},
     {1, -2, 2, -.5f, 0, 8}},
    {"1bit:threshold=0.5",
     {.5f, .75f, -3, 0},
     {0, .25f, 0, 0},
     "40000000",
     {1.5f, 0, -2, 1},
     {-1, 1, -1, -1}},
};

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(b));
    text += two;
  }
  return text;
}

TEST(PayloadBytes, AreThoseOfTheFormat) {
  for (const Example& example : kExamples) {
    SCOPED_TRACE(example.spec);
    const auto codec = make(parse_spec(example.spec));
    auto residual = example.before;
    const auto payload = encoded(*codec, example.grad, residual, {});
    std::string expected = example.payload;
    std::erase(expected, ' ');
    EXPECT_EQ(hex(payload), expected);
    EXPECT_EQ(residual, example.after);
    std::vector<float> out(example.grad.size());
    codec->decode(payload, out);
    EXPECT_EQ(out, example.decoded);
  }
}

}  // namespace
}  // namespace gradwire::compress
