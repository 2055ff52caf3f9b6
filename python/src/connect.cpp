// gradwire._core: how this process becomes a node of a job. Python sets every option; nothing here reads the
// environment.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <utility>

#include "compress/cuda/cuda_devices.h"
#include "kvstore/trace/trace_file.h"
#include "python/src/bindings.h"
#include "python/src/py_engine.h"
#include "python/src/settings.h"
#include "transport/decorators/faulty_messenger.h"
#include "transport/decorators/logged_messenger.h"
#include "transport/inproc/inproc.h"
#include "transport/nccl/nccl_collective.h"
#include "transport/zmq/zmq_host.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using std::chrono::milliseconds;

namespace {

// How the workers of one host reach each other, if they are to sum first.
kvstore::ConnectHost host_connector(const nb::kwargs& given) {
  if (!given.contains("hierarchy") || nb::cast<std::string>(given["hierarchy"]) != "host") return {};
  auto zmq = zmq_options(transport::Role::kWorker, given);
  zmq.replicas = 0;  // the main job's servers are mirrored; a host's has its leader's process to itself
  return [zmq](transport::Messenger& job) { return transport::connect_zmq_host(job, zmq); };
}

// What this process is to be disturbed by, however often it joins its job. Copies share everything.
struct PyFaults {
  std::shared_ptr<transport::Faults>
      faults;  // owners: these, the process's nodes and its engine; none: nothing
  // With which it first joined. Owners: copies of this.
  std::shared_ptr<std::optional<std::uint32_t>> rank = std::make_shared<std::optional<std::uint32_t>>();

  std::unique_ptr<transport::Messenger> disturb(std::unique_ptr<transport::Messenger> messenger) const {
    if (!*rank) *rank = messenger->self().rank;
    return transport::disturbed(std::move(messenger), faults, *rank);
  }
};

// Who is to die before it joins dies here.
PyFaults faults_of(const transport::ZmqOptions& zmq, const nb::kwargs& given) {
  if (!given.contains("faults")) return {};
  auto own = nb::cast<PyFaults>(given["faults"]);
  const std::uint32_t rank = own.rank->value_or(zmq.rank.value_or(0));
  if (own.faults) own.faults->saw({zmq.role, rank}, transport::FaultEvent::kStart);
  return own;
}

// What is in the line of this process's nodes: faults, and nearer to it a log of messages.
struct Line {
  PyFaults faults;
  std::shared_ptr<transport::MessageLines> messages{};

  Line(const transport::ZmqOptions& zmq, const nb::kwargs& given) : faults(faults_of(zmq, given)) {
    if (given.contains("log_messages") && nb::cast<bool>(given["log_messages"]))
      messages = std::make_shared<transport::MessageLines>();
  }
  std::unique_ptr<transport::Messenger> around(std::unique_ptr<transport::Messenger> messenger) const {
    transport::TakeLine take;
    if (messages) take = [kept = messages](std::string line) { kept->add(std::move(line)); };
    return transport::logged(faults.disturb(std::move(messenger)), take);
  }
  transport::NodePair around(transport::NodePair pair) const {
    auto worker = around(std::move(pair.worker));  // first: by its rank the process is known
    return {std::move(worker), around(std::move(pair.server))};
  }
  std::unique_ptr<PyEngine> of(std::unique_ptr<PyEngine> engine) const {
    engine->disturb_by(faults.faults);
    engine->log_messages_to(messages);
    return engine;
  }
};

// The scheduler of a job, in the process that serves it.
class PyScheduler {
 public:
  explicit PyScheduler(const nb::kwargs& given) {
    auto zmq = zmq_options(transport::Role::kScheduler, given);
    if (given.contains("faults")) faults_ = nb::cast<PyFaults>(given["faults"]).faults;
    zmq.witness = transport::scheduler_witness(faults_);
    scheduler_ = std::make_unique<transport::Scheduler>(zmq);
  }
  // Its thread may be about to call Python.
  ~PyScheduler() {
    const nb::gil_scoped_release release;
    scheduler_.reset();
  }
  PyScheduler(const PyScheduler&) = delete;
  PyScheduler& operator=(const PyScheduler&) = delete;

  std::string endpoint() const { return own().endpoint(); }
  std::string address() const { return own().address(); }
  void serve() {
    if (faults_) faults_->saw({transport::Role::kScheduler, 0}, transport::FaultEvent::kStart);
    const InterruptEnds interrupt;
    const nb::gil_scoped_release release;
    own().wait();
  }
  std::unique_ptr<transport::Scheduler> take() {
    static_cast<void>(own());
    return std::move(scheduler_);
  }

