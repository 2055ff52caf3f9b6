// Sums over ranks that are threads of one process. It does what MPI and NCCL do, for tests and for jobs in
// one process.
//
// Threading: any thread may call InprocCollectives' methods. `done` runs on the thread of the last rank to
// arrive.
// Lifetime: Collectives may outlive the object that made them.
#pragma once

#include <memory>

#include "transport/collective.h"

namespace gradwire::transport {

class InprocCollectives {
 public:
  explicit InprocCollectives(std::uint32_t ranks);

  /// Takes the Collective of one rank; each once.
  std::unique_ptr<Collective> connect(std::uint32_t rank);

 private:
  struct Hub;
  class OfRank;
  std::shared_ptr<Hub> hub_;  // owners: this and every Collective it handed out
};

}  // namespace gradwire::transport
