// What happens to whoever differs from the others, in the first generation of a job and in later ones.
#include "kvstore/wire/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <stdexcept>

#include "tests/kvstore/job.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// What nodes say when they leave.
struct Partings {
  std::mutex mutex;
  std::vector<std::string> texts;
};

/// A node of a job's second generation.
class Later final : public transport::ForwardingMessenger {
 public:
  Later(std::unique_ptr<transport::Messenger> messenger, Partings& partings)
      : transport::ForwardingMessenger(std::move(messenger)), partings_(partings) {}

  transport::World world() const override {
    transport::World world = transport::ForwardingMessenger::world();
    world.generation = 2;
    return world;
  }
  void regroup(const std::string& text, transport::Parting parting) override {
    EXPECT_EQ(parting, transport::Parting::kLeaves);
    const std::lock_guard lock(partings_.mutex);
    partings_.texts.push_back(text);
  }

 private:
  Partings& partings_;
};

std::vector<KeySpec> key_of(std::uint64_t elements) { return {{"w", {elements}, "float32"}}; }

TEST(Agreement, InTheFirstGenerationWhoeverDiffersIsToldToAll) {
  run_job({.workers = 3, .servers = 1}, [](Engine& engine) {
    const auto keys = key_of(engine.rank() == 2 ? 5 : 4);
    EXPECT_THAT([&] { engine.declare(keys); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("keys differ: worker 0 has"), HasSubstr("worker 2 has"))));
  });
}

TEST(Agreement, InALaterOneWhoeverDiffersFromThoseThatWereThereFailsAloneAndLeaves) {
  Partings partings;
  const auto body = [](Engine& engine) {
    const auto keys = key_of(engine.rank() == 1 ? 5 : 4);
    if (engine.rank() != 1) return static_cast<void>(engine.declare(keys));
    EXPECT_THAT([&] { engine.declare(keys); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("keys differ: worker 0 has"), HasSubstr("worker 1 has"))));
  };
  run_wired({.workers = 3, .servers = 1}, body,
            [&](Line line) { return std::make_unique<Later>(std::move(line), partings); });
  EXPECT_THAT(partings.texts, ElementsAre(HasSubstr("came later and does not fit: keys differ")));
}

TEST(Agreement, InALaterOneNobodyLeavesWhereAllAgree) {
  Partings partings;
  run_wired(
      {.workers = 3, .servers = 1}, [](Engine& engine) { engine.declare(key_of(4)); },
      [&](Line line) { return std::make_unique<Later>(std::move(line), partings); });
  EXPECT_THAT(partings.texts, IsEmpty());
}

}  // namespace
}  // namespace gradwire::kvstore
