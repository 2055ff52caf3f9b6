// Whole jobs in which a server dies, at every kind of moment, and its mirror goes on for it: nothing is lost,
// to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <functional>
#include <optional>

#include "kvstore/collectives/collectives.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/server/mirror.h"
#include "tests/kvstore/doomed_messenger.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/mirrored_job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using transport::InprocNetwork;
using transport::Kind;
using transport::Node;
using transport::Role;
using Values = std::vector<float>;
using Body = std::function<void(Engine&)>;

/// Runs body as every worker of a job in which `victim` dies at that moment.
void run_doomed(const JobSize& size, std::uint32_t victim, const Moment& moment, const Body& body) {
  InprocNetwork network(size.workers, size.servers, 1);
  std::atomic<int> deaths{0};
  run_mirrored(size, network, {victim}, body, [&](std::uint32_t rank, Line line) -> Line {
    if (rank != victim) return line;
    return std::make_unique<DoomedMessenger>(std::move(line), network, moment, deaths);
  });
  EXPECT_EQ(deaths, 1) << "the moment '" << moment.name << "' never came";
}

struct Training {
  const char* codec;
  const char* reply;
  bool has_optimizer;
};

constexpr std::size_t kSmall = 300;
constexpr std::size_t kLarge = 2 * 65'536 + 5'000;  // on all servers
constexpr unsigned kSteps = 3;

/// What a worker has in the end: sums of all steps, or weights.
Values train(Engine& engine, const Training& training) {
  engine.compression().set(spec(training.codec), training.reply);
  const auto keys = engine.declare(
      std::vector<KeySpec>{{"a", {kLarge}}, {"b", {kSmall}}, {"c", {kSmall}}, {"d", {kSmall}}});
  std::vector<Values> totals;
  for (const KeyId key : keys) {
    const Values first = random_floats(key == keys[0] ? kLarge : kSmall, 77 + static_cast<unsigned>(key));
    engine.init(key, first);
    totals.emplace_back(first.size());
    engine.pull(key, totals.back(), 0).wait();
  }
  if (training.has_optimizer) engine.set_optimizer("adam learning_rate=0.1");
  for (unsigned step = 0; step < kSteps; ++step) {
    std::vector<Values> grads;
    std::vector<Ticket> tickets;
    for (std::size_t k = 0; k < keys.size(); ++k)
      grads.push_back(
          random_floats(totals[k].size(), 1000 * step + 10 * static_cast<unsigned>(k) + engine.rank()));
    for (std::size_t k = 0; k < keys.size(); ++k)
      tickets.push_back(engine.push_pull(keys[k], grads[k], grads[k], -static_cast<int>(k)));
    for (const Ticket& ticket : tickets) EXPECT_TRUE(ticket.wait_for(120s));
    for (std::size_t k = 0; k < keys.size(); ++k) {
      for (std::size_t i = 0; i < grads[k].size(); ++i)
        totals[k][i] = training.has_optimizer ? grads[k][i] : totals[k][i] + grads[k][i];
    }
  }
  Values all;
  for (const Values& total : totals) all.insert(all.end(), total.begin(), total.end());
  return all;
}

Values undisturbed(const Training& training) {
  Values result;
  JobSize size = mirrored_size(3, 2);
  size.engine.replicas = 0;
  run_job(size, [&](Engine& engine) {
    Values mine = train(engine, training);
    if (engine.rank() == 0) result = std::move(mine);
  });
  return result;
}

std::vector<Moment> moments(const Training& training) {
  const Kind answer = training.has_optimizer ? Kind::kValue : Kind::kReply;
  // Of values, the first three pulls of each key come before; a server has at least two keys.
  const int first = training.has_optimizer ? 10 : 1;
  return {{"a first value arrives", false, Kind::kInit, 1},
          {"before any push", false, Kind::kPush, 1},
          {"in the middle of a round", false, Kind::kPush, 5},
          {"one push is passed on", true, Kind::kPush, 1},
          {"a round is passed on", true, Kind::kPush, 8},
          {"one worker is answered", true, answer, first},
          {"some workers are answered", true, answer, first + 7},
          {"the mirror knows and no worker", false, Kind::kMirrored, 5}};
}

class Survivors : public testing::TestWithParam<Training> {};

