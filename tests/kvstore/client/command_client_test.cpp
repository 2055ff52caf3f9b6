#include "kvstore/client/command_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using transport::Frame;
using transport::Kind;
using transport::Node;
using transport::Role;
using Sent = std::pair<std::uint32_t, std::string>;  // to which server, the text

constexpr std::chrono::milliseconds kPatience{100};
constexpr CommandClient::Clock::time_point kStart{};

class SentCommands : public testing::Test {
 protected:
  Ticket start(const std::string& text, std::vector<Acknowledgement>* said = nullptr) {
    Ticket done;
    client_.start(text, said, done, kStart);
    return done;
  }
  /// What server says of the command of that number: thread `thread` of `of`.
  void answer(std::uint32_t server, std::uint64_t number, Kind kind = Kind::kAck,
              const std::string& text = {}, ServerThread thread = {}) {
    Frame frame;
    frame.header.kind = kind;
    frame.header.key = number;
    frame.header.step = 10 * server;
    set_thread(frame.header, thread);
    frame.payload = text_payload(text);
    client_.handle({Role::kServer, server}, frame);
  }
  std::vector<Sent> take_sent() { return std::exchange(sent_, {}); }

  std::vector<Sent> sent_;
  std::vector<std::uint64_t> numbers_;
  PendingRequests pending_{Role::kServer, {std::chrono::seconds(60), std::chrono::seconds(600)}};
  CommandClient client_{pending_, 2, 40, kPatience, [this](std::uint32_t server, const Frame& frame) {
                          EXPECT_EQ(frame.header.kind, Kind::kCommand);
                          sent_.emplace_back(server, transport::payload_text(frame));
                          numbers_.push_back(frame.header.key);
                        }};
};

TEST_F(SentCommands, AreDoneWhenEveryServerHasAcknowledged) {
  std::vector<Acknowledgement> said;
  const Ticket done = start("sgd", &said);
  EXPECT_THAT(take_sent(), ElementsAre(Sent(0, "sgd"), Sent(1, "sgd")));
  EXPECT_THAT(numbers_, ElementsAre(41, 41));
  answer(1, 41, Kind::kAck, "one");
  EXPECT_FALSE(done.done());
  answer(0, 41, Kind::kAck, "zero");
  ASSERT_TRUE(done.done());
  EXPECT_TRUE(pending_.idle());
  EXPECT_EQ(said.at(0).text, "zero");
  EXPECT_EQ(said.at(1).text, "one");
  EXPECT_EQ(said.at(1).step, 10);
}

TEST_F(SentCommands, WaitForAllThreadsOfAServerAndTakeTheWordsOfItsFirst) {
  std::vector<Acknowledgement> said;
  const Ticket done = start("adam", &said);
  answer(0, 41, Kind::kAck, "first", {0, 2});
  answer(0, 41, Kind::kAck, "first", {0, 2});  // a repetition
  answer(1, 41);
  EXPECT_FALSE(done.done());
  answer(0, 41, Kind::kAck, "second", {1, 2});
  EXPECT_TRUE(done.done());
  EXPECT_EQ(said.at(0).text, "first");
}

TEST_F(SentCommands, ARefusalFailsTheTicketAtOnceAndIsNotAskedForAgain) {
  const Ticket done = start("sdg");
  take_sent();
  answer(0, 41, Kind::kError, "sdg is no optimizer");
  ASSERT_TRUE(done.done());
  try {
    done.wait();
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "sdg is no optimizer");
  }
  pending_.retry(kStart + kPatience);
  EXPECT_THAT(take_sent(), ElementsAre(Sent(1, "sdg")));
  answer(1, 41, Kind::kError, "sdg is no optimizer");
  EXPECT_TRUE(pending_.idle());
}

TEST_F(SentCommands, OnlyWhatIsNotAcknowledgedIsSentAgain) {
  start("a");
  start("b");
  answer(0, 41);
  take_sent();
  pending_.retry(kStart + kPatience - std::chrono::milliseconds(1));
  EXPECT_THAT(take_sent(), IsEmpty());
  pending_.retry(kStart + kPatience);
  EXPECT_THAT(take_sent(), ElementsAre(Sent(1, "a"), Sent(0, "b"), Sent(1, "b")));
  pending_.retry(kStart + kPatience);
  EXPECT_THAT(take_sent(), IsEmpty()) << "the time counts from the last sending";
  pending_.ask_again(0, kStart + kPatience);
  EXPECT_THAT(take_sent(), ElementsAre(Sent(0, "b")));
}

TEST_F(SentCommands, NeedNothingOfAServerThatHasLeft) {
  const Ticket first = start("a"), second = start("b");
  answer(0, 41);
  client_.lose_server(1);
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(second.done());
  take_sent();
  start("c");
  EXPECT_THAT(take_sent(), ElementsAre(Sent(0, "c")));
}

TEST_F(SentCommands, AnAcknowledgementThatComesTwiceCountsOnce) {
  const Ticket done = start("a");
  answer(0, 41);
  answer(0, 41);
  EXPECT_FALSE(done.done());
  answer(1, 41);
  answer(1, 41);
  EXPECT_TRUE(done.done());
}

TEST_F(SentCommands, SayWhoIsLate) {
  start("sgd lr=1");
  answer(0, 41);
  EXPECT_THAT(pending_.warnings(kStart + std::chrono::seconds(61)),
              ElementsAre("command 'sgd lr=1' has waited 61 s for server 1"));
}

TEST_F(SentCommands, FailTogether) {
  const Ticket first = start("a"), second = start("b");
  client_.fail_all(std::make_exception_ptr(std::runtime_error("over")));
  EXPECT_THROW(first.wait(), std::runtime_error);
  EXPECT_THROW(second.wait(), std::runtime_error);
  EXPECT_TRUE(pending_.idle());
}

}  // namespace
}  // namespace gradwire::kvstore
