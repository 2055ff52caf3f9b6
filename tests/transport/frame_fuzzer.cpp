// What arrives before anybody is trusted, as hostile bytes: headers, whole messages, and the texts of control
// frames. --part=NAME says which; without it the names are listed. Each either throws FrameError, or gives
// what it gives again when written and read once more. Built and run by tests/fuzz.py, with clang, ASan and
// UBSan.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/checksum.h"
#include "transport/frame.h"
#include "transport/membership/control.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kChecksumAt = 92;  // of the header, in the header

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

template <typename Read>
bool accepts(const Read& read) {
  try {
    read();
    return true;
  } catch (const FrameError&) {
    return false;
  }
}

template <typename Parse>
void fuzz_text(std::string_view text, const Parse& parse) {
  accepts([&] {
    const auto value = parse(text);
    demand(parse(to_text(value)) == value, "what was read is not what its own text says");
  });
}

void fuzz_goodbye(std::string_view text) {
  accepts([&] {
    const Node node = parse_goodbye(text);
    demand(parse_goodbye(goodbye_text(node)) == node, "a goodbye is of somebody else when written again");
    const std::string error = parse_error(error_text(parse_error(text)));
    demand(parse_error(error_text(error)) == error, "an error is another when written again");
  });
}

void fuzz_blobs(std::string_view bytes) {
  accepts([&] { demand(pack_blobs(parse_blobs(bytes)) == bytes, "blobs differ when packed again"); });
}

void fuzz_ranks(std::string_view bytes) {
  accepts([&] { demand(pack_ranks(parse_ranks(bytes)) == bytes, "ranks differ when packed again"); });
}

/// The first byte says which answer it is.
void fuzz_exchange(std::string_view bytes) {
  if (bytes.empty()) return;
  AwaitedExchange awaited;
  accepts([&] { awaited.take(static_cast<ExchangeAnswer>(bytes.front() % 4), bytes.substr(1)); });
}

/// Gives a header the checksum that it should have, or hardly any would be read further.
void mend(std::span<std::byte> header) {
  if (header.size() != kHeaderBytes) return;
  std::memset(header.data() + kChecksumAt, 0, sizeof(std::uint32_t));
  const std::uint32_t sum = checksum(header);
  std::memcpy(header.data() + kChecksumAt, &sum, sizeof(sum));
}

void read_header(std::span<const std::byte> header, std::span<const std::byte> payload) {
  accepts([&] {
    const OpenedHeader opened = open_header(header, payload.size());
    const OpenedHeader again =
        open_header(encode_header(opened.header, payload), payload.size());  // with a checksum of its own
    demand(again.header == opened.header, "a header differs when written again");
  });
  accepts([&] { payload_bytes_of(header); });
}

/// A header, mended where the first byte is odd, and its payload.
void fuzz_header(std::string_view text) {
  if (text.empty()) return;
  const bool mended = (text.front() & 1) != 0;
  const auto bytes = std::as_bytes(std::span(text)).subspan(1);
  std::vector<std::byte> header(bytes.begin(), bytes.begin() + std::min(bytes.size(), kHeaderBytes));
  if (mended) mend(header);
  const std::vector<std::byte> payload(bytes.begin() + header.size(), bytes.end());
  read_header(header, payload);
}

/// A message of parts: each begins with a byte for its kind (a mended header, or any bytes) and one for its
/// length.
void fuzz_message(std::string_view text) {
  Packet packet;
  while (text.size() >= 2) {
    const bool is_header = (text[0] & 1) != 0;
    const std::size_t length =
        std::min(is_header ? kHeaderBytes : static_cast<std::uint8_t>(text[1]), text.size() - 2);
    ZmqMessage part(std::string(text.substr(2, length)));
    if (is_header) mend(part.bytes());
    packet.push_back(std::move(part));
    text.remove_prefix(2 + length);
  }
  accepts([&] {
    for (const Frame& frame : unpack(std::move(packet), 0)) {
      accepts([&] { require_intact(frame.payload); });
      payload_text(frame);
    }
  });
}

struct Part {
  const char* name;
  void (*fuzz)(std::string_view bytes);
};
constexpr std::array kParts = {
    Part{"header", fuzz_header},
    Part{"message", fuzz_message},
    Part{"hello", [](std::string_view text) { fuzz_text(text, parse_hello); }},
    Part{"roster", [](std::string_view text) { fuzz_text(text, parse_roster); }},
    Part{"stream_hello", [](std::string_view text) { fuzz_text(text, parse_stream_hello); }},
    Part{"goodbye", fuzz_goodbye},
    Part{"blobs", fuzz_blobs},
    Part{"ranks", fuzz_ranks},
    Part{"exchange", fuzz_exchange},
};
const Part* part_under_test = nullptr;  // set once, by LLVMFuzzerInitialize

}  // namespace
}  // namespace gradwire::transport

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace gradwire::transport;
  for (int i = 1; i < *argc; ++i) {
    for (const Part& part : kParts) {
      if (std::string("--part=") + part.name == (*argv)[i]) part_under_test = &part;
    }
  }
  if (part_under_test != nullptr) return 0;
  std::fputs("give what is to be fuzzed: --part=header\n", stderr);
  for (const Part& part : kParts) std::fprintf(stderr, "  --part=%s\n", part.name);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string exact(reinterpret_cast<const char*>(data), size);  // ASan sees one read too many
  gradwire::transport::part_under_test->fuzz(exact);
  return 0;
}