TEST_P(Survivors, HaveTheBitsOfAnUndisturbedJob) {
  const Values expected = undisturbed(GetParam());
  std::uint32_t victim = 0;
  for (const Moment& moment : moments(GetParam())) {
    victim = 1 - victim;
    run_doomed(mirrored_size(3, 2), victim, moment, [&](Engine& engine) {
      EXPECT_EQ(train(engine, GetParam()), expected) << moment.name << ", victim " << victim;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Survivors,
                         testing::Values(Training{"none", "fp32", false}, Training{"none", "fp32", true},
                                         Training{"fp16", "fp16", false}, Training{"fp16", "fp16", true},
                                         Training{"2bit:threshold=auto", "exact", false},
                                         Training{"2bit:threshold=auto", "2bit", false},
                                         Training{"2bit:threshold=0.5", "2bit", true},
                                         Training{"topk", "topk", false}, Training{"topk", "topk", true}));

/// Rank 0's sums of a few steps of a job of three servers with two threads each, of which one may die in
/// between.
Values sums_of_three_servers(std::optional<std::uint32_t> victim) {
  Values kept;
  JobSize size = mirrored_size(2, 3);
  size.server_threads = 2;
  InprocNetwork network(2, 3, 1);
  std::set<std::uint32_t> victims;
  if (victim) victims.insert(*victim);
  run_mirrored(size, network, victims, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.25"), "2bit");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
    for (unsigned step = 0; step < 4; ++step) {
      if (step == 2 && victim && engine.rank() == 0) network.lose(*victim);
      engine.barrier();
      Values grad = random_floats(kLarge, 10 * step + engine.rank());
      engine.push_pull(key, grad, grad, 0).wait();
      if (engine.rank() == 0) kept.insert(kept.end(), grad.begin(), grad.end());
    }
    const auto notices = engine.metrics().take_notices();
    ASSERT_EQ(notices.size(), victims.size());
    if (!victim) return;
    EXPECT_EQ(engine.metrics().replaced_servers(),
              (std::map<std::uint32_t, std::uint32_t>{{*victim, (*victim + 1) % 3}}));
    EXPECT_THAT(notices[0], HasSubstr("server " + std::to_string(*victim) + " has died; its mirror, server " +
                                      std::to_string((*victim + 1) % 3)));
  });
  return kept;
}

TEST(Replicas, OfThreeServersAnyMayDieBetweenRoundsAndItsThreadsWithIt) {
  const Values expected = sums_of_three_servers(std::nullopt);
  for (std::uint32_t victim = 0; victim < 3; ++victim)
    EXPECT_EQ(sums_of_three_servers(victim), expected) << "victim " << victim;
}

TEST(Replicas, TwoDeathsThatTakeBothCopiesNameBoth) {
  InprocNetwork network(2, 2, 1);
  try {
    run_mirrored(mirrored_size(2, 2), network, {0, 1}, [&](Engine& engine) {
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
      Values grad(kLarge, 1.0F);
      engine.push_pull(key, grad, grad, 0).wait();
      engine.barrier();
      if (engine.rank() == 0) {
        network.lose(1);
        network.lose(0);
      }
      engine.push_pull(key, grad, grad, 0).wait();
    });
    FAIL() << "both copies were lost";
  } catch (const transport::TransportError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("server 0"), HasSubstr("server 1"), HasSubstr("checkpoint")));
  }
}

/// Between servers every fifth frame is lost, every seventh comes twice, and every eleventh is damaged.
class BadLink final : public transport::ForwardingMessenger {
 public:
  explicit BadLink(Line line) : transport::ForwardingMessenger(std::move(line)) {}

  void send(Node to, std::vector<transport::Frame> frames) override {
    if (to.role != Role::kServer) return transport::ForwardingMessenger::send(to, std::move(frames));
    std::vector<transport::Frame> sent;
    for (transport::Frame& frame : frames) {
      const unsigned number = ++sent_;
      if (number % 5 == 0) continue;
      if (number % 7 == 0) sent.push_back({frame.header, frame.payload.share()});
      sent.push_back(std::move(frame));
    }
    if (!sent.empty()) transport::ForwardingMessenger::send(to, std::move(sent));
  }

 private:
  void on_frames(Node from, std::vector<transport::Frame> frames) override {
    for (transport::Frame& frame : frames) {
      if (from.role != Role::kServer || frame.payload.size_bytes() == 0) continue;
      frame.payload.seal();
      if (++arrived_ % 11 == 0) frame.payload.bytes()[0] ^= std::byte{1};
    }
    transport::ForwardingMessenger::on_frames(from, std::move(frames));
  }

