// Gradients to push, and what whole jobs make of them.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/kvstore/job.h"

namespace gradwire::kvstore {

inline std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-0.6F, 0.6F);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}

inline compress::CodecSpec spec(const std::string& text) { return compress::parse_spec(text); }

/// The float32 sum in rank order of random_floats(n, seed + rank).
inline std::vector<float> rank_order_sum(std::size_t n, unsigned seed, std::uint32_t workers) {
  std::vector<float> sum = random_floats(n, seed);
  for (std::uint32_t rank = 1; rank < workers; ++rank) {
    const auto theirs = random_floats(n, seed + rank);
    for (std::size_t i = 0; i < n; ++i) sum[i] += theirs[i];
  }
  return sum;
}

/// Pushes values and pulls the sum, times scale, to them.
using Exchange = std::function<void(Engine& engine, KeyId key, std::vector<float>& values, float scale)>;

inline void exchange_on_host(Engine& engine, KeyId key, std::vector<float>& values, float scale) {
  engine.push_pull(key, values, values, 0, scale).wait();
}

/// Weights of rank 0 after a few steps of every codec and reply, for one way of cutting and placing.
inline std::map<std::string, std::vector<float>> results_of(
    const JobSize& size, void (*run)(const JobSize&, const std::function<void(Engine&)>&) = run_job,
    const Exchange& exchange = exchange_on_host) {
  std::map<std::string, std::vector<float>> results;
  for (const auto& [codec, reply] :
       std::vector<std::pair<std::string, std::string>>{{"none", "none"},
                                                        {"fp16", "fp16"},
                                                        {"bf16", "fp32"},
                                                        {"2bit:threshold=0.25", "exact"},
                                                        {"2bit:threshold=0.25", "2bit"},
                                                        {"2bit:threshold=auto", "exact"},
                                                        {"2bit:threshold=auto", "2bit"},
                                                        {"2bit:threshold=auto", "fp32"},
                                                        {"int8", "int8"},
                                                        {"int4:block=32", "fp32"},
                                                        {"nf2", "nf2"},
                                                        {"nf4", "nf4"},
                                                        {"fp8", "fp8"},
                                                        {"1bit", "1bit"},
                                                        {"1bit:threshold=0.25", "exact"},
                                                        {"topk", "topk"},
                                                        {"topk:values=bf16", "fp32"},
                                                        {"randomk:ratio=0.1", "randomk"},
                                                        {"qsgd", "qsgd"},
                                                        {"qsgd:bits=8", "fp32"},
                                                        {"terngrad", "terngrad"},
                                                        {"natural", "fp32"}}) {
    run(size, [&](Engine& engine) {
      engine.compression().set(spec(codec), reply);
      const std::vector<KeySpec> specs = {{"w", {1'100'000}}, {"b", {300}}};
      const auto keys = engine.declare(specs);
      std::vector<float> last;
      for (unsigned step = 0; step < 4; ++step) {
        for (std::size_t k = 0; k < keys.size(); ++k) {
          auto values = random_floats(specs[k].elements(), 10 * step + engine.rank());
          exchange(engine, keys[k], values, 0.5F);
          last.insert(last.end(), values.begin(), values.end());
        }
      }
      if (engine.rank() == 0) results[codec + reply] = last;
    });
  }
  return results;
}

/// What ranks received, by compression and by rank.
using Results = std::map<std::string, std::vector<std::vector<float>>>;
using JobRunner = std::function<void(const JobSize&, const std::function<void(Engine&)>&)>;

inline const std::vector<KeySpec> kCodeKeys = {{"one", {1}}, {"several units", {70'001}}, {"small", {300}}};

/// What every rank received in a few steps of every lossy codec and reply.
inline Results results_of_codes(const JobSize& size, const JobRunner& run) {
  Results results;
  for (const std::string codec : {"2bit:threshold=0.25", "2bit:threshold=auto"}) {
    for (const std::string reply : {"exact", "fp32", "2bit"}) {
      std::vector<std::vector<float>> by_rank(size.workers);
      run(size, [&](Engine& engine) {
        engine.compression().set(spec(codec), reply);
        const auto keys = engine.declare(kCodeKeys);
        for (unsigned step = 0; step < 4; ++step) {
          for (std::size_t k = 0; k < keys.size(); ++k) {
            auto values = random_floats(kCodeKeys[k].elements(), 100 * step + engine.rank());
            engine.push_pull(keys[k], values, values, 0).wait();
            auto& received = by_rank[engine.rank()];
            received.insert(received.end(), values.begin(), values.end());
          }
        }
      });
      results[codec + reply] = std::move(by_rank);
    }
  }
  return results;
}

}  // namespace gradwire::kvstore
