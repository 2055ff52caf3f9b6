// CodecPool runs encode and decode jobs, urgent ones first, on its own threads.
//
// Threading: submit() from any thread. Jobs must not throw. The destructor drops what has not begun and
// joins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "kvstore/runtime/loop.h"

namespace gradwire::kvstore {

class CodecPool {
 public:
  /// Requires threads >= 1.
  explicit CodecPool(unsigned threads);
  ~CodecPool();
  CodecPool(const CodecPool&) = delete;
  CodecPool& operator=(const CodecPool&) = delete;

  void submit(std::int32_t priority, Task job);

 private:
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any submitted_;
  std::multimap<std::int32_t, Task, std::greater<>> jobs_;  // equal priorities keep their order
  std::vector<std::jthread> threads_;                       // last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