  std::atomic<unsigned> sent_{0}, arrived_{0};
};

TEST(Replicas, WhatIsLostDoubledOrDamagedOnTheWayToAMirrorIsSentAgain) {
  const Training training{"2bit:threshold=auto", "2bit", false};
  const Values expected = undisturbed(training);
  InprocNetwork network(3, 2, 1);
  std::atomic<int> deaths{0};
  const Moment late{"late", false, Kind::kPush, 14};
  run_mirrored(
      mirrored_size(3, 2), network, {0},
      [&](Engine& engine) { EXPECT_EQ(train(engine, training), expected); },
      [&](std::uint32_t rank, Line line) -> Line {
        auto bad = std::make_unique<BadLink>(std::move(line));
        if (rank != 0) return bad;
        return std::make_unique<DoomedMessenger>(std::move(bad), network, late, deaths);
      });
  EXPECT_EQ(deaths, 1);
}

/// Of a server's two threads one has passed the command on, and its answer is the last thing that the server
/// says.
TEST(Replicas, ACommandIsDoneWhenTheMirrorOfEveryThreadHasIt) {
  JobSize size = mirrored_size(2, 2);
  size.server_threads = 2;
  InprocNetwork network(2, 2, 1);
  std::atomic<int> deaths{0};
  const Moment acknowledged{"acknowledged", true, Kind::kAck, 1};
  const auto is_for_second_log = [](Node to, const transport::FrameHeader& header) {
    return to.role == Role::kServer && header.kind == Kind::kCommand && unpack(header.number).log == 1;
  };
  run_mirrored(
      size, network, {0},
      [](Engine& engine) {
        engine.set_optimizer("test rescale_grad=1");
        std::vector<KeySpec> specs;
        for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) specs.push_back({name, {kSmall}});
        const auto keys = engine.declare(specs);  // on both servers, with both threads
        for (const KeyId key : keys) engine.init(key, Values(kSmall, 1.0F));
        for (const float rate : {1.0F, 0.25F}) {
          engine.set_optimizer("test rescale_grad=" + std::to_string(rate));
          for (const KeyId key : keys) {
            Values weight(kSmall, 1.0F);
            engine.push_pull(key, weight, weight, 0).wait();
            EXPECT_EQ(weight[0], rate == 1.0F ? 3.0F : 3.5F) << "key " << key;
          }
        }
      },
      [&](std::uint32_t rank, Line line) -> Line {
        if (rank != 0) return line;
        return std::make_unique<DoomedMessenger>(
            std::make_unique<Without>(std::move(line), is_for_second_log), network, acknowledged, deaths);
      });
  EXPECT_EQ(deaths, 1);
}

TEST(Replicas, NoPushThatIsAppliedAtOnceIsLost) {
  for (const Moment& moment :
       {Moment{"taken", false, Kind::kPush, 6}, Moment{"passed on", true, Kind::kPush, 6},
        Moment{"answered", true, Kind::kAck, 9}}) {
    JobSize size = mirrored_size(3, 2);
    size.engine.async = AsyncPolicy{1};
    run_doomed(size, 1, moment, [&](Engine& engine) {
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
      engine.init(key, Values(kLarge, 0.0F));
      engine.set_optimizer("test rescale_grad=1");
      const Values grad(kLarge, 0.5F);
      Values weight(kLarge);
      for (int step = 0; step < 5; ++step) engine.push(key, grad, 0).wait();
      engine.barrier();
      engine.pull(key, weight, 0).wait();
      EXPECT_EQ(weight, Values(kLarge, 3 * 5 * 0.5F)) << moment.name;
    });
  }
}

