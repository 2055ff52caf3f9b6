#include "transport/decorators/logged_messenger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/ear.h"
#include "transport/inproc/inproc.h"

namespace gradwire::transport {
namespace {

using testing::ElementsAre;

constexpr Node kWorker{Role::kWorker, 0};
constexpr Node kServer{Role::kServer, 0};

std::vector<Frame> one(Kind kind, std::uint64_t step, std::size_t bytes) {
  std::vector<Frame> frames(1);
  frames[0].header.kind = kind;
  frames[0].header.key = 3;
  frames[0].header.step = step;
  frames[0].header.offset = 64;
  frames[0].payload = Buffer::allocate(bytes);
  return frames;
}

TEST(LoggedMessenger, TellsWhatIsSentAndHeard) {
  InprocNetwork network(1, 1);
  MessageLines lines;
  Ear heard, unused;
  const auto server = network.connect(kServer);
  const auto worker =
      logged(network.connect(kWorker), [&lines](std::string line) { lines.add(std::move(line)); });
  server->attach(heard);
  worker->attach(unused);
  worker->send(kServer, one(Kind::kPush, 7, 40));
  heard.take_frames(1);
  server->send(kWorker, one(Kind::kRowHeld, ~std::uint64_t{0} - 2, 0));
  unused.take_frames(1);
  server->detach();
  worker->detach();
  EXPECT_THAT(lines.take(),
              ElementsAre("worker 0 sends push of key 3 step 7 offset 64, 40 bytes, to server 0",
                          "worker 0 hears row held of table 3 offset 64, 0 bytes, from server 0"));
}

TEST(LoggedMessenger, IsNotThereWhereNobodyTakesLines) {
  InprocNetwork network(1, 1);
  auto messenger = network.connect(kWorker);
  const Messenger* const same = messenger.get();
  EXPECT_EQ(logged(std::move(messenger), {}).get(), same);
}

TEST(MessageLines, CountsWhatItDoesNotKeep) {
  MessageLines lines(2);
  for (const char* line : {"a", "b", "c", "d"}) lines.add(line);
  EXPECT_THAT(lines.take(), ElementsAre("a", "b", "and 2 messages more, of which no line was kept"));
  EXPECT_THAT(lines.take(), ElementsAre());
  lines.add("e");
  EXPECT_THAT(lines.take(), ElementsAre("e"));
}

}  // namespace
}  // namespace gradwire::transport
