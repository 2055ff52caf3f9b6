#include "transport/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <random>
#include <string_view>
#include <vector>

#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using testing::ThrowsMessage;
using namespace std::chrono_literals;

// CRC-32 by its definition, bit by bit.
std::uint32_t crc32_by_bits(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

std::vector<std::byte> noise(std::size_t size) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, IsTheOneThatEverybodyKnows) {
  constexpr std::string_view kCheck = "123456789";  // the check value of the catalogues of CRCs
  EXPECT_EQ(checksum(std::as_bytes(std::span(kCheck))), 0xCBF43926U);
  EXPECT_EQ(checksum({}), 0U);
}

TEST(Checksum, EqualsTheDefinitionForEveryLengthAroundItsSteps) {
  const auto bytes = noise(4 * 2048 + 70);
  for (const std::size_t step : {0, 1, 2, 3, 4}) {
    for (std::size_t length = step * 2048; length < step * 2048 + 70; ++length) {
      const auto run = std::span(bytes).first(length);
      ASSERT_EQ(checksum(run), crc32_by_bits(run)) << "length " << length;
    }
  }
}

TEST(Checksum, NoticesOneChangedBitWhereverItIs) {
  auto bytes = noise(10'000);
  const std::uint32_t whole = checksum(bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 37) {
    bytes[at] ^= std::byte{1};
    ASSERT_NE(checksum(bytes), whole) << "byte " << at;
    bytes[at] ^= std::byte{1};
  }
}

// --- which payloads travel with one ---

TEST(PayloadChecksum, IsReadFromAWord) {
  EXPECT_EQ(parse_payload_checksum("auto"), PayloadChecksum::kAuto);
  EXPECT_EQ(parse_payload_checksum("always"), PayloadChecksum::kAlways);
  EXPECT_EQ(parse_payload_checksum("off"), PayloadChecksum::kOff);
  EXPECT_THAT(
      [] { parse_payload_checksum("on"); },
      ThrowsMessage<std::invalid_argument>("checksum: 'on' is not valid, expected auto, always or off"));
}

constexpr auto kPatience = 20s;

Buffer to_buffer(const std::string& text) {
  Buffer buffer = Buffer::allocate(text.size());
  std::memcpy(buffer.bytes().data(), text.data(), text.size());
  return buffer;
}

enum class Reach : std::uint8_t { kNetwork, kLocal };

class Keeper : public Sink {
 public:
  void on_frames(Node, std::vector<Frame> frames) override {
    for (Frame& frame : frames) {
      if (frame.header.step == 1) return last_.set_value();
      kept_.push_back(std::move(frame));
    }
  }
  void on_failure(const std::string& text) override { ADD_FAILURE() << text; }
  void on_goodbye(Node, const std::string&) override {}
  /// What came before a frame of step 1.
  std::vector<Frame> await() {
    EXPECT_EQ(last_.get_future().wait_for(kPatience), std::future_status::ready);
    return std::move(kept_);
  }

 private:
  std::vector<Frame> kept_;
  std::promise<void> last_;
};

// Sends a payload as it is and one that is sealed, from worker to server or back, and keeps what arrives.
std::vector<Frame> arrivals(PayloadChecksum checksum, Reach reach, Role from) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.servers = 1;
  options.rendezvous_timeout = 15s;
  options.checksum = checksum;
  options.ipc = reach == Reach::kLocal;
  Scheduler scheduler(options);
  options.scheduler = scheduler.endpoint();
  options.role = Role::kServer;
  auto serving = std::async(std::launch::async, [options] { return connect_zmq(options); });
  options.role = Role::kWorker;
  const auto worker = connect_zmq(options);
  const auto server = serving.get();
  Messenger& sender = from == Role::kWorker ? *worker : *server;
  Messenger& receiver = from == Role::kWorker ? *server : *worker;
  EXPECT_EQ(sender.seals_payloads(), checksum == PayloadChecksum::kAlways ||
                                         (checksum == PayloadChecksum::kAuto && reach == Reach::kNetwork));
  Keeper keeper;
  receiver.attach(keeper);
  std::vector<Frame> frames(3);
  for (Frame& frame : frames) frame.header.kind = from == Role::kWorker ? Kind::kPush : Kind::kReply;
  frames[0].payload = to_buffer("as it is");
  frames[1].payload = to_buffer("sealed before");
  frames[1].payload.seal();
  frames[2].header.step = 1;
  sender.send(receiver.self(), std::move(frames));
  auto arrived = keeper.await();
  worker->leave(2s);
  server->leave(2s);
  return arrived;
}

struct SealCase {
  PayloadChecksum checksum;
  Reach reach;
  bool plain, sealed;  // whether what was sent without and with a seal arrives with one
};

class ZmqChecksum : public ::testing::TestWithParam<SealCase> {};

TEST_P(ZmqChecksum, TravelsWhereItIsAskedFor) {
  for (const Role from : {Role::kWorker, Role::kServer}) {
    const auto frames = arrivals(GetParam().checksum, GetParam().reach, from);
    ASSERT_EQ(frames.size(), 2U);
    EXPECT_EQ(frames[0].payload.checksum().has_value(), GetParam().plain);
    EXPECT_EQ(frames[1].payload.checksum().has_value(), GetParam().sealed);
    for (const Frame& frame : frames) {
      EXPECT_TRUE(frame.payload.is_intact());
      EXPECT_EQ(frame.header.flags, 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZmqChecksum,
                         ::testing::Values(SealCase{PayloadChecksum::kAuto, Reach::kNetwork, true, true},
                                           SealCase{PayloadChecksum::kAuto, Reach::kLocal, false, true},
                                           SealCase{PayloadChecksum::kAlways, Reach::kLocal, true, true},
                                           SealCase{PayloadChecksum::kOff, Reach::kNetwork, false, false}));

}  // namespace
}  // namespace gradwire::transport