TEST(Replicas, WorkersThatHoldWeightsGoOnFromWhoServes) {
  for (const Moment& moment :
       {Moment{"taken", false, Kind::kPush, 10}, Moment{"passed on", true, Kind::kPush, 10},
        Moment{"answered", true, Kind::kValue, 12}}) {
    JobSize size = mirrored_size(3, 2);
    size.engine.async = AsyncPolicy{1};
    run_doomed(size, 1, moment, [&](Engine& engine) {
      engine.compression().set(spec("none"), "none", "delta:int8");
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
      engine.init(key, random_floats(kLarge, 1));
      engine.set_optimizer("test rescale_grad=0.125");
      Values weight(kLarge);
      for (unsigned step = 0; step < 6; ++step)
        engine.push_pull(key, random_floats(kLarge, 10 * step + engine.rank()), weight, 0).wait();
      engine.barrier();
      const Values zeros(kLarge);
      for (int step = 0; step < 20; ++step)
        engine.push_pull(key, zeros, weight, 0).wait();  // what deltas left out
      Values expected = random_floats(kLarge, 1);
      for (unsigned rank = 0; rank < 3; ++rank) {
        for (unsigned step = 0; step < 6; ++step) {
          const Values grad = random_floats(kLarge, 10 * step + rank);
          for (std::size_t i = 0; i < kLarge; ++i) expected[i] += 0.125F * grad[i];
        }
      }
      EXPECT_THAT(weight, testing::Pointwise(testing::FloatNear(1e-4F), expected)) << moment.name;
    });
  }
}

