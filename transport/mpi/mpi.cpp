// What a rank is given of a job over MPI: its nodes and its sums, each a face of one MpiEndpoint.
#include "transport/mpi/mpi.h"

#include <stdexcept>
#include <utility>

#include "transport/mpi/mpi_endpoint.h"
#include "transport/mpi/mpi_library.h"
#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

class MpiMessenger final : public Messenger {
 public:
  MpiMessenger(std::shared_ptr<MpiEndpoint> endpoint, Role role)
      : endpoint_(std::move(endpoint)), place_(endpoint_->place(role)) {}

  ~MpiMessenger() override {
    // In this order: the goodbye still needs the I/O thread, which must not call a Sink that is gone, and
    // close() may end that thread.
    endpoint_->leave(place_, endpoint_->leave_timeout());
    place_.inbox.detach();
    endpoint_->close();
  }

  Node self() const override { return place_.node; }
  World world() const override { return endpoint_->world(); }
  bool seals_payloads() const override { return endpoint_->seals_payloads(); }
  void attach(Sink& sink) override { endpoint_->attach(place_, sink); }
  void detach() override { place_.inbox.detach(); }
  void report_wait(const WaitReport& report) override {
    if (place_.node.role == Role::kWorker) endpoint_->report_wait(report);
  }
  std::uint64_t exchanges() const override { return endpoint_->exchanges(); }
  void fail(const std::string& text) override { endpoint_->fail(text); }
  void note_error(const std::string& error) override { endpoint_->note_error(place_, error); }
  void leave(std::chrono::milliseconds timeout) override { endpoint_->leave(place_, timeout); }
  bool outlast(std::chrono::milliseconds timeout) override { return endpoint_->outlast(timeout); }
  std::vector<PeerCounters> counters() const override { return place_.traffic.snapshot(); }
  void send(Node to, std::vector<Frame> frames) override { endpoint_->send(place_, to, std::move(frames)); }

  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    check_exchange(place_.node, name);
    return endpoint_->exchange(name, blob, timeout);
  }

 private:
  const std::shared_ptr<MpiEndpoint> endpoint_;
  MpiEndpoint::Place& place_;
};

class MpiCollective final : public Collective {
 public:
  explicit MpiCollective(std::shared_ptr<MpiEndpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  ~MpiCollective() override {
    // Before close(), which would wait for ranks that wait for these sums.
    endpoint_->close_sums();
    endpoint_->close();
  }

  std::string_view name() const noexcept override { return "mpi"; }
  std::uint32_t rank() const noexcept override { return endpoint_->place(Role::kWorker).node.rank; }
  std::uint32_t size() const noexcept override { return endpoint_->world().workers; }

  void all_reduce(Buffer values, ElementType type, Done done) override {
    const std::size_t element_bytes = bytes_of(type);
    if (element_bytes == 0 || values.size_bytes() % element_bytes != 0) {
      throw std::invalid_argument("all_reduce: " + std::to_string(values.size_bytes()) +
                                  " bytes, expected a multiple of " + std::to_string(element_bytes));
    }
    endpoint_->sum(std::move(values), type, std::move(done));
  }

  void all_gather(Buffer block, Done done) override {
    endpoint_->sum(std::move(block), std::nullopt, std::move(done));
  }

 private:
  const std::shared_ptr<MpiEndpoint> endpoint_;
};

}  // namespace

NodePair connect_mpi(const MpiOptions& options) {
  // Two users: the endpoint ends with the later of both nodes.
  const auto endpoint = MpiEndpoint::connect(options, MpiJob::kPairs, 2);
  return {std::make_unique<MpiMessenger>(endpoint, Role::kWorker),
          std::make_unique<MpiMessenger>(endpoint, Role::kServer)};
}

MpiNative connect_mpi_native(const MpiOptions& options) {
  const auto endpoint = MpiEndpoint::connect(options, MpiJob::kNative, 2);
  return {std::make_unique<MpiMessenger>(endpoint, Role::kWorker), std::make_unique<MpiCollective>(endpoint)};
}

MpiDescription describe_mpi(const std::string& library) {
  const std::unique_ptr<MpiApi> port = load_mpi(library);
  MpiDescription description{port->version(), port->initialise()};
  port->finish();
  return description;
}

}  // namespace gradwire::transport
