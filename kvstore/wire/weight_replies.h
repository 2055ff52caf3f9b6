// WeightReplies is the format in which servers with an optimizer send weights back: as float32, rounded to
// 16 bits, or as differences to the weight that a worker has, which a codec compresses.
//
// What a codec leaves out of a difference stays at the server: the next difference is that of the new weight
// to what workers then have. So a worker's weight is bit for bit what its server takes it for, and no
// separate residual is needed. It is compress/ef21.h for weights, beginning with a whole one.
//
// Threading: immutable; the functions are pure apart from the spans they are given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compress/codec.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

class WeightReplies {
 public:
  enum class Form : std::uint8_t { kFloats, kRounded, kDeltas };

  /// Reads "fp32", "fp16", "bf16" or "delta:CODEC", as "delta:int8:block=64". Throws std::invalid_argument
  /// for anything else, and for codecs whose differences would not add up to the weight: those that agree
  /// scales over rounds, that leave nothing out, that send something where nothing is, and forms that are for
  /// gradients only.
  explicit WeightReplies(std::string_view text = "fp32");

  Form form() const { return form_; }
  bool are_deltas() const { return form_ == Form::kDeltas; }
  /// Requires a form other than kFloats.
  const compress::Codec& codec() const { return *codec_; }
  /// As the constructor reads it, the codec's parameters written out: equal texts are equal replies.
  const std::string& text() const { return text_; }

 private:
  Form form_ = Form::kFloats;
  std::unique_ptr<compress::Codec> codec_;
  std::string text_;
};

// What a worker gets for an element must not depend on the elements that travel with it, because users
// choose how partitions are cut. So where one element has no encoded form, floats are sent, and those of the
// others are as if they had been encoded.

/// Rounds a weight to the codec's 16 bits, to nearest even. Nothing where an element does not fit: it is not
/// finite, or larger than they can say.
std::optional<transport::Buffer> round_weight(const compress::Codec& codec, std::span<const float> weight,
                                              transport::BufferPool& pool);

/// The weight with all elements that fit as round_weight() rounds them, and the others as they are.
std::vector<float> round_what_fits(const compress::Codec& codec, std::span<const float> weight);

/// Encodes weight - held, and adds the decoded difference to held, as the receiver will. Returns nothing if
/// a difference is not finite. The receiver then needs held itself: it is the weight in that element's codec
/// unit, and what its difference makes of it in all others. Requires equal sizes, and whole codec units
/// except for the last.
std::optional<transport::Buffer> encode_delta(const compress::Codec& codec, std::span<const float> weight,
                                              const compress::Position& position, std::span<float> held,
                                              transport::BufferPool& pool);

/// Adds what a difference decodes to. Throws compress::DecodeError, and has changed nothing then.
void add_delta(const compress::Codec& codec, compress::Payload delta, std::span<float> weight);

}  // namespace gradwire::kvstore
