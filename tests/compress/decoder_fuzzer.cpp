// libFuzzer's door to the decoders of one codec: what it gives either decodes or is a DecodeError, and no
// decoder touches memory that is not its own (built with ASan and UBSan, preset `fuzz`).
//
//     gradwire_decoder_fuzzer --codec=2bit:threshold=auto -runs=100000 FOLDER
//
// The first bytes of an input say how many elements, ways and which decoder; the rest is the payload. The
// arguments after --codec are libFuzzer's own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compress/payload/integer_sums.h"
#include "compress/payload/segmented.h"
#include "compress/two_bit/lossless_payload.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using Bytes = std::vector<std::byte>;

std::unique_ptr<Codec> codec_under_test;  // set once, by LLVMFuzzerInitialize

/// Zeros in a heap block of exactly their size. Not a vector: filling it, element by element under the
/// sanitizer's counters, took most of a run.
class Zeros {
 public:
  explicit Zeros(std::size_t count)
      : floats_(static_cast<float*>(std::calloc(count, sizeof(float))), &std::free), count_(count) {}
  operator std::span<float>() { return {floats_.get(), count_}; }  // NOLINT(google-explicit-constructor)

 private:
  std::unique_ptr<float, decltype(&std::free)> floats_;
  std::size_t count_;
};

/// Takes an input apart from the front; zeros where it has ended.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes)
      : bytes_(bytes), is_large_(std::hash<std::string_view>{}(text_of(bytes)) % 64 == 0) {}

  unsigned byte() {
    if (bytes_.empty()) return 0;
    const unsigned value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }

  /// Small tensors mostly; one in 64 is more than a codec unit, which takes a hundred times as long. Not a
  /// byte says which: what libFuzzer makes from a large one would be large too.
  std::size_t elements() {
    const std::size_t value = byte() | byte() << 8;
    return is_large_ ? kUnitElements + value : 1 + value % 600;
  }

  /// The rest, in a heap block of exactly its size, so that ASan sees one read too many.
  Bytes rest() {
    Bytes copy(bytes_.size());
    if (!bytes_.empty()) std::memcpy(copy.data(), bytes_.data(), bytes_.size());
    bytes_ = {};
    return copy;
  }

 private:
  static std::string_view text_of(std::span<const std::uint8_t> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::uint8_t> bytes_;
  bool is_large_;
};

template <typename Call>
bool accepts(const Call& call) {
  try {
    call();
    return true;
  } catch (const DecodeError&) {
    return false;
  }
}

/// A push: what validate() accepts every decoder must take.
void fuzz_pushes(const Codec& codec, std::size_t elements, std::size_t ways, const Bytes& payload) {
  const bool is_valid = accepts([&] { codec.validate(payload, elements); });
  const std::vector<Payload> payloads(ways, Payload(payload));
  Zeros out(elements);
  const bool is_decoded = accepts([&] { codec.decode_sum(payloads, out); });
  if (is_valid != is_decoded && ways == 1) {
    std::fputs("validate() and decode_sum() do not agree\n", stderr);
    std::abort();
  }
  for (const ReplyKind kind : reply_kinds(codec)) {
    Zeros residual(elements);
    accepts([&] { replied(codec, payloads, elements, kind, residual); });
  }
}

void fuzz_replies(const Codec& codec, std::size_t elements, std::size_t ways, const Bytes& payload) {
  for (const ReplyKind kind : reply_kinds(codec)) {
    Zeros out(elements);
    std::vector<UnitScale> next(codec.agrees_scales() ? unit_count(elements) : 0);
    accepts([&] { codec.decode_reply(payload, ways, kind, out, next); });
  }
}

/// Several tensors in one payload, cut as the payload says.
void fuzz_segments(const Codec& codec, std::size_t elements, std::size_t ways, const Bytes& payload) {
  accepts([&] {
    const Segmented whole(codec, Segmented::segments_of(payload, elements));
    fuzz_pushes(whole, elements, ways, payload);
  });
}

/// The head of a payload and the integers that a library has added.
void fuzz_integer_sums(const Codec& codec, std::size_t elements, std::size_t ways, const Bytes& payload) {
  const IntegerSums* const sums = codec.integer_sums();
  if (sums == nullptr) return;
  const std::size_t head = std::min(sums->head_bytes(elements), payload.size());
  const Bytes front(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(head));
  const Bytes integers(payload.begin() + static_cast<std::ptrdiff_t>(head), payload.end());
  const std::vector<Payload> heads(head == 0 ? 0 : ways, Payload(front));
  for (const IntegerWidth width : {IntegerWidth::kInt8, IntegerWidth::kInt16}) {
    Zeros out(elements);
    accepts([&] { sums->decode_sum({ways, heads, integers, width}, out); });
  }
}

/// A payload that is said to be shortened: what comes back is a payload like any other.
void fuzz_shortened(const Codec& codec, std::size_t elements, std::size_t ways, const Bytes& payload) {
  accepts([&] {
    Bytes restored(lossless::restored_bytes(codec, payload, elements));
    lossless::restore(codec, payload, elements, restored);
    fuzz_pushes(codec, elements, ways, restored);
  });
}

void fuzz(Input input) {
  const Codec& codec = *codec_under_test;
  const unsigned door = input.byte();
  const std::size_t ways = 1 + input.byte() % 4;
  const std::size_t elements = input.elements();
  const Bytes payload = input.rest();
  switch (door % 4) {
    case 0:
      return fuzz_pushes(codec, elements, ways, payload);
    case 1:
      return fuzz_replies(codec, elements, ways, payload);
    case 2:
      return fuzz_segments(codec, elements, ways, payload);
    default:
      fuzz_shortened(codec, elements, ways, payload);
      return fuzz_integer_sums(codec, elements, ways, payload);
  }
}

}  // namespace
}  // namespace gradwire::compress

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace gradwire::compress;
  constexpr std::string_view kOption = "--codec=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (!argument.starts_with(kOption)) continue;
    try {
      codec_under_test = make(parse_spec(argument.substr(kOption.size())));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(2);
    }
  }
  if (codec_under_test) return 0;
  std::fputs("give the codec: --codec=2bit\n", stderr);
  for (const std::string& spec : specs_under_test()) std::fprintf(stderr, "  --codec=%s\n", spec.c_str());
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::compress::fuzz(gradwire::compress::Input({data, size}));
  return 0;
}
