// ExchangeTable has the state of the workers' numbered all-to-all exchanges (Messenger::exchange).
//
// Threading: none of its own; one thread at a time. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::transport {

class ExchangeTable {
 public:
  enum class State : std::uint8_t {
    kWaiting,   ///< missing() are awaited
    kComplete,  ///< blobs() has them all
    kDeserted,  ///< a missing worker has left: fault() names it
    kMismatch,  ///< two workers are in exchanges of different names: fault() names both
  };

  explicit ExchangeTable(std::uint32_t workers) : workers_(workers) {}

  /// Takes the blob of one worker; workers number their exchanges from 0. Idempotent. Requires rank <
  /// workers.
  State offer(std::uint64_t sequence, std::uint32_t rank, std::string_view name, std::string_view blob);
  /// error: what has ended the worker; empty: it came to its end.
  void leave(std::uint32_t rank, const std::string& error = {});

  State state(std::uint64_t sequence) const;
  /// Whether a worker is in this exchange or was, also long ago.
  bool has_come(std::uint64_t sequence, std::uint32_t rank) const;
  /// In rank order. Requires state() == kComplete.
  std::vector<std::string> blobs(std::uint64_t sequence) const;
  std::vector<std::uint32_t> missing(std::uint64_t sequence) const;
  std::string fault(std::uint64_t sequence) const;
  /// Sequence numbers that are not complete.
  std::vector<std::uint64_t> open() const;
  /// Workers that have offered.
  std::vector<std::uint32_t> present(std::uint64_t sequence) const;
  /// Those of them that are in an exchange of another name than the lowest.
  std::vector<std::uint32_t> odd(std::uint64_t sequence) const;

 private:
  struct Offer {
    std::string name;
    std::string blob;
  };
  using Table = std::map<std::uint32_t, Offer>;  // by rank

  /// Of numbers below end.
  void forget_finished(std::uint64_t end);

  const std::uint32_t workers_;
  std::map<std::uint64_t, Table> tables_;
  std::uint64_t oldest_ = 0;                       // tables of lower numbers are complete and forgotten
  std::map<std::uint32_t, std::uint64_t> latest_;  // the newest sequence number of each rank
  std::map<std::uint32_t, std::string> left_;      // and the errors that ended them, if errors did
};

}  // namespace gradwire::transport
