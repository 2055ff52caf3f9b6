// Codec turns a run of float gradients into a payload and payloads back into sums.
//
// Threading: a Codec is immutable; every const method may run on many threads at once (on different spans).
// Lifetime: nothing keeps a span after the call; scratch memory, if any, is a thread's, made once.
//
// A run handed to a Codec starts on a codec-unit boundary of one tensor and, unless it ends the tensor, holds
// whole units. So cutting a tensor into other partitions changes no bit of any unit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gradwire::compress {

using Payload = std::span<const std::byte>;

/// Elements in a codec unit: the run that shares one agreed scale. The last unit of a tensor may be shorter.
inline constexpr std::size_t kUnitElements = 65536;

/// Names a codec on the wire. Part of the wire format, never renumber.
enum class WireId : std::uint8_t {
  kNone = 0,
  kFp16 = 1,
  kBf16 = 2,
  kTwoBit = 3,
  kInt8 = 4,
  kInt4 = 5,
  kFp8 = 6,
  kOneBit = 7,
  kTopK = 8,
  kRandomK = 9,
  kQsgd = 10,
  kTernGrad = 11,
  kNatural = 12,
  kNf2 = 13,
  kNf4 = 14,
};

/// How a Server answers a round. Part of the wire format, never renumber.
enum class ReplyKind : std::uint8_t {
  kFp32 = 0,   ///< "fp32": the decoded sum, 32 bits an element
  kExact = 1,  ///< "exact": the integer sum of codes, at most ceil(log2(2N+1)) bits an element
  kSame = 2,   ///< the codec's own name: the sum encoded again, with a residual kept by Server
};

/// Which run of which round is encoded. A codec that draws random numbers draws them by this, so they differ
/// from round to round and do not depend on how a tensor is cut.
struct Position {
  std::uint32_t key = 0;     ///< the tensor, the same number on all ranks
  std::uint32_t rank = 0;    ///< of the encoder
  std::uint64_t step = 0;    ///< rounds of the tensor before this one
  std::uint64_t offset = 0;  ///< elements of the tensor before the run, whole codec units
  bool operator==(const Position&) const = default;
};

/// Scale of one codec unit, the same on all workers, agreed one round ahead.
struct UnitScale {
  float threshold = 0;  ///< an element is sent when |gradient + residual| >= threshold
  float level = 0;      ///< the value that a sent element stands for; 0 sends nothing
  bool operator==(const UnitScale&) const = default;
};

/// Bytes that do not follow the payload format of the codec.
class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One parameter as a user gives it: a number or a word.
using ParameterValue = std::variant<double, std::string>;

struct Parameter {
  std::string name;
  ParameterValue value;
  bool operator==(const Parameter&) const = default;
};

/// A codec as a user asks for it, e.g. {"2bit", {{"threshold", 0.5}}}. make() validates every value.
struct CodecSpec {
  std::string name = "none";
  std::vector<Parameter> parameters;
  bool operator==(const CodecSpec&) const = default;
};

/// The codec's parameters as exact bits; travels in the frame header, so that a Server needs no other source.
using WireParameters = std::array<std::uint32_t, 4>;

struct Encoded {
  std::size_t bytes = 0;  ///< payload length
  /// A NaN or infinity was found, which never entered a residual under nonfinite="skip". Or a value beyond
  /// the format (fp16: 65504) was found, of which the largest finite value was sent and the rest kept.
  bool nonfinite = false;
};

class Bf16Residuals;
class Float64Codec;
class IntegerSums;

class Codec {
 public:
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  virtual std::string_view name() const noexcept = 0;
  virtual WireId wire_id() const noexcept = 0;
  virtual WireParameters wire_parameters() const noexcept = 0;
  /// The spec that makes this codec, every parameter that applies written out, in the table's order.
  virtual CodecSpec spec() const = 0;

