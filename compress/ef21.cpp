#include "compress/ef21.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "compress/codecs.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::uint32_t kEf21Magic = 0x31324547;  // "GE21"
constexpr std::size_t kEf21HeadBytes = 16;        // magic, u32 0, u64 elements

using Head = std::array<std::byte, kEf21HeadBytes>;

Head head_of(std::size_t elements) {
  Head head{};
  store(kEf21Magic, head.data());
  store(static_cast<std::uint64_t>(elements), head.data() + 8);
  return head;
}

/// What a codec makes of 0. An estimate that is right already moves away by it.
float value_of_nothing(const Codec& codec) {
  const float nothing = 0;
  float sent = 0;
  std::vector<std::byte> out(codec.max_encoded_size(1));
  const Encoded encoded = codec.encode({&nothing, 1}, {}, {}, out);
  codec.decode(Payload(out).first(encoded.bytes), {&sent, 1});
  return sent;
}

void add_to(std::span<float> to, std::span<const float> values) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

}  // namespace

EF21::EF21(const Codec& codec, std::size_t elements)
    : codec_(codec), estimate_(elements), sum_(elements), change_(elements) {
  const std::string who = "ef21 of " + std::string(codec.name());
  if (elements == 0) throw std::invalid_argument(who + ": 0 elements given, expected at least 1");
  if (!codec.lossy()) {
    throw std::invalid_argument(who +
                                ": this codec loses nothing; send the gradient itself, or give a lossy one");
  }
  // Asked of the codec itself, so that no list of codecs has to know.
  if (const float sent = value_of_nothing(codec); sent != 0) {
    throw std::invalid_argument(
        who + ": " + canonical_spec(codec.spec()) + " sends " + parameter_text(static_cast<double>(sent)) +
        " where the estimate lacks nothing, so that the estimate never settles; give a "
        "codec that sends 0 for 0, such as 1bit:threshold=mean");
  }
}

void EF21::require_elements(const char* what, std::size_t given) const {
  if (given == elements()) return;
  throw std::invalid_argument("ef21 of " + std::string(codec_.name()) + ": " + what + " has " +
                              std::to_string(given) + " elements, expected " + std::to_string(elements()));
}

Encoded EF21::encode(std::span<const float> grad, std::span<const UnitScale> scales, std::span<std::byte> out,
                     const Position& position) {
  require_elements("the gradient", grad.size());
  for (std::size_t i = 0; i < elements(); ++i) change_[i] = grad[i] - estimate_[i];
  const Encoded encoded = codec_.encode(change_, {}, scales, out, position);
  // What the payload stands for, as every receiver reads it: estimates here and there stay equal to the bit.
  codec_.decode(out.first(encoded.bytes), change_);
  add_to(estimate_, change_);
  return encoded;
}

void EF21::add(std::span<const float> answer) {
  require_elements("the answer", answer.size());
  // All are checked before the first is added: a NaN in the sum would stay for ever.
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (is_finite(answer[i])) continue;
    throw std::invalid_argument("ef21 of " + std::string(codec_.name()) + ": element " + std::to_string(i) +
                                " of the answer is " + parameter_text(static_cast<double>(answer[i])) +
                                ", expected a finite number; reset() all workers and begin anew");
  }
  add_to(sum_, answer);
}

void EF21::reset() {
  std::fill(estimate_.begin(), estimate_.end(), 0.0f);
  std::fill(sum_.begin(), sum_.end(), 0.0f);
}

std::size_t EF21::saved_bytes() const noexcept { return kEf21HeadBytes + 2 * elements() * sizeof(float); }

void EF21::save(std::span<std::byte> out) const {
  if (out.size() != saved_bytes()) {
    throw std::invalid_argument("ef21 of " + std::string(codec_.name()) + ": room for " +
                                std::to_string(out.size()) + " bytes of state, expected " +
                                std::to_string(saved_bytes()));
  }
  const Head head = head_of(elements());
  std::byte* to = std::copy(head.begin(), head.end(), out.data());
  for (const auto* array : {&estimate_, &sum_}) {
    const auto bytes = std::as_bytes(std::span(*array));
    to = std::copy(bytes.begin(), bytes.end(), to);
  }
}

void EF21::load(std::span<const std::byte> saved) {
  const std::string who = "ef21 of " + std::string(codec_.name()) + ": ";
  const Head expected = head_of(elements());
  if (saved.size() != saved_bytes() || !std::equal(expected.begin(), expected.end(), saved.begin())) {
    throw DecodeError(who + "the saved state (" + std::to_string(saved.size()) + " bytes) is not one of " +
                      std::to_string(elements()) + " elements (" + std::to_string(saved_bytes()) + " bytes)");
  }
  const auto floats = saved.subspan(kEf21HeadBytes);
  for (std::size_t i = 0; i < 2 * elements(); ++i) {
    const auto value = compress::load<float>(floats.data() + i * sizeof(float));
    if (is_finite(value)) continue;
    throw DecodeError(who + "element " + std::to_string(i % elements()) + " of the saved " +
                      (i < elements() ? "estimate" : "sum") + " is " +
                      parameter_text(static_cast<double>(value)) + ", expected a finite number");
  }
  for (std::size_t i = 0; i < elements(); ++i) {
    estimate_[i] = compress::load<float>(floats.data() + i * sizeof(float));
    sum_[i] = compress::load<float>(floats.data() + (elements() + i) * sizeof(float));
  }
}

}  // namespace gradwire::compress
