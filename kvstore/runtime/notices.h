// Notices are messages of a worker's threads for people, kept until they are fetched.
//
// Threading: any thread.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::kvstore {

class Notices {
 public:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(std::move(text));
  }
  /// Those since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace gradwire::kvstore