  /// True when encode() loses information, so a residual per (tensor, rank) is worth keeping.
  virtual bool lossy() const noexcept = 0;
  /// True when the sum of codes is an integer and ReplyKind::kExact exists.
  virtual bool has_exact_reply() const noexcept = 0;
  /// True when encode() needs scales from the reply of the round before.
  virtual bool agrees_scales() const noexcept = 0;
  /// True when the payloads of two runs, one after the other, are the payload of both: units have no meaning
  /// for this codec.
  virtual bool concatenates() const noexcept { return false; }
  /// True when the user wants payloads and own-name replies shortened (lossless_payload.h). The sender
  /// shortens them; encode() and decode_sum() know nothing of it.
  virtual bool wants_lossless_stage() const noexcept { return false; }
  /// How a library may sum payloads as integers (integer_sums.h); null: it cannot. Lives as long as the
  /// codec.
  virtual const IntegerSums* integer_sums() const noexcept { return nullptr; }
  /// This, where payloads are of float64 (float64_codec.h); null: they are made of float32.
  virtual const Float64Codec* as_float64() const noexcept { return nullptr; }

  // Requires for all below: `elements` > 0; spans do not overlap unless said.

  virtual std::size_t max_encoded_size(std::size_t elements) const noexcept = 0;

  /// Encodes grad + residual, keeps what was not sent in residual (same length as grad, or empty: no error
  /// feedback). Requires out.size() >= max_encoded_size(grad.size()); scales is empty (no round yet, or the
  /// codec agrees none) or holds one entry per unit of grad. Throws std::invalid_argument where that does not
  /// hold, and has changed no residual then.
  virtual Encoded encode(std::span<const float> grad, std::span<float> residual,
                         std::span<const UnitScale> scales, std::span<std::byte> out,
                         const Position& position) const = 0;

  /// The same for a codec that draws nothing, or for a single run.
  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out) const {
    return encode(grad, residual, scales, out, Position{});
  }

  /// Writes the sum of the payloads, added in the order given (rank order), to out. One pass over the
  /// payloads. Throws DecodeError naming the payload at fault; out is then unspecified.
  virtual void decode_sum(std::span<const Payload> payloads, std::span<float> out) const = 0;

  void decode(Payload payload, std::span<float> out) const { decode_sum({&payload, 1}, out); }

  /// Checks one payload for `elements` without writing anything. Throws DecodeError.
  virtual void validate(Payload payload, std::size_t elements) const = 0;

  /// Largest reply to `ways` payloads of `elements` elements each.
  virtual std::size_t max_reply_size(std::size_t elements, std::size_t ways,
                                     ReplyKind kind) const noexcept = 0;

  /// Encodes the answer to one round. residual belongs to Server: empty, or elements long and used by kSame.
  /// Throws DecodeError for a bad payload, std::invalid_argument when has_exact_reply() forbids kind.
  virtual Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                               std::span<float> residual, std::span<std::byte> out) const = 0;

  /// Decodes an answer into the sum and, where the codec agrees scales, the next round's scales (one per
  /// unit; otherwise next is empty).
  virtual void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                            std::span<UnitScale> next) const = 0;

  /// decode_reply(), then out times scale unless that is 1: the same bits, in one pass where the codec can.
  virtual void decode_reply_scaled(Payload reply, std::size_t ways, ReplyKind kind, float scale,
                                   std::span<float> out, std::span<UnitScale> next) const {
    decode_reply(reply, ways, kind, out, next);
    if (scale == 1) return;
    for (float& value : out) value *= scale;
  }

  /// How encode() runs with a residual in bfloat16 (bf16_residuals.h); null: it cannot. Lives as long as the
  /// codec.
  virtual const Bf16Residuals* bf16_residuals() const noexcept { return nullptr; }

 protected:
  Codec() = default;
};

/// Units that `elements` elements of one tensor fill.
constexpr std::size_t unit_count(std::size_t elements) {
  return (elements + kUnitElements - 1) / kUnitElements;
}

}  // namespace gradwire::compress
