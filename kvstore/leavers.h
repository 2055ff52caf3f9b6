// Leavers are the workers that have left the job, and the errors for those that still wait for them.
//
// Threading: none of its own; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <ranges>
#include <string>
#include <string_view>

namespace gradwire::kvstore {

class Leavers {
 public:
  /// error: what has ended the worker; empty: it came to its end.
  void add(std::uint32_t worker, const std::string& error) { errors_.emplace(worker, error); }
  bool contains(std::uint32_t worker) const { return errors_.contains(worker); }
  bool empty() const { return errors_.empty(); }
  auto ranks() const { return std::views::keys(errors_); }

  /// "worker 2 left the job before step 3 of key 0; every worker must ..." or, where an error has ended it,
  /// "worker 2 failed before step 3 of key 0: ValueError: ...; see its traceback". Requires contains(worker).
  std::string describe(std::uint32_t worker, std::string_view before, std::string_view advice = {}) const {
    const std::string who = "worker " + std::to_string(worker);
    const std::string& error = errors_.at(worker);
    if (!error.empty())
      return who + " failed before " + std::string(before) + ": " + error + "; see its traceback";
    return who + " left the job before " + std::string(before) + std::string(advice);
  }

 private:
  std::map<std::uint32_t, std::string> errors_;  // by rank
};

}  // namespace gradwire::kvstore
