// Checkpoints of weights where servers cannot keep any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvstore/engine/engine.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

void run_on_one_host(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x"}, body); }

// What set_optimizer() refuses does not come in by a checkpoint.
TEST(Checkpoint, OfWeightsIsRefusedWhereServersCannotKeepThem) {
  const Folder folder;
  const KeySpec w{"w", {5}};
  run_job(JobSize{2, 1}, [&](Engine& engine) {
    const KeyId key = engine.declare({&w, 1})[0];
    engine.init(key, std::vector<float>(5, 1.0F));
    engine.set_optimizer("test rescale_grad=1");
    engine.checkpoints().save(folder.path());
  });
  const auto expect_refused = [&](Engine& engine, const char* why) {
    const KeyId key = engine.declare({&w, 1})[0];
    const std::vector<float> grad(5, 0.5F);
    std::vector<float> sum(5);
    engine.init(key, std::vector<float>(5, 1.0F));
    EXPECT_THAT([&] { engine.checkpoints().load(folder.path()); },
                ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("load_checkpoint: "), HasSubstr(why))));
    EXPECT_THAT([&] { engine.set_optimizer("sgd"); },
                ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("set_optimizer: "), HasSubstr(why))));
    engine.push_pull(key, grad, sum, 0).wait();
    EXPECT_THAT(sum, testing::Each(1.0F)) << "the store sums as before";
  };
  for (const Runner run : {Runner{run_job}, Runner{run_peers}, Runner{run_native}, Runner{run_on_one_host}}) {
    run(JobSize{2, 1}, [&](Engine& engine) {
      engine.compression().set(spec("2bit:threshold=auto"), "exact");
      expect_refused(engine, "answer with weights; give a threshold");
    });
  }
  JobSize goes_on = JobSize{2, 1};
  goes_on.engine.goes_on = true;
  run_job(goes_on,
          [&](Engine& engine) { expect_refused(engine, "servers keep weights for one generation"); });
}

}  // namespace
}  // namespace gradwire::kvstore