TEST(Replicas, BlobsOfCollectivesAreKept) {
  for (const Moment& moment :
       {Moment{"posted", false, Kind::kPost, 2}, Moment{"passed on", true, Kind::kPost, 2},
        Moment{"read once", true, Kind::kBlob, 2}}) {
    run_doomed(mirrored_size(3, 2), 0, moment, [&](Engine& engine) {
      std::vector<std::int64_t> values(100'000, 1 + engine.rank());
      for (int i = 0; i < 3; ++i) {
        engine.collectives().all_reduce(std::as_bytes(std::span(values)),
                                        std::as_writable_bytes(std::span(values)), DataType::kInt64,
                                        ReduceOp::kSum);
        EXPECT_EQ(values, std::vector<std::int64_t>(100'000, i == 0 ? 6 : i == 1 ? 18 : 54)) << moment.name;
      }
    });
  }
}

TEST(Replicas, RowsOfTablesAreKept) {
  for (const Moment& moment :
       {Moment{"pushed", false, Kind::kRowPush, 4}, Moment{"passed on", true, Kind::kRowPush, 4},
        Moment{"answered", true, Kind::kRowReply, 2}}) {
    run_doomed(mirrored_size(2, 2), 1, moment, [&](Engine& engine) {
      const auto table = engine.sparse().declare(std::vector<KeySpec>{{"t", {50, 40}}})[0];
      engine.sparse().init(table, {}, {}, 0);
      engine.set_optimizer("test rescale_grad=1");
      const std::vector<std::int64_t> ids{3, 4, 21 + engine.rank()};
      const Values rows(3 * 40, 0.25F);
      for (int step = 1; step <= 4; ++step) {
        const PulledRows pulled = engine.sparse().push_pull(table, ids, rows, 0);
        ASSERT_TRUE(pulled.done.wait_for(120s)) << moment.name;
        const Rows now = engine.sparse().rows_of(pulled);
        ASSERT_EQ(now.ids.size(), 4U) << moment.name;
        for (std::size_t i = 0; i < 4; ++i) {
          const float times = now.ids[i] < 10 ? 2.0F : 1.0F;
          EXPECT_EQ(now.row(i, 40)[0], times * 0.25F * static_cast<float>(step)) << moment.name;
        }
      }
    });
  }
}

TEST(Replicas, RowsThatAreAppliedAtOnceAreKept) {
  for (const Moment& moment :
       {Moment{"pushed", false, Kind::kRowPush, 4}, Moment{"passed on", true, Kind::kRowPush, 4},
        Moment{"acknowledged", true, Kind::kRowAck, 5}, Moment{"answered", true, Kind::kRowReply, 3}}) {
    JobSize size = mirrored_size(2, 2);
    size.engine.async = AsyncPolicy{1};
    run_doomed(size, 1, moment, [&](Engine& engine) {
      const auto table = engine.sparse().declare(std::vector<KeySpec>{{"t", {50, 40}}})[0];
      engine.sparse().init(table, {}, {}, 0);
      engine.set_optimizer("test rescale_grad=1");
      const std::vector<std::int64_t> ids{3, 4, 21 + engine.rank()};
      const Values rows(3 * 40, 0.25F);
      for (int step = 0; step < 5; ++step) {
        const PulledRows pulled = engine.sparse().push_pull(table, ids, rows, 0);
        ASSERT_TRUE(pulled.done.wait_for(120s)) << moment.name;
      }
      engine.barrier();
      const PulledRows pulled = engine.sparse().pull(table, std::vector<std::int64_t>{3, 4, 21, 22}, 0);
      ASSERT_TRUE(pulled.done.wait_for(120s)) << moment.name;
      const Rows now = engine.sparse().rows_of(pulled);
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(now.row(i, 40)[0], (i < 2 ? 2 : 1) * 5 * 0.25F) << moment.name;
      engine.barrier();
    });
  }
}

TEST(Replicas, ACheckpointIsWrittenAndReadByWhoServes) {
  const Folder folder;
  const auto trained = [&](bool resumes, std::uint32_t victim) {
    Values result;
    InprocNetwork network(2, 2, 1);
    run_mirrored(mirrored_size(2, 2), network, {victim}, [&](Engine& engine) {
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
      engine.init(key, Values(kLarge, 0.0F));
      engine.set_optimizer("sgd learning_rate=0.5 momentum=0.5");
      Values grad(kLarge, 1.0F);
      if (engine.rank() == 0) network.lose(victim);
      engine.barrier();
      if (resumes) engine.checkpoints().load(folder.path());
      engine.push_pull(key, Values(kLarge, 1.0F), grad, 0).wait();
      if (!resumes) engine.checkpoints().save(folder.path(), {});
      engine.push_pull(key, Values(kLarge, 1.0F), grad, 0).wait();
      if (engine.rank() == 0) result = grad;
    });
    return result;
  };
  EXPECT_EQ(trained(false, 0), Values(kLarge, -1.0F - 1.5F));
  EXPECT_EQ(trained(true, 1), Values(kLarge, -1.0F - 1.5F - 1.75F));
}

TEST(Replicas, WorkersThatJoinAreAwayAtTheMirrorToo) {
  for (std::uint32_t victim = 0; victim < 2; ++victim) {
    InprocNetwork network(2, 2, 1);
    run_mirrored(mirrored_size(2, 2), network, {victim}, [&](Engine& engine) {
      const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
      Values grad(kLarge, 1.0F);
      engine.push_pull(key, grad, grad, 0).wait();
      if (engine.rank() == 0) {
        for (int step = 0; step < 3; ++step) {  // alone, once the other has joined
          grad.assign(kLarge, 1.0F);
          engine.push_pull(key, grad, grad, 0).wait();
          EXPECT_EQ(grad, Values(kLarge, 1.0F));
          if (step == 0) network.lose(victim);
        }
      }
      EXPECT_EQ(engine.join(), 0U);
      grad.assign(kLarge, 1.0F);
      engine.push_pull(key, grad, grad, 0).wait();
      EXPECT_EQ(grad, Values(kLarge, 2.0F));
    });
  }
}

/// 4 bytes an element of each worker's push, and nothing else, where nothing else is sent.
TEST(Replicas, EachPushIsPassedOnOnce) {
  InprocNetwork network(3, 2, 1);
  run_mirrored(mirrored_size(3, 2), network, {}, [&](Engine& engine) {
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {kLarge}}})[0];
    Values grad(kLarge, 1.0F);
    engine.push_pull(key, grad, grad, 0).wait();
    engine.barrier();
    if (engine.rank() == 0) {
      EXPECT_GE(engine.metrics().mirrored_bytes(), 3 * 4 * kLarge);
      EXPECT_LT(engine.metrics().mirrored_bytes(), 3 * 4 * kLarge + 1000);  // commands
    }
    EXPECT_TRUE(engine.metrics().replaced_servers().empty());
    engine.barrier();
  });
}

TEST(Replicas, WhereNoServerCanBeMirroredItIsSaid) {
  EXPECT_THROW(InprocNetwork(2, 1, 1), std::invalid_argument);
  JobSize peers{2, 2};
  peers.engine.replicas = 1;
  EXPECT_THROW(run_peers(peers, [](Engine&) {}), std::invalid_argument);
  EXPECT_THROW(run_native(peers, [](Engine&) {}), std::invalid_argument);
  try {
    run_job(peers, [](Engine&) {});
    FAIL() << "the job has no replicas";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("replicas=1 given, and the job was started with replicas=0"));
  }
}

}  // namespace
}  // namespace gradwire::kvstore
