#include "compress/codecs.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <vector>

#include "compress/block/fp8.h"
#include "compress/block/int8_int4_nf2_nf4.h"
#include "compress/block/qsgd.h"
#include "compress/dense/none_fp16_bf16.h"
#include "compress/one_bit/one_bit.h"
#include "compress/payload/parameters.h"
#include "compress/sparse/random_k.h"
#include "compress/sparse/top_k.h"
#include "compress/stochastic/natural.h"
#include "compress/stochastic/terngrad.h"
#include "compress/suggestions.h"
#include "compress/two_bit/two_bit.h"

namespace gradwire::compress {
namespace {

const CodecEntry kCodecs[] = {
    {"none", WireId::kNone, "float32 as it is", none_parameters(), make_none, none_from_wire},
    {"fp16", WireId::kFp16, "half precision, 2x smaller, error feedback", half_parameters(), make_fp16,
     fp16_from_wire},
    {"bf16", WireId::kBf16, "bfloat16, 2x smaller, error feedback", half_parameters(), make_bf16,
     bf16_from_wire},
    {"2bit", WireId::kTwoBit, "MXNet's 2-bit code, 16x smaller, error feedback, exact integer sums",
     two_bit_parameters(), make_two_bit, two_bit_from_wire},
    {"int8", WireId::kInt8, "8-bit integers with a scale per block, 4x smaller, error feedback",
     int8_parameters(), make_int8, int8_from_wire},
    {"int4", WireId::kInt4, "4-bit integers with a scale per block, 7.5x smaller, error feedback",
     int4_parameters(), make_int4, int4_from_wire},
    {"nf2", WireId::kNf2, "four levels in 2 bits with a scale per block, 15x smaller, error feedback",
     nf2_parameters(), make_nf2, nf2_from_wire},
    {"nf4", WireId::kNf4, "sixteen levels in 4 bits with a scale per block, 7.8x smaller, error feedback",
     nf4_parameters(), make_nf4, nf4_from_wire},
    {"fp8", WireId::kFp8, "8-bit floats with a scale per block, 4x smaller, error feedback", fp8_parameters(),
     make_fp8, fp8_from_wire},
    {"1bit", WireId::kOneBit, "signs scaled by the mean, or MXNet's 1-bit code, 32x smaller, error feedback",
     one_bit_parameters(), make_one_bit, one_bit_from_wire},
    {"topk", WireId::kTopK, "the largest 1 % with their indices, 66x smaller, error feedback",
     top_k_parameters(), make_top_k, top_k_from_wire},
    {"randomk", WireId::kRandomK, "a random 1 %, the same on all ranks, 100x smaller, error feedback",
     random_k_parameters(), make_random_k, random_k_from_wire},
    {"qsgd", WireId::kQsgd,
     "QSGD: 4 or 8 bits rounded by chance, a scale per bucket, 7.9x smaller, error feedback",
     qsgd_parameters(), make_qsgd, qsgd_from_wire},
    {"terngrad", WireId::kTernGrad,
     "TernGrad: a scale or its opposite by chance, else 0, 16x smaller, error feedback",
     terngrad_parameters(), make_terngrad, terngrad_from_wire},
    {"natural", WireId::kNatural, "powers of two by chance, 3.6x smaller, error feedback",
     natural_parameters(), make_natural, natural_from_wire},
};

struct OtherName {
  std::string_view elsewhere;
  std::string_view codec;
};

/// What other libraries call these codecs. They are not accepted, so that a codec has one name everywhere.
constexpr OtherName kOtherNames[] = {
    {"8bit", "int8"},    {"8-bit", "int8"},    {"4bit", "nf4"},    {"4-bit", "nf4"},    {"half", "fp16"},
    {"float16", "fp16"}, {"bfloat16", "bf16"}, {"fp32", "none"},   {"float32", "none"}, {"float8", "fp8"},
    {"sign", "1bit"},    {"signsgd", "1bit"},  {"onebit", "1bit"}, {"dgc", "topk"},
};

/// Returns the codec's name here if `name` is one from elsewhere, else `name`, in small letters.
std::string name_here(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  const auto* found = std::find_if(std::begin(kOtherNames), std::end(kOtherNames),
                                   [&](const OtherName& other) { return other.elsewhere == name; });
  return found == std::end(kOtherNames) ? name : std::string(found->codec);
}

const CodecEntry& entry_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : kCodecs) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  const std::string advice = name == "powersgd"
                                 ? "PowerSGD takes two rounds, and is no codec: see gradwire.power_sgd; "
                                 : did_you_mean(name_here(std::string(name)), names);
  throw std::invalid_argument("unknown codec " + std::string(name) + "; " + advice + "valid: " + join(names));
}

