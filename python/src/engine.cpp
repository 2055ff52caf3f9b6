// gradwire._core: the engine, tickets and the server loop. Python sets every option; nothing here reads the
// environment.
#include "kvstore/engine.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <csignal>

#include "compress/cuda_devices.h"
#include "compress/simd_target.h"
#include "kvstore/checkpoint_source.h"
#include "kvstore/optimizer_file.h"
#include "kvstore/trace_file.h"
#include "kvstore/weight_replies.h"
#include "python/src/bindings.h"
#include "python/src/py_engine.h"
#include "transport/inproc.h"
#include "transport/nccl_collective.h"
#include "transport/nccl_library.h"
#include "transport/nccl_port.h"
#include "transport/node_pair.h"
#include "transport/zmq_host.h"
#include "transport/zmq_messenger.h"
#include "transport/zmq_version.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using kvstore::Engine;
using kvstore::EngineOptions;
using kvstore::KeyId;
using kvstore::Ticket;
using std::chrono::milliseconds;

namespace {

constexpr auto kSignalCheck = milliseconds(100);

milliseconds from_seconds(double seconds) { return milliseconds(static_cast<std::int64_t>(seconds * 1000)); }

/// Calls poll(slice) without the GIL until it returns true or `seconds` passed; Ctrl-C is heard between
/// slices.
template <typename Poll>
bool wait_interruptibly(double seconds, const Poll& poll) {
  const auto deadline = std::chrono::steady_clock::now() + from_seconds(std::min(seconds, 1e9));
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    {
      const nb::gil_scoped_release release;
      if (poll(std::clamp(left, milliseconds(0), kSignalCheck))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left <= kSignalCheck) return false;
  }
}

// Off until somebody starts it. clock_offset: seconds that this process's clock is to be wrong by, for tests.
std::shared_ptr<kvstore::Trace> trace_of(const nb::kwargs& given) {
  kvstore::TraceOptions options;
  if (given.contains("clock_offset"))
    options.clock_offset = from_seconds(nb::cast<double>(given["clock_offset"]));
  return std::make_shared<kvstore::Trace>(options);
}

// One keyword per setting; names are those of gradwire.settings. staleness_bound, also as None: pushes are
// applied at once.
EngineOptions engine_options(const nb::kwargs& given) {
  EngineOptions options;
  const auto take = [&](const char* name, auto& field) {
    if (given.contains(name)) field = nb::cast<std::decay_t<decltype(field)>>(given[name]);
  };
  const auto take_seconds = [&](const char* name, milliseconds& field) {
    if (given.contains(name)) field = from_seconds(nb::cast<double>(given[name]));
  };
  take("partition_elements", options.partition_elements);
  take("shard_bound_elements", options.shard_bound_elements);
  take("fusion_bytes", options.fusion_bytes);
  take("credit_bytes", options.credit_bytes);
  take("codec_threads", options.codec_threads);
  if (given.contains("code_sums"))
    options.code_sums = kvstore::parse_code_sums(nb::cast<std::string>(given["code_sums"]));
  take_seconds("slow_warning", options.slow_warning);
  take_seconds("slow_abort", options.slow_abort);
  take_seconds("retry_timeout", options.retry_timeout);
  if (given.contains("staleness_bound"))
    options.at_once = {nb::cast<std::optional<std::uint64_t>>(given["staleness_bound"])};
  options.trace = trace_of(given);
  return options;
}

transport::ZmqOptions zmq_options(transport::Role role, const nb::kwargs& given) {
  transport::ZmqOptions options;
  options.role = role;
  const auto take = [&](const char* name, auto& field) {
    if (given.contains(name)) field = nb::cast<std::decay_t<decltype(field)>>(given[name]);
  };
  const auto take_seconds = [&](const char* name, milliseconds& field) {
    if (given.contains(name)) field = from_seconds(nb::cast<double>(given[name]));
  };
  take("scheduler", options.scheduler);
  take("rank", options.rank);
  take("workers", options.workers);
  take("scheduler_name", options.scheduler_name);
  take("servers", options.servers);
  take("bind_host", options.bind_host);
  take("interface", options.interface);
  take("streams", options.streams_per_peer);
  take("host", options.host);
  take("ipc", options.ipc);
  if (given.contains("checksum"))
    options.checksum = transport::parse_payload_checksum(nb::cast<std::string>(given["checksum"]));
  take_seconds("rendezvous_timeout", options.rendezvous_timeout);
  take_seconds("liveness_timeout", options.liveness_timeout);
  return options;
}

// How the workers of one host reach each other, if they are to sum first.
kvstore::ConnectHost host_connector(const nb::kwargs& given) {
  if (!given.contains("hierarchy") || nb::cast<std::string>(given["hierarchy"]) != "host") return {};
  return [zmq = zmq_options(transport::Role::kWorker, given)](transport::Messenger& job) {
    return transport::connect_zmq_host(job, zmq);
  };
}

std::unique_ptr<PyEngine> connect_engine(const nb::kwargs& given) {
  const auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  return std::make_unique<PyEngine>(transport::connect_zmq(zmq), options, connect_host);
}

std::unique_ptr<PyEngine> connect_peers(bool serves_roll_call, const nb::kwargs& given) {
  auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  zmq.servers = 0;  // each worker brings one
  auto scheduler = serves_roll_call ? std::make_unique<transport::Scheduler>(zmq) : nullptr;
  return std::make_unique<PyEngine>(transport::connect_zmq_pair(zmq), options, connect_host,
                                    std::move(scheduler));
}

transport::MpiOptions mpi_options(const std::string& library, const nb::kwargs& given) {
  const auto node = zmq_options(transport::Role::kWorker, given);
  transport::MpiOptions options;
  options.library = library;
  options.rendezvous_timeout = node.rendezvous_timeout;
  options.liveness_timeout = node.liveness_timeout;
  options.host = node.host;
  options.checksum = node.checksum;
  return options;
}

std::unique_ptr<PyEngine> connect_mpi(const std::string& library, const nb::kwargs& given) {
  const auto mpi = mpi_options(library, given);
  const auto options = engine_options(given);
  const auto connect_host = host_connector(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  return std::make_unique<PyEngine>(transport::colocate(transport::connect_mpi(mpi)), options, connect_host);
}

std::unique_ptr<PyEngine> connect_mpi_native(const std::string& library, const nb::kwargs& given) {
  const auto mpi = mpi_options(library, given);
  const auto options = engine_options(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  auto native = transport::connect_mpi_native(mpi);
  return std::make_unique<PyEngine>(std::move(native.messenger), std::move(native.collective), options);
}

std::unique_ptr<PyEngine> connect_nccl(bool serves_roll_call, const std::string& library,
                                       std::optional<int> device, const nb::kwargs& given) {
  auto zmq = zmq_options(transport::Role::kWorker, given);
  const auto options = engine_options(given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  zmq.servers = 0;
  auto scheduler = serves_roll_call ? std::make_unique<transport::Scheduler>(zmq) : nullptr;
  auto control = transport::connect_zmq(zmq);
  const int rank = static_cast<int>(control->self().rank);
  const int chosen = device.value_or(rank % std::max(compress::cuda_devices().count, 1));
  auto sums = transport::connect_nccl(*control, library, chosen,
                                      {.join = zmq.rendezvous_timeout, .sum = options.slow_abort});
  return std::make_unique<PyEngine>(std::move(control), std::move(sums), options, std::move(scheduler));
}

nb::dict describe_mpi(const std::string& library) {
  const auto description = transport::describe_mpi(library);
  nb::dict out;
  out["version"] = description.version;
  out["thread_level"] = description.thread_level;
  return out;
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
  kvstore::ServerOptions options;
  if (given.contains("credit_bytes")) options.credit_bytes = nb::cast<std::uint64_t>(given["credit_bytes"]);
  if (given.contains("fusion_bytes")) options.fusion_bytes = nb::cast<std::uint64_t>(given["fusion_bytes"]);
  options.trace = trace_of(given);
  if (!timeline.empty()) options.trace->start();
  std::unique_ptr<kvstore::Server> server;
  {
    const InterruptEnds interrupt;
    const nb::gil_scoped_release release;
    server = std::make_unique<kvstore::Server>(transport::connect_zmq(zmq), options);
  }
  const auto write_part = [&] {
    if (timeline.empty()) return;
    kvstore::leave_trace(timeline, *options.trace, {server->self(), server->world(), false, "server"},
                         [](const std::string& text) {
                           if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) < 0) PyErr_Clear();
                         });
  };
  try {
    wait_interruptibly(1e9, [&](milliseconds slice) { return server->wait_for(slice); });
  } catch (const transport::TransportError&) {
    write_part();
    throw;
  }
  write_part();
  const nb::gil_scoped_release release;
  server.reset();
}

void run_scheduler(const nb::kwargs& given) {
  const auto zmq = zmq_options(transport::Role::kScheduler, given);
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  transport::Scheduler(zmq).wait();
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> as_array(std::vector<float> values) {
  auto kept = std::make_unique<std::vector<float>>(std::move(values));
  float* data = kept->data();
  const std::size_t shape[] = {kept->size()};
  const nb::capsule owner(kept.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return {data, 1, shape, owner};
}

std::vector<kvstore::KeySpec> key_specs(
    const std::vector<std::tuple<std::string, std::vector<std::uint64_t>, std::string>>& keys) {
  std::vector<kvstore::KeySpec> specs;
  for (const auto& [name, shape, dtype] : keys) specs.push_back({name, shape, dtype});
  return specs;
}

nb::dict counters(PyEngine& self) {
  transport::Counters sum;
  for (const auto& peer : self.engine().counters()) {
    sum.bytes_sent += peer.counters.bytes_sent;
    sum.bytes_received += peer.counters.bytes_received;
    sum.frames_sent += peer.counters.frames_sent;
    sum.frames_received += peer.counters.frames_received;
  }
  nb::dict out;
  out["bytes_sent"] = sum.bytes_sent;
  out["bytes_received"] = sum.bytes_received;
  out["frames_sent"] = sum.frames_sent;
  out["frames_received"] = sum.frames_received;
  const kvstore::DeviceTraffic devices = self.engine().device_traffic();
  out["bytes_from_devices"] = devices.bytes_from_devices;
  out["bytes_to_devices"] = devices.bytes_to_devices;
  return out;
}

}  // namespace

void bind_engine(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  using Collective = nb::call_guard<InterruptEnds, nb::gil_scoped_release>;
  nb::class_<Ticket>(module, "Ticket", "An operation in flight.")
      .def_prop_ro("done", &Ticket::done)
      .def(
          "wait",
          [](const Ticket& ticket, double seconds) {
            return wait_interruptibly(seconds, [&](milliseconds slice) { return ticket.wait_for(slice); });
          },
          "seconds"_a = 1e9, "Waits; returns False when seconds passed first. Raises the operation's error.");

  nb::class_<PyEngine> engine(module, "Engine",
                              "A worker's end of the store. Made by connect_engine() or local_engine().");
  bind_collectives(engine);
  bind_sparse(module, engine);
  engine.def_prop_ro("rank", [](PyEngine& s) { return s.identity().rank(); })
      .def_prop_ro("num_workers", [](PyEngine& s) { return s.identity().num_workers(); })
      .def_prop_ro("num_servers", [](PyEngine& s) { return s.identity().num_servers(); })
      .def(
          "barrier", [](PyEngine& s) { s.engine().barrier(); }, Collective())
      .def(
          "join", [](PyEngine& s) { return s.engine().join(); }, Collective(),
          "Says that this worker has run out of data: the others' rounds go on without it. Returns when all "
          "have joined, with the rank that joined last.")
      .def(
          "all_gather",
          [](PyEngine& s, const std::string& name, nb::bytes blob) {
            const std::string_view view(blob.c_str(), blob.size());
            std::vector<std::string> blobs;
            {
              const InterruptEnds interrupt;
              const nb::gil_scoped_release release;
              blobs = s.engine().all_gather(name, view);
            }
            nb::list out;
            for (const auto& b : blobs) out.append(nb::bytes(b.data(), b.size()));
            return out;
          },
          "name"_a, "blob"_a, "Every worker's blob in rank order. Collective.")
      .def(
          "set_compression",
          [](PyEngine& s, const std::string& spec, const std::string& reply, const std::string& weights) {
            s.engine().set_compression(compress::parse_spec(spec), reply, weights);
          },
          "spec"_a, "reply"_a, "weights"_a = "fp32", Collective(),
          "Collective. Raises ValueError when ranks differ.")
      .def(
          "set_key_compression",
          [](PyEngine& s, const std::vector<KeyId>& keys, const std::string& spec, const std::string& reply) {
            s.engine().set_key_compression(keys, compress::parse_spec(spec), reply);
          },
          "keys"_a, "spec"_a, "reply"_a, Collective(),
          "Sets the codec of some keys apart from the others', before they are bound. Collective.")
      .def(
          "residual",
          [](PyEngine& s, KeyId key) {
            std::vector<float> values;
            {
              const nb::gil_scoped_release release;
              values = s.engine().residual(key);
            }
            return as_array(std::move(values));
          },
          "key"_a,
          "A copy of what the key's codec has not sent yet, float32 (elements,); (0,) where there is none.")
      .def(
          "residual_norm", [](PyEngine& s) { return s.engine().residual_norm(); }, Release(),
          "The Euclidean norm of all residuals together; None while a round is in progress.")
      .def(
          "share_sent", [](PyEngine& s) { return s.engine().share_sent(); }, Release(),
          "Of |gradient + residual|^2, in the keys' last measured rounds; None without, or while a round is "
          "in "
          "progress.")
      .def(
          "set_residual",
          [](PyEngine& s, KeyId key, const ConstFloats& values) {
            const nb::gil_scoped_release release;
            s.engine().set_residual(key, flat(values));
          },
          "key"_a, "values"_a.noconvert(),
          "Replaces it. Raises ValueError where a value is not finite, but with nonfinite=mxnet.")
      .def(
          "keep_rollback", [](PyEngine& s, bool keep) { s.engine().keep_rollback(keep); }, "keep"_a,
          "Keeps, from the next round on, what roll_back() needs: a second copy of every residual.")
      .def(
          "roll_back", [](PyEngine& s, const std::vector<KeyId>& keys) { s.engine().roll_back(keys); },
          "keys"_a, Release(), "Puts the residuals of keys back to what they were before their last round.")
      .def(
          "save_checkpoint",
          [](PyEngine& s, const std::string& folder, const nb::bytes& front_end) {
            const std::string_view given(front_end.c_str(), front_end.size());
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            s.engine().save_checkpoint(folder, given);
          },
          "folder"_a, "front_end"_a, "Writes all that is kept from round to round. Collective.")
      .def(
          "load_checkpoint",
          [](PyEngine& s, const std::string& folder) {
            kvstore::Restored restored;
            {
              const InterruptEnds interrupt;
              const nb::gil_scoped_release release;
              restored = s.engine().load_checkpoint(folder);
            }
            return restored.optimizer;
          },
          "folder"_a,
          "Goes on from a checkpoint. Returns the servers' optimizer, empty where there is none. Collective.")
      .def(
          "save_optimizer_states",
          [](PyEngine& s, const std::string& path, bool with_parameters) {
            const auto dump = with_parameters ? kvstore::Dump::kStatesAndParameters : kvstore::Dump::kStates;
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            s.engine().save_optimizer_states(path, dump);
          },
          "path"_a, "with_parameters"_a,
          "Writes what the servers' optimizer remembers of each weight. Of one rank alone.")
      .def(
          "load_optimizer_states",
          [](PyEngine& s, const std::string& path) {
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            return s.engine().load_optimizer_states(path);
          },
          "path"_a,
          "Puts it back. Returns the optimizer that it brought, empty where it is the one before. "
          "Collective.")
      .def(
          "declare",
          [](PyEngine& s,
             const std::vector<std::tuple<std::string, std::vector<std::uint64_t>, std::string>>& keys) {
            const auto specs = key_specs(keys);
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            return s.engine().declare(specs);
          },
          "keys"_a, "Agrees on new keys (name, shape, dtype) and returns their ids. Collective.")
      .def(
          "init",
          [](PyEngine& s, KeyId key, const ConstFloats& value, std::uint32_t root) {
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            s.engine().init(key, flat(value), root);
          },
          "key"_a, "value"_a.noconvert(), "root"_a = 0, "Stores root's value as the key's first. Collective.")
      .def(
          "set_optimizer", [](PyEngine& s, const std::string& text) { s.engine().set_optimizer(text); },
          "text"_a, Collective())
      .def(
          "push",
          [](PyEngine& s, KeyId key, const ConstFloats& grad, std::int32_t priority) {
            const nb::gil_scoped_release release;
            return s.engine().push(key, flat(grad), priority);
          },
          "key"_a, "grad"_a.noconvert(), "priority"_a = 0)
      .def(
          "push",
          [](PyEngine& s, KeyId key, const ConstCudaFloats& grad, std::int32_t priority,
             std::uintptr_t stream) {
            const kvstore::OnDevice place = s.on_cuda(grad.device_id(), stream);
            const nb::gil_scoped_release release;
            return s.engine().push(key, flat(grad), priority, place);
          },
          "key"_a, "grad"_a.noconvert(), "priority"_a = 0, nb::kw_only(), "stream"_a,
          "The same of a gradient on a CUDA device, which `stream` (a cudaStream_t as a number) may still be "
          "writing.")
      .def(
          "pull",
          [](PyEngine& s, KeyId key, const Floats& out, std::int32_t priority) {
            return s.keep(s.engine().pull(key, flat(out), priority), nb::none(), nb::cast(out));
          },
          "key"_a, "out"_a.noconvert(), "priority"_a = 0)
      .def(
          "pull",
          [](PyEngine& s, KeyId key, const CudaFloats& out, std::int32_t priority, std::uintptr_t stream) {
            const kvstore::OnDevice place = s.on_cuda(out.device_id(), stream);
            return s.keep(s.engine().pull(key, flat(out), priority, place), nb::none(), nb::cast(out));
          },
          "key"_a, "out"_a.noconvert(), "priority"_a = 0, nb::kw_only(), "stream"_a,
          "The same to a CUDA device, behind what `stream` has been given there.")
      .def(
          "push_pull",
          [](PyEngine& s, KeyId key, const ConstFloats& grad, const Floats& out, std::int32_t priority,
             float scale) {
            return s.keep(s.engine().push_pull(key, flat(grad), flat(out), priority, scale), nb::cast(grad),
                          nb::cast(out));
          },
          "key"_a, "grad"_a.noconvert(), "out"_a.noconvert(), "priority"_a = 0, "scale"_a = 1.0F)
      .def(
          "push_pull",
          [](PyEngine& s, KeyId key, const ConstCudaFloats& grad, const CudaFloats& out,
             std::int32_t priority, float scale, std::uintptr_t stream) {
            PyEngine::expect_device("push_pull", out.device_id(), grad.device_id());
            const kvstore::OnDevice place = s.on_cuda(grad.device_id(), stream);
            return s.keep(s.engine().push_pull(key, flat(grad), flat(out), priority, scale, place),
                          nb::cast(grad), nb::cast(out));
          },
          "key"_a, "grad"_a.noconvert(), "out"_a.noconvert(), "priority"_a = 0, "scale"_a = 1.0F,
          nb::kw_only(), "stream"_a, "Both on one CUDA device; `stream` as in push() and pull().")
      .def("bind_slots", &PyEngine::bind_slots, "keys"_a, "arrays"_a.noconvert(),
           "priorities"_a = std::vector<std::int32_t>(),
           "Binds slot i to keys[i] and to arrays[i], which is input and output of every step. Empty "
           "priorities: -i. A collective.")
      .def("bind_slots", &PyEngine::bind_slots_on_device, "keys"_a, "arrays"_a.noconvert(),
           "priorities"_a = std::vector<std::int32_t>(), "The same of arrays on one CUDA device.")
      .def(
          "set_slot_scale", [](PyEngine& s, float scale) { s.engine().set_slot_scale(scale); }, "scale"_a)
      .def(
          "mark_ready",
          [](PyEngine& s, std::uint32_t slot, std::uintptr_t stream) {
            s.engine().mark_ready(slot, reinterpret_cast<void*>(stream));
          },
          "slot"_a, "stream"_a = 0, Release(),
          "Says that the slot's gradient is complete; on a CUDA device, once `stream` has done what it was "
          "given.")
      .def(
          "unmarked", [](PyEngine& s) { return s.engine().unmarked(); }, "Slots not marked in this step.")
      .def(
          "slot_sums",
          [](PyEngine& s) {
            std::vector<std::pair<Ticket, std::vector<std::uint32_t>>> sums;
            for (auto& sum : s.engine().slot_sums()) sums.emplace_back(sum.done, std::move(sum.slots));
            return sums;
          },
          "Of the step in progress, in which every slot is marked: tickets, each with the slots whose sums "
          "are "
          "there when it is done. drain() still ends the step.")
      .def(
          "drain",
          [](PyEngine& s, double seconds) {
            return wait_interruptibly(seconds,
                                      [&](milliseconds slice) { return s.engine().drain_for(slice); });
          },
          "seconds"_a = 1e9, "Waits until every slot holds its sum. Returns False when seconds passed first.")
      .def("counters", &counters,
           "Bytes and frames at the socket since the start, all peers together; and bytes that have crossed "
           "between the host and its devices.")
      .def(
          "pushed",
          [](PyEngine& s) {
            const kvstore::PushedBytes pushed = s.engine().pushed();
            return std::pair(pushed.raw, pushed.encoded);
          },
          "Bytes that this worker has pushed: as float32, and encoded.")
      .def(
          "waited_for", [](PyEngine& s) { return s.engine().waited_for(); }, Collective(),
          "How often each worker's push was the last that a round needed, as the servers have counted.")
      .def(
          "stage_seconds",
          [](PyEngine& s) {
            nb::dict out;
            const auto times = s.engine().trace().stage_times();
            for (std::size_t stage = 0; stage < times.size(); ++stage) {
              const std::string_view name = kvstore::name_of(static_cast<kvstore::Stage>(stage));
              out[nb::str(name.data(), name.size())] = std::chrono::duration<double>(times[stage]).count();
            }
            return out;
          },
          "Seconds that each stage of all partitions has taken here while they were traced.")
      .def(
          "staleness", [](PyEngine& s) { return s.engine().staleness(); },
          "Where pushes are applied at once: how many parts this worker has pushed, by how many pushes of "
          "others went "
          "into their weight since this worker was given it.")
      .def("codec_seconds", [](PyEngine& s) { return s.engine().codec_seconds(); })
      .def("take_nonfinite", [](PyEngine& s) { return s.engine().take_nonfinite(); })
      .def("take_notices", [](PyEngine& s) { return s.engine().take_notices(); })
      .def(
          "start_timeline", [](PyEngine& s) { s.engine().trace().start(); },
          "Notes from now on what happens to every partition here.")
      .def("stop_timeline", &PyEngine::stop_timeline,
           "Notes no more, but how long what is on the wire takes.")
      .def(
          "read_clocks", [](PyEngine& s, double seconds) { s.read_clocks(from_seconds(seconds)); },
          "seconds"_a, Release(), "Compares the servers' clocks with this one's, in at most so many seconds.")
      .def("write_timeline", &PyEngine::write_timeline, "folder"_a, "store"_a, Release(),
           "Writes what was noted to folder and forgets it. Returns the file's path; None in a forked "
           "process. Also "
           "after close().")
      .def("close", &PyEngine::close, "Says goodbye and ends the threads. Idempotent.")
      .def(
          "outlast",
          [](PyEngine& s, double seconds) {
            return wait_interruptibly(seconds, [&](milliseconds slice) { return s.outlast_for(slice); });
          },
          "seconds"_a,
          "After close(): waits until all have left the job, if this process serves its roll call. Returns "
          "False "
          "when seconds passed first.");

  module.def(
      "build_info",
      [] {
        nb::dict info;
        info["zmq"] = transport::zmq_version();
        info["simd"] = compress::simd_target();
        const compress::CudaDevices cuda = compress::cuda_devices();
        info["cuda_devices"] = cuda.count;
        info["cuda_missing"] = cuda.missing;
        info["nccl_missing"] = transport::nccl_missing();
        return info;
      },
      "What the core was built with and runs on: version of ZeroMQ, instruction set of the codecs, number of "
      "CUDA devices and, where there is none, the reason; why NCCL cannot be used by this build, if so.");
  module.def(
      "read_front_end",
      [](const std::string& folder, std::uint32_t rank) {
        kvstore::FrontEnd found;
        {
          const nb::gil_scoped_release release;
          found = kvstore::read_front_end(folder, rank);
        }
        return std::tuple(found.workers, found.given_by, nb::bytes(found.bytes.data(), found.bytes.size()));
      },
      "folder"_a, "rank"_a,
      "What a checkpoint holds of a worker's own: the number of workers, whose it is, and the bytes.");
  module.def("connect_engine", &connect_engine,
             nb::sig("def connect_engine(**settings: typing.Any) -> Engine"),
             "Joins a job as a worker. Keywords: gradwire.settings.");
  module.def("connect_peers", &connect_peers, "serves_roll_call"_a, "settings"_a,
             nb::sig("def connect_peers(serves_roll_call: bool, **settings: typing.Any) -> Engine"),
             "Joins a job whose every worker sums a share itself. Keywords: gradwire.settings.");
  module.def(
      "connect_mpi", &connect_mpi, "library"_a, "settings"_a,
      nb::sig("def connect_mpi(library: str, **settings: typing.Any) -> Engine"),
      "As connect_peers, over MPI: every rank of MPI_COMM_WORLD is a worker. library: libgradwire_mpi.so.");
  module.def("connect_mpi_native", &connect_mpi_native, "library"_a, "settings"_a,
             nb::sig("def connect_mpi_native(library: str, **settings: typing.Any) -> Engine"),
             "As connect_mpi, and MPI sums: every rank must push the same keys in the same order.");
  module.def(
      "describe_mpi", &describe_mpi, "library"_a,
      "Version and thread level of MPI, which it initialises and finalises: for a process of its own.");
  module.def(
      "connect_nccl", &connect_nccl, "serves_roll_call"_a, "library"_a, "device"_a.none(), "settings"_a,
      nb::sig("def connect_nccl(serves_roll_call: bool, library: str, device: int | None, **settings: "
              "typing.Any) -> Engine"),
      "NCCL sums, each rank on a GPU of its own: every rank must push the same keys in the same order. "
      "library: libnccl.so.2. device: number of the GPU; None: the rank modulo the number of GPUs.");
  module.def(
      "nccl_version", [](const std::string& library) { return transport::NcclLibrary(library).version(); },
      "library"_a,
      "Version of the NCCL there, which needs no GPU. Raises TransportError with the loader's reason.");
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
  module.def(
      "canonical_weights", [](const std::string& text) { return kvstore::WeightReplies(text).text(); },
      "text"_a,
      "How servers send weights, 'fp16' or 'delta:int8', with every parameter written out. Raises "
      "ValueError.");
  module.def("run_server", &run_server, nb::sig("def run_server(**settings: typing.Any) -> None"),
             "Serves one job to its end in this process.");
  module.def("run_scheduler", &run_scheduler, nb::sig("def run_scheduler(**settings: typing.Any) -> None"),
             "Schedules one job to its end in this process.");
}

}  // namespace gradwire::python