 private:
  transport::Scheduler& own() const {
    if (!scheduler_) throw std::logic_error("the scheduler belongs to an engine, which has joined its job");
    return *scheduler_;
  }
  std::shared_ptr<transport::Faults> faults_;  // owners: as those of PyFaults
  std::unique_ptr<transport::Scheduler> scheduler_;
};

// Takes over the scheduler, if this process serves the job's, and has its nodes join by it.
std::unique_ptr<transport::Scheduler> serve_beside(PyScheduler* given, transport::ZmqOptions& nodes) {
  if (given == nullptr) return nullptr;
  auto scheduler = given->take();
  nodes = scheduler->beside(nodes);
  return scheduler;
}

std::unique_ptr<PyEngine> connect_engine(const nb::kwargs& given) {
  const auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const Line line(zmq, given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  auto messenger = line.around(transport::connect_zmq(zmq));
  return line.of(std::make_unique<PyEngine>(std::move(messenger), options, connect_host));
}

std::unique_ptr<PyEngine> connect_peers(PyScheduler* serves, const nb::kwargs& given) {
  auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const Line line(zmq, given);
  auto scheduler = serve_beside(serves, zmq);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  zmq.servers = 0;  // each worker brings one
  auto pair = line.around(transport::connect_zmq_pair(zmq));
  return line.of(std::make_unique<PyEngine>(std::move(pair), options, connect_host, std::move(scheduler)));
}

std::unique_ptr<PyEngine> connect_mpi(const std::string& library, const nb::kwargs& given) {
  const auto mpi = mpi_options(library, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const Line line(zmq_options(transport::Role::kWorker, given), given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  auto pair = line.around(transport::colocate(transport::connect_mpi(mpi)));
  return line.of(std::make_unique<PyEngine>(std::move(pair), options, connect_host));
}

std::unique_ptr<PyEngine> connect_mpi_native(const std::string& library, const nb::kwargs& given) {
  const auto mpi = mpi_options(library, given);
  const auto options = engine_options(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  auto native = transport::connect_mpi_native(mpi);
  return std::make_unique<PyEngine>(std::move(native.messenger), std::move(native.collective), options);
}

std::unique_ptr<PyEngine> connect_nccl(PyScheduler* serves, const std::string& library,
                                       std::optional<int> device, bool share_gpu, const nb::kwargs& given) {
  auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  auto scheduler = serve_beside(serves, zmq);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  zmq.servers = 0;
  auto control = transport::connect_zmq(zmq);
  const int rank = static_cast<int>(control->self().rank);
  const int chosen = device.value_or(rank % std::max(compress::cuda_devices().count, 1));
  const auto sharing = share_gpu ? transport::GpuSharing::kAllowed : transport::GpuSharing::kRefused;
  auto sums = transport::connect_nccl(*control, library, chosen,
                                      {.join = zmq.rendezvous_timeout, .sum = options.slow_abort}, sharing);
  return std::make_unique<PyEngine>(std::move(control), std::move(sums), options, std::move(scheduler));
}

std::unique_ptr<PyEngine> connect_inproc(transport::InprocNetwork& network, std::uint32_t rank,
                                         const nb::kwargs& given) {
  const auto options = engine_options(given);
  const nb::gil_scoped_release release;
  return std::make_unique<PyEngine>(transport::colocate({network.connect({transport::Role::kWorker, rank}),
                                                         network.connect({transport::Role::kServer, rank})}),
                                    options);
}

std::unique_ptr<PyEngine> local_engine(const nb::kwargs& given) {
  transport::InprocNetwork network(1, 1);
  return connect_inproc(network, 0, given);
}

void run_server(const nb::kwargs& given) {
  const auto zmq = zmq_options(transport::Role::kServer, given);
  const std::string timeline = given.contains("timeline") ? nb::cast<std::string>(given["timeline"]) : "";
  const kvstore::ServerOptions options = server_options(given);
  if (!timeline.empty()) options.trace->start();
  const Line line(zmq, given);
  std::unique_ptr<kvstore::Server> server;
  {
    const InterruptEnds interrupt;
    const nb::gil_scoped_release release;
    server = std::make_unique<kvstore::Server>(line.around(transport::connect_zmq(zmq)), options);
  }
  const auto wait_and_tell = [&](milliseconds slice) {
    const bool done = server->wait_for(slice);
    if (!line.messages) return done;
    const nb::gil_scoped_acquire acquire;
    for (const std::string& text : line.messages->take())
      nb::print(("gradwire-server: " + text).c_str(), nb::handle(),
                nb::module_::import_("sys").attr("stderr"));
    return done;
  };
  const auto write_part = [&] {
    if (timeline.empty()) return;
    kvstore::leave_trace(timeline, *options.trace, {server->self(), server->world(), false, "server"},
                         [](const std::string& text) {
                           if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) < 0) PyErr_Clear();
                         });
  };
  try {
    wait_interruptibly(1e9, wait_and_tell);
  } catch (const transport::TransportError&) {
    write_part();
    throw;
  }
  write_part();
  const nb::gil_scoped_release release;
  server.reset();
}

}  // namespace

void bind_connect(nb::module_& module) {
  nb::class_<PyFaults>(module, "Faults", "What disturbs a process's frames, in all generations of its job.")
      .def(
          "__init__",
          [](PyFaults* self, const std::string& spec, const std::string& checksum) {
            new (self) PyFaults{transport::Faults::of(spec, transport::parse_payload_checksum(checksum))};
          },
          "spec"_a, "checksum"_a);
  module.def("connect_engine", &connect_engine,
             nb::sig("def connect_engine(**settings: typing.Any) -> Engine"),
             "Joins a job as a worker. Keywords: gradwire.settings.");
  nb::class_<PyScheduler>(module, "Scheduler",
                          "The scheduler of a job: rendezvous, liveness, exchanges. It listens at once.")
      .def(
          "__init__", [](PyScheduler* self, const nb::kwargs& given) { new (self) PyScheduler(given); },
          "settings"_a, nb::sig("def __init__(self, **settings: typing.Any) -> None"),
          "Keywords: gradwire.settings.")
      .def_prop_ro("endpoint", &PyScheduler::endpoint, "Where others reach it: tcp://host:port.")
      .def_prop_ro("address", &PyScheduler::address,
                   "The numeric address on which it listens; '*': on all interfaces.")
      .def("serve", &PyScheduler::serve, "Serves the job to its end.");
  module.def("connect_peers", &connect_peers, "serves"_a.none(), "settings"_a,
             nb::sig("def connect_peers(serves: Scheduler | None, **settings: typing.Any) -> Engine"),
             "Joins a job whose every worker sums a share itself. serves: the job's scheduler, if this "
             "process serves "
             "it; it then belongs to the engine. Keywords: gradwire.settings.");
  module.def(
      "connect_mpi", &connect_mpi, "library"_a, "settings"_a,
      nb::sig("def connect_mpi(library: str, **settings: typing.Any) -> Engine"),
      "As connect_peers, over MPI: every rank of MPI_COMM_WORLD is a worker. library: libgradwire_mpi.so.");
  module.def("connect_mpi_native", &connect_mpi_native, "library"_a, "settings"_a,
             nb::sig("def connect_mpi_native(library: str, **settings: typing.Any) -> Engine"),
             "As connect_mpi, and MPI sums: every rank must push the same keys in the same order.");
  module.def(
      "connect_nccl", &connect_nccl, "serves"_a.none(), "library"_a, "device"_a.none(), "share_gpu"_a,
      "settings"_a,
      nb::sig("def connect_nccl(serves: Scheduler | None, library: str, device: int | None, share_gpu: bool, "
              "**settings: typing.Any) -> Engine"),
      "NCCL sums: every rank must push the same keys in the same order. library: libnccl.so.2. device: "
      "number "
      "of the GPU; None: the rank modulo the number of GPUs. share_gpu: whether other ranks may use that "
      "GPU; "
      "call gradwire.stores.nccl.share_gpus() first.");
  nb::class_<transport::InprocNetwork>(module, "InprocNetwork",
                                       "Peers inside this process: every rank is a thread of its own.")
      .def(
          "__init__",
          [](transport::InprocNetwork* self, std::uint32_t workers) {
            new (self) transport::InprocNetwork(workers, workers);
          },
          "workers"_a)
      .def("connect", &connect_inproc, "rank"_a, "settings"_a,
           nb::sig("def connect(self, rank: int, **settings: typing.Any) -> Engine"),
           "Joins as rank, on a thread of its own: returns when all have joined.");
  module.def("local_engine", &local_engine, nb::sig("def local_engine(**settings: typing.Any) -> Engine"),
             "A store inside this process, of one worker.");
  module.def("run_server", &run_server, nb::sig("def run_server(**settings: typing.Any) -> None"),
             "Serves one job to its end in this process.");
}

}  // namespace gradwire::python