/// Refuses names that the codec does not have, and a name given twice.
void check_parameter_names(const CodecEntry& entry, const CodecSpec& spec) {
  std::vector<std::string_view> valid;
  for (const ParameterInfo& parameter : entry.parameters) valid.push_back(parameter.name);
  std::vector<std::string_view> seen;
  for (const Parameter& parameter : spec.parameters) {
    const std::string who = spec.name + ": parameter " + parameter.name;
    if (valid.empty()) throw std::invalid_argument(who + " was given, but this codec has none");
    if (std::find(valid.begin(), valid.end(), parameter.name) == valid.end()) {
      throw std::invalid_argument(who + " is unknown; " + did_you_mean(parameter.name, valid) +
                                  "valid: " + join(valid));
    }
    // find_parameter() takes the first, so a second value would be ignored without a word.
    if (std::find(seen.begin(), seen.end(), parameter.name) != seen.end()) {
      throw std::invalid_argument(who + " was given twice");
    }
    seen.push_back(parameter.name);
  }
}

/// The names of the codecs whose default form answers with exact sums.
std::string codecs_with_exact_reply() {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : kCodecs) {
    if (entry.make({std::string(entry.name), {}})->has_exact_reply()) names.push_back(entry.name);
  }
  return join(names);
}

}  // namespace

std::span<const CodecEntry> codecs() noexcept { return kCodecs; }

std::unique_ptr<Codec> make(const CodecSpec& spec) {
  const CodecEntry& entry = entry_named(spec.name);
  check_parameter_names(entry, spec);
  return entry.make(spec);
}

std::unique_ptr<Codec> from_wire(WireId id, const WireParameters& parameters) {
  for (const CodecEntry& entry : kCodecs) {
    if (entry.wire_id == id) return entry.from_wire(parameters);
  }
  throw DecodeError("codec id " + std::to_string(static_cast<unsigned>(id)) +
                    " is unknown here; the sender may run a newer gradwire");
}

bool keeps_nonfinite(const Codec& codec) {
  const auto parameters = codec.spec().parameters;
  return std::find(parameters.begin(), parameters.end(), Parameter{"nonfinite", "mxnet"}) != parameters.end();
}

ReplyKind reply_kind(const Codec& codec, std::string_view reply) {
  std::vector<std::string_view> valid;
  if (codec.has_exact_reply()) valid.push_back("exact");
  valid.push_back(codec.name());
  valid.push_back("fp32");
  if (std::find(valid.begin(), valid.end(), reply) == valid.end()) {
    const std::string given = std::string(codec.name()) + ": reply=" + std::string(reply);
    // A valid word that this codec cannot give: the error says why, and which codec can.
    if (reply == "exact") {
      throw std::invalid_argument(given + " needs integer sums, which " + codecs_with_exact_reply() +
                                  " has; replies of this codec: " + join(valid));
    }
    throw std::invalid_argument(given + " is unknown; " + did_you_mean(reply, valid) +
                                "valid: " + join(valid));
  }
  if (reply == "fp32") return ReplyKind::kFp32;
  return reply == "exact" ? ReplyKind::kExact : ReplyKind::kSame;
}

}  // namespace gradwire::compress
