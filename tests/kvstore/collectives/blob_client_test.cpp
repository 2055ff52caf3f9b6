#include "kvstore/collectives/blob_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"
#include "tests/kvstore/worker_end.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Buffer;
using transport::Frame;
using transport::Kind;
using transport::Role;

const BlobId kOwn{1, 5, 0, 8}, kFromTwo{2, 5, 0, 8};  // posters 1, who is here, and 2

class Blobs : public testing::Test {
 protected:
  ~Blobs() override {
    end_.do_in_loop([this] { client_.fail_all(std::make_exception_ptr(std::runtime_error("over"))); });
  }
  Ticket post() { return client_.post("all_gather", kOwn, {}, bytes_); }
  Ticket fetch() { return client_.fetch("all_gather", kFromTwo, into_); }
  void take(Frame frame) {
    end_.do_in_loop([&] { client_.handle(frame); });
  }
  void blob(std::string_view text) {
    take({header_of(Kind::kBlob, kFromTwo, text.size()), text_payload(text)});
  }
  void refusal(const BlobId& id) {
    Frame frame{header_of(Kind::kError, id, 8), text_payload("no room")};
    frame.header.content = static_cast<std::uint8_t>(Refusal::kBlob);
    take(std::move(frame));
  }
  std::string failure() {
    std::string text;
    end_.do_in_loop([&] { text = failure_; });
    return text;
  }
  std::vector<std::string> warnings() {
    std::vector<std::string> texts;
    end_.do_in_loop(
        [&] { texts = end_.pending.warnings(WorkerEnd::Clock::now() + WorkerEnd::kLimits.warning); });
    return texts;
  }

  std::array<std::byte, 8> bytes_{}, into_{};
  WorkerEnd end_;
  std::string failure_;
  BlobClient client_{end_.messenger,
                     end_.loop,
                     end_.outbox,
                     end_.pending,
                     {WorkerEnd::kRetry, WorkerEnd::kRetry},
                     [this](const std::exception_ptr& error) { failure_ = kvstore::text_of(error); }};
};

TEST_F(Blobs, ArePostedUntilAllHaveThem) {
  const Ticket done = post();
  auto sent = end_.take_sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].frame.header.kind, Kind::kPost);
  EXPECT_EQ(sent[0].server, 1) << "blobs take turns among servers";
  take({header_of(Kind::kDelivered, kOwn, 8), {}});
  EXPECT_FALSE(done.done()) << "the line still has the bytes";
  sent.clear();
  end_.take_sent();
  EXPECT_TRUE(done.done());
}

TEST_F(Blobs, AreFetchedAndAcknowledgedTooWhenTheyComeTwice) {
  const Ticket done = fetch();
  EXPECT_THAT(end_.take_sent(), SizeIs(1));
  blob("eight by");
  EXPECT_TRUE(done.done());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(into_.data()), 8), "eight by");
  blob("eight by");
  const auto sent = end_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  for (const SentFrame& each : sent) EXPECT_EQ(each.frame.header.kind, Kind::kReceipt);
}

TEST_F(Blobs, WithoutAnAnswerAreAskedForAgain) {
  post();
  fetch();
  EXPECT_THAT(end_.take_sent(), SizeIs(2));
  EXPECT_THAT(end_.retry_after(WorkerEnd::kRetry / 2), IsEmpty());
  EXPECT_THAT(end_.retry_after(WorkerEnd::kRetry), SizeIs(2));
}

TEST_F(Blobs, NameThoseWhoHaveNotSentOrElseNotTaken) {
  post();
  EXPECT_THAT(warnings(), ElementsAre("all_gather has waited 60 s for worker 0, 2 to receive what was sent"));
  take({header_of(Kind::kDelivered, kOwn, 8), {}});
  EXPECT_THAT(warnings(), IsEmpty());
  post();
  fetch();
  EXPECT_THAT(warnings(), ElementsAre("all_gather has waited 60 s for worker 2"));
}

TEST_F(Blobs, OfAnotherSizeFailTheJob) {
  fetch();
  blob("seven b");
  EXPECT_EQ(failure(), "all_gather: worker 2 sent 7 bytes, 8 were expected");
}

TEST_F(Blobs, ThatAreDamagedCountAsLost) {
  const Ticket done = fetch();
  Frame frame{header_of(Kind::kBlob, kFromTwo, 8), text_payload("eight by")};
  frame.payload.seal(7);
  end_.take_sent();
  take(std::move(frame));
  EXPECT_FALSE(done.done());
  EXPECT_THAT(end_.take_sent(), IsEmpty());
}

TEST_F(Blobs, ARefusalOfWhatIsOverIsNone) {
  refusal(kFromTwo);
  EXPECT_EQ(failure(), "");
  fetch();
  refusal(kFromTwo);
  EXPECT_EQ(failure(), "all_gather: no room");
}

TEST_F(Blobs, FailTogetherAndSoDoThoseThatCome) {
  const Ticket posted = post(), fetched = fetch();
  end_.take_sent();
  end_.do_in_loop([this] { client_.fail_all(std::make_exception_ptr(std::runtime_error("over"))); });
  EXPECT_THROW(fetched.wait(), std::runtime_error);
  EXPECT_THROW(posted.wait(), std::runtime_error);
  EXPECT_THROW(fetch().wait(), std::runtime_error);
}

}  // namespace
}  // namespace gradwire::kvstore
