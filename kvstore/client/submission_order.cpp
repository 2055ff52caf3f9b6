#include "kvstore/client/submission_order.h"

#include <utility>

namespace gradwire::kvstore {

std::uint64_t SubmissionOrder::expect(std::size_t parts) {
  operations_[next_].parts = parts;
  return next_++;
}

std::vector<transport::Frame> SubmissionOrder::add(std::uint64_t operation, std::size_t part,
                                                   transport::Frame frame) {
  operations_.at(operation).waiting.emplace(part, std::move(frame));
  std::vector<transport::Frame> ready;
  while (!operations_.empty()) {
    Operation& first = operations_.begin()->second;
    for (auto found = first.waiting.find(first.gone); found != first.waiting.end();
         found = first.waiting.find(++first.gone)) {
      ready.push_back(std::move(found->second));
      first.waiting.erase(found);
    }
    // The oldest operation has parts to come, and those behind it must wait.
    if (first.gone < first.parts) break;
    operations_.erase(operations_.begin());
  }
  return ready;
}

bool SubmissionOrder::holds(std::uint64_t operation, std::size_t part) const {
  const auto found = operations_.find(operation);
  return found != operations_.end() && part >= found->second.gone;
}

}  // namespace gradwire::kvstore
