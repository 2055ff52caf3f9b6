#include "transport/nccl/nccl_collective.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace gradwire::transport {
namespace {

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(std::shared_ptr<NcclSums> sums) : sums_(std::move(sums)) {}
  ~NcclCollective() override { sums_->close(); }

  std::string_view name() const noexcept override { return "nccl"; }
  std::uint32_t rank() const noexcept override { return sums_->rank(); }
  std::uint32_t size() const noexcept override { return sums_->ranks(); }

  void all_reduce(Buffer values, ElementType type, Done done) override {
    const std::size_t element_bytes = bytes_of(type);
    if (element_bytes == 0 || values.size_bytes() % element_bytes != 0) {
      throw std::invalid_argument("all_reduce: " + std::to_string(values.size_bytes()) +
                                  " bytes, expected a multiple of " + std::to_string(element_bytes));
    }
    sums_->add(std::move(values), type, std::move(done));
  }

  void all_gather(Buffer block, Done done) override {
    sums_->add(std::move(block), std::nullopt, std::move(done));
  }

 private:
  const std::shared_ptr<NcclSums> sums_;
};

std::shared_ptr<NcclSums> join(Messenger& control, std::unique_ptr<NcclPort> port,
                               const NcclPatience& patience, GpuSharing sharing) {
  const std::uint32_t rank = control.self().rank;
  NcclBootstrap mine{port->version(), port->device(), sharing, {}};
  // Rank 0 alone: making an id opens a socket to which the others connect.
  if (rank == 0) mine.id = port->make_id();
  std::vector<NcclBootstrap> entries;
  for (const std::string& text : control.exchange("nccl", to_text(mine), patience.join))
    entries.push_back(parse_nccl_bootstrap(text, static_cast<std::uint32_t>(entries.size())));
  // All ranks have the same entries and so come to the same error. None waits in NCCL for one that has left.
  check_agreement(entries);
  return NcclSums::join(std::move(port), entries.at(0).id, rank, control.world().workers, patience);
}

/// Fails the job if make() throws: the others would wait for this rank.
template <typename Make>
std::unique_ptr<Collective> or_fail(Messenger& control, const Make& make) {
  try {
    return std::make_unique<NcclCollective>(make());
  } catch (const std::exception& cause) {
    control.fail(cause.what());
    throw;
  }
}

}  // namespace

std::unique_ptr<Collective> join_nccl(Messenger& control, std::unique_ptr<NcclPort> port,
                                      const NcclPatience& patience, GpuSharing sharing) {
  return or_fail(control, [&] { return join(control, std::move(port), patience, sharing); });
}

std::unique_ptr<Collective> connect_nccl(Messenger& control, const std::string& library, int device,
                                         const NcclPatience& patience, GpuSharing sharing) {
  // Opening is inside: a rank without a GPU must end the job at once, and not after the others' timeout.
  return or_fail(control, [&] { return join(control, open_nccl(library, device), patience, sharing); });
}

}  // namespace gradwire::transport
