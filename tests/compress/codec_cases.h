// What the suites that run on every codec share: the codecs to test and gradients to feed them.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compress/codecs.h"

namespace gradwire::compress {

/// Every codec as it is by default, then other forms worth the same tests.
inline std::vector<std::string> specs_under_test() {
  std::vector<std::string> specs;
  for (const CodecEntry& entry : codecs()) specs.emplace_back(entry.name);
  specs.insert(specs.end(), {"2bit:threshold=auto", "2bit:threshold=0.1,nonfinite=mxnet", "int8:block=32",
                             "int4:block=4096", "nf2:block=32", "nf2:block=1024", "nf4:block=32",
                             "nf4:block=4096", "fp8:format=e5m2,block=64", "1bit:threshold=0.1",
                             "topk:ratio=0.3,values=fp16", "randomk:ratio=0.3,seed=5,values=bf16",
                             "qsgd:bits=8,bucket=64,seed=3", "terngrad:clip=1,seed=3"});
  return specs;
}

inline std::vector<float> gaussian(std::size_t elements, unsigned seed, float deviation = 0.4f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

/// The replies that codec has.
inline std::vector<ReplyKind> reply_kinds(const Codec& codec) {
  std::vector<ReplyKind> kinds{ReplyKind::kFp32, ReplyKind::kSame};
  if (codec.has_exact_reply()) kinds.push_back(ReplyKind::kExact);
  return kinds;
}

inline std::vector<std::byte> encoded(const Codec& codec, std::span<const float> grad,
                                      std::span<float> residual, std::span<const UnitScale> scales,
                                      bool* nonfinite = nullptr, const Position& position = {}) {
  std::vector<std::byte> out(codec.max_encoded_size(grad.size()));
  const Encoded result = codec.encode(grad, residual, scales, out, position);
  if (nonfinite != nullptr) *nonfinite = result.nonfinite;
  out.resize(result.bytes);
  return out;
}

inline std::vector<std::byte> replied(const Codec& codec, std::span<const Payload> payloads,
                                      std::size_t elements, ReplyKind kind, std::span<float> residual,
                                      bool* nonfinite = nullptr) {
  std::vector<std::byte> out(codec.max_reply_size(elements, payloads.size(), kind));
  const Encoded result = codec.encode_reply(payloads, elements, kind, residual, out);
  if (nonfinite != nullptr) *nonfinite = result.nonfinite;
  out.resize(result.bytes);
  return out;
}

/// Scales as a round of one worker would agree them; empty for a codec that agrees none.
inline std::vector<UnitScale> scales_after_a_round(const Codec& codec, std::span<const float> grad) {
  if (!codec.agrees_scales()) return {};
  const auto payload = encoded(codec, grad, {}, {});
  const Payload payloads[] = {payload};
  const auto reply = replied(codec, payloads, grad.size(), ReplyKind::kFp32, {});
  std::vector<float> sum(grad.size());
  std::vector<UnitScale> next(unit_count(grad.size()));
  codec.decode_reply(reply, 1, ReplyKind::kFp32, sum, next);
  return next;
}

}  // namespace gradwire::compress
