// Rounds of ps-lite alone: what dmlc/ps-lite's servers take to sum float32 gradients, without MXNet around
// them.
//
// ps_lite BYTES PARTITION_BYTES ROUNDS, with ps-lite's variables (DMLC_ROLE, DMLC_PS_ROOT_URI, ...).
//
// Each partition is a key. A worker pushes and pulls it in one request, without a copy of its own. A server
// adds to the memory that the first push arrived in, and answers all workers from there when the last has
// pushed. Worker and server print a line of JSON for each round, the first one included: seconds, and CPU
// seconds of this process.
#include <ps/ps.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Values = ps::SArray<float>;

// Sums that are exact in float32, whatever their order.
float element(int rank, std::size_t index) {
  return static_cast<float>(rank + 1 + static_cast<int>(index % 1024));
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Sums one key after the other, in the one thread that ps-lite calls it from.
class Sums {
 public:
  void handle(const ps::KVMeta& request, const ps::KVPairs<float>& pushed, ps::KVServer<float>* server) {
    Sum& sum = sums_[pushed.keys[0]];
    if (sum.waiting.empty()) {
      sum.values = pushed.vals;
    } else {
      add(pushed.vals.data(), sum.values.data(), sum.values.size());
    }
    sum.waiting.push_back(request);
    if (static_cast<int>(sum.waiting.size()) < ps::NumWorkers()) return;
    ps::KVPairs<float> reply;
    reply.keys = pushed.keys;
    reply.vals = sum.values;
    for (const auto& worker : sum.waiting) server->Response(worker, reply);
    sum.waiting.clear();
  }

 private:
  struct Sum {
    Values values;
    std::vector<ps::KVMeta> waiting;
  };

  static void add(const float* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
  }

  std::unordered_map<ps::Key, Sum> sums_;
};

class Worker {
 public:
  Worker(std::size_t elements, std::size_t partition) : gradient_(elements), total_(elements) {
    for (std::size_t i = 0; i < elements; ++i) gradient_[i] = element(ps::MyRank(), i);
    const auto& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    for (std::size_t at = 0; at < elements; at += partition) {
      const std::size_t length = std::min(partition, elements - at);
      const std::size_t index = parts_.size();
      parts_.push_back({ps::SArray<ps::Key>({ranges[index % ranges.size()].begin() + index}),
                        Values(gradient_.data() + at, length), Values(total_.data() + at, length)});
    }
  }

  void exchange() {
    std::vector<int> requests;
    for (auto& part : parts_) requests.push_back(kv_.ZPushPull(part.key, part.gradient, &part.total));
    for (const int request : requests) kv_.Wait(request);
  }

  // Forgets the totals if they are right, so that the next round must fill them again.
  bool right() {
    for (std::size_t i = 0; i < total_.size(); ++i) {
      float expected = 0;
      for (int rank = 0; rank < ps::NumWorkers(); ++rank) expected += element(rank, i);
      if (total_[i] != expected) return false;
    }
    std::fill(total_.begin(), total_.end(), 0.0F);
    return true;
  }

 private:
  struct Part {
    ps::SArray<ps::Key> key;
    Values gradient;
    Values total;
  };

  ps::KVWorker<float> kv_{0, 0};
  std::vector<float> gradient_;
  std::vector<float> total_;
  std::vector<Part> parts_;
};

// Returns whether all sums were right. exchange: what a worker does in a round; a server waits.
template <class Exchange, class Right>
bool rounds(int count, const Exchange& exchange, const Right& right) {
  const auto barrier = [] { ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup); };
  bool all_right = true;
  for (int round = 0; round < count; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const double cpu = cpu_seconds();  // before the barrier: a server may have pushes before it returns
    barrier();
    const auto begin = Clock::now();
    exchange();
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    barrier();
    std::printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", seconds.count(), cpu_seconds() - cpu);
    std::fflush(stdout);
    all_right = right() && all_right;
  }
  return all_right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s BYTES PARTITION_BYTES ROUNDS\n", argv[0]);
    return 2;
  }
  const std::size_t elements = std::stoull(argv[1]) / sizeof(float);
  const std::size_t partition = std::stoull(argv[2]) / sizeof(float);
  const int count = std::stoi(argv[3]);
  bool all_right = true;
  ps::Start(0);
  if (ps::IsServer()) {
    auto sums = std::make_shared<Sums>();
    auto* server = new ps::KVServer<float>(0);
    server->set_request_handle(
        [sums](const auto& request, const auto& pushed, auto* from) { sums->handle(request, pushed, from); });
    ps::RegisterExitCallback([server] { delete server; });
    all_right = rounds(
        count, [] {}, [] { return true; });
  } else if (ps::IsWorker()) {
    Worker worker(elements, partition);
    all_right = rounds(
        count, [&] { worker.exchange(); }, [&] { return worker.right(); });
  }
  ps::Finalize(0, true);
  if (!all_right) std::fprintf(stderr, "ps_lite: a sum is wrong\n");
  return all_right ? 0 : 1;
}
