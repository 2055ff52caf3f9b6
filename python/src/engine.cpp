// gradwire._core: the engine and its tickets.
#include "kvstore/engine/engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compress/codecs.h"
#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/py_engine.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using kvstore::KeyId;
using kvstore::Ticket;
using std::chrono::milliseconds;

namespace {

std::vector<kvstore::KeySpec> key_specs(
    const std::vector<std::tuple<std::string, std::vector<std::uint64_t>, std::string>>& keys) {
  std::vector<kvstore::KeySpec> specs;
  for (const auto& [name, shape, dtype] : keys) specs.push_back({name, shape, dtype});
  return specs;
}

std::vector<kvstore::FirstValue> first_values(const std::vector<KeyId>& keys,
                                              const std::vector<ConstNumbers>& values) {
  if (keys.size() != values.size()) {
    throw std::invalid_argument("init: " + std::to_string(keys.size()) + " keys and " +
                                std::to_string(values.size()) + " values; give one value per key");
  }
  std::vector<kvstore::FirstValue> given;
  for (std::size_t i = 0; i < keys.size(); ++i)
    given.push_back({keys[i], numbers_of(values[i], "init", "value")});
  return given;
}

/// A push's tickets. Its gradient is kept until it is taken, which it mostly is at once.
template <typename Array>
std::pair<Ticket, Ticket> tickets(PyEngine& engine, const Array& grad, const kvstore::BegunPush& push) {
  const bool is_taken = without_gil([&] { return push.taken.wait_for(kSignalCheck); });
  if (!is_taken) engine.keep_until_taken(push.taken, nb::cast(grad));
  return {push.taken, push.done};
}

}  // namespace

void bind_engine(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  using Collective = nb::call_guard<InterruptEnds, nb::gil_scoped_release>;
  nb::class_<Ticket>(module, "Ticket", "An operation in flight.")
      .def_prop_ro("done", &Ticket::done)
      .def_prop_ro("nonfinite", &Ticket::nonfinite,
                   "Whether any rank met a NaN or infinity in what this is for; known once done.")
      .def(
          "wait",
          [](const Ticket& ticket, double seconds) {
            const auto endless = seconds < kForEver ? nullptr : ticket.endless();
            return wait_interruptibly(seconds, [&](milliseconds slice) { return ticket.wait_for(slice); });
          },
          "seconds"_a = kForEver,
          "Waits; returns False when seconds passed first. Raises the operation's error.");

  nb::class_<PyEngine> engine(module, "Engine",
                              "A worker's end of the store. Made by connect_engine() or local_engine().");
  bind_collectives(engine);
  bind_sparse(module, engine);
  bind_state(engine);
  bind_metrics(engine);
  engine.def_prop_ro("rank", [](PyEngine& s) { return s.identity().rank(); })
      .def_prop_ro("num_workers", [](PyEngine& s) { return s.identity().num_workers(); })
      .def_prop_ro("num_servers", [](PyEngine& s) { return s.identity().num_servers(); })
      .def_prop_ro(
          "generation", [](PyEngine& s) { return s.identity().generation(); },
          "How often the job has met: 1, and more after each change of its members.")
      .def_prop_ro(
          "newcomers", [](PyEngine& s) { return s.engine().newcomers(); },
          "Workers that wait to be taken into the job, as last heard; ranks may hear it at different times.")
      .def(
          "regroup",
          [](PyEngine& s, const std::string& why, bool stays) {
            const auto parting = stays ? transport::Parting::kStays : transport::Parting::kLeaves;
            s.engine().regroup(why, parting);
          },
          "why"_a, "stays"_a,
          "Has all ranks hear of a change of membership, and join again; with stays=False all others.")
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
              blobs = s.engine().meeting().all_gather(name, view);
            }
            nb::list out;
            for (const auto& b : blobs) out.append(nb::bytes(b.data(), b.size()));
            return out;
          },
          "name"_a, "blob"_a, "Every worker's blob in rank order. Collective.")
      .def(
          "change_endless", [](PyEngine& s, int by) { s.engine().callers()->change_endless(by); }, "by"_a,
          "With 1: what this thread waits for from now on, however often it looks, it waits for until it has "
          "come; with -1 no longer. So workers that wait for one another are found.")
      .def("let_go_of_arrays", &PyEngine::let_go_of_arrays,
           "Lets go of the arrays of operations that are done, which otherwise the next operation does.")
      .def(
          "await_rounds", [](PyEngine& s) { s.engine().await_rounds("commit"); }, Collective(),
          "Waits until all rounds that this worker has begun are over.")
      .def(
          "refuse",
          [](PyEngine& s, const std::string& name, const std::string& text) {
            s.engine().meeting().refuse(name, text);
          },
          "name"_a, "text"_a, Collective(),
          "Raises ValueError with this text on all workers, which begin the call that is wrong here with the "
          "exchange of that name. No-op in a job whose members have changed.")
      .def(
          "agree",
          [](PyEngine& s, const std::string& what, const std::string& text) {
            s.engine().meeting().agree(what, text);
          },
          "what"_a, "text"_a, Collective(),
          "Raises ValueError where a worker gives other lines, the same on all. Collective.")
      .def(
          "set_compression",
          [](PyEngine& s, const std::string& spec, const std::string& reply, const std::string& weights) {
            s.engine().compression().set(compress::parse_spec(spec), reply, weights);
          },
          "spec"_a, "reply"_a, "weights"_a = "fp32", Collective(),
          "Collective. Raises ValueError when ranks differ.")
      .def(
          "set_key_compression",
          [](PyEngine& s, const std::vector<KeyId>& keys, const std::string& spec, const std::string& reply) {
            s.engine().compression().set_of_keys(keys, compress::parse_spec(spec), reply);
          },
          "keys"_a, "spec"_a, "reply"_a, Collective(),
          "Sets the codec of some keys apart from the others', before they are bound. Collective.")
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
          [](PyEngine& s, const std::vector<KeyId>& keys, const std::vector<ConstNumbers>& values,
             std::uint32_t root) {
            const auto given = first_values(keys, values);
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            s.engine().init(given, root);
          },
          "keys"_a, "values"_a.noconvert(), "root"_a = 0,
          "Stores root's values as the keys' first, all in one exchange. Of a key of float64 they may be "
          "float64; of another that is a ValueError. Collective.")
      .def(
          "set_optimizer", [](PyEngine& s, const std::string& text) { s.engine().set_optimizer(text); },
          "text"_a, Collective())
      .def(
          "push",
          [](PyEngine& s, KeyId key, const ConstNumbers& grad, std::int32_t priority) {
            return tickets(s, grad, s.engine().begin_push(key, numbers_of(grad, "push", "grad"), priority));
          },
          "key"_a, "grad"_a.noconvert(), "priority"_a = 0,
          "Adds grad, of float32, float16 or bfloat16, to this round's sum. Of a key of float64 it may be "
          "float64: sums are of float64 with codec none; others work in float32. Returns two tickets: grad "
          "was taken, which is to be waited for; the round is over.")
      .def(
          "push",
          [](PyEngine& s, KeyId key, const ConstCudaNumbers& grad, std::int32_t priority,
             std::uintptr_t stream) {
            const kvstore::OnDevice place = s.on_cuda(grad.device_id(), stream);
            return tickets(s, grad,
                           s.engine().begin_push(key, numbers_of(grad, "push", "grad"), priority, place));
          },
          "key"_a, "grad"_a.noconvert(), "priority"_a = 0, nb::kw_only(), "stream"_a,
          "The same of a gradient on a CUDA device, not of float64, which `stream` (a cudaStream_t as a "
          "number) may still be "
          "writing.")
      .def(
          "pull",
          [](PyEngine& s, KeyId key, const Numbers& out, std::int32_t priority) {
            return s.keep(s.engine().pull(key, numbers_of(out, "pull", "out"), priority), nb::none(),
                          nb::cast(out));
          },
          "key"_a, "out"_a.noconvert(), "priority"_a = 0)
      .def(
          "pull",
          [](PyEngine& s, KeyId key, const CudaNumbers& out, std::int32_t priority, std::uintptr_t stream) {
            const kvstore::OnDevice place = s.on_cuda(out.device_id(), stream);
            return s.keep(s.engine().pull(key, numbers_of(out, "pull", "out"), priority, place), nb::none(),
                          nb::cast(out));
          },
          "key"_a, "out"_a.noconvert(), "priority"_a = 0, nb::kw_only(), "stream"_a,
          "The same to a CUDA device, behind what `stream` has been given there.")
      .def(
          "push_pull",
          [](PyEngine& s, KeyId key, const ConstNumbers& grad, const Numbers& out, std::int32_t priority,
             double scale, std::uint32_t program_step) {
            return s.keep(
                s.engine().push_pull(key, numbers_of(grad, "push_pull", "grad"),
                                     numbers_of(out, "push_pull", "out"), priority, scale, {}, program_step),
                nb::cast(grad), nb::cast(out));
          },
          "key"_a, "grad"_a.noconvert(), "out"_a.noconvert(), "priority"_a = 0, "scale"_a = 1.0,
          "program_step"_a = 0)
      .def(
          "push_pull",
          [](PyEngine& s, KeyId key, const ConstCudaNumbers& grad, const CudaNumbers& out,
             std::int32_t priority, float scale, std::uint32_t program_step, std::uintptr_t stream) {
            PyEngine::expect_device("push_pull", out.device_id(), grad.device_id());
            const kvstore::OnDevice place = s.on_cuda(grad.device_id(), stream);
            return s.keep(s.engine().push_pull(key, numbers_of(grad, "push_pull", "grad"),
                                               numbers_of(out, "push_pull", "out"), priority, scale, place,
                                               program_step),
                          nb::cast(grad), nb::cast(out));
          },
          "key"_a, "grad"_a.noconvert(), "out"_a.noconvert(), "priority"_a = 0, "scale"_a = 1.0F,
          "program_step"_a = 0, nb::kw_only(), "stream"_a,
          "Both on one CUDA device; `stream` as in push() and pull().")
      .def(
          "bind_slots", &PyEngine::bind_slots, "keys"_a, "arrays"_a.noconvert(),
          "priorities"_a = std::vector<std::int32_t>(), "set"_a = 0,
          "groups"_a = std::vector<std::uint32_t>(),
          "Binds slot i of a set to keys[i] and to arrays[i], which is input and output of every step. Empty "
          "priorities: -i. A collective.")
      .def("bind_slots", &PyEngine::bind_slots_on_device, "keys"_a, "arrays"_a.noconvert(),
           "priorities"_a = std::vector<std::int32_t>(), "set"_a = 0,
           "groups"_a = std::vector<std::uint32_t>(), "The same of arrays on one CUDA device.")
      .def(
          "set_slot_scale",
          [](PyEngine& s, float scale, kvstore::SlotSet set) { s.engine().slots().set_scale(scale, set); },
          "scale"_a, "set"_a = 0)
      .def(
          "set_program_step",
          [](PyEngine& s, std::uint32_t step, kvstore::SlotSet set) {
            s.engine().slots().set_program_step(step, set);
          },
          "program_step"_a, "set"_a = 0,
          "Says which step of the program the slots' next step is of: workers that differ fail. 0: not "
          "compared.")
      .def(
          "mark_ready",
          [](PyEngine& s, std::uint32_t slot, std::uintptr_t stream, kvstore::SlotSet set) {
            s.engine().slots().mark_ready(slot, reinterpret_cast<void*>(stream), set);
          },
          "slot"_a, "stream"_a = 0, "set"_a = 0, Release(),
          "Says that the slot's gradient is complete; on a CUDA device, once `stream` has done what it was "
          "given.")
      .def(
          "unmarked", [](PyEngine& s, kvstore::SlotSet set) { return s.engine().slots().unmarked(set); },
          "set"_a = 0, "Slots not marked in this step.")
      .def(
          "slot_sums",
          [](PyEngine& s, kvstore::SlotSet set) {
            std::vector<std::pair<Ticket, std::vector<std::uint32_t>>> sums;
            for (auto& sum : s.engine().slots().sums(set)) sums.emplace_back(sum.done, std::move(sum.slots));
            return sums;
          },
          "set"_a = 0,
          "Of the step in progress, in which every slot is marked: tickets, each with the slots whose sums "
          "are there when it is done. drain() still ends the step.")
      .def(
          "drain",
          [](PyEngine& s, double seconds, kvstore::SlotSet set) {
            std::optional<kvstore::Callers::Endless> endless;
            if (seconds >= kForEver) endless.emplace(*s.engine().callers());
            return wait_interruptibly(
                seconds, [&](milliseconds slice) { return s.engine().slots().drain_for(slice, set); });
          },
          "seconds"_a = kForEver, "set"_a = 0,
          "Waits until every slot of a set holds its sum. Returns False when seconds passed first.")
      .def("close", &PyEngine::close, "error"_a = "",
           "Says goodbye and ends the threads. Idempotent. error: what ends this worker, for the others; "
           "empty: "
           "it has come to its end.")
      .def(
          "outlast",
          [](PyEngine& s, double seconds) {
            return wait_interruptibly(seconds, [&](milliseconds slice) { return s.outlast_for(slice); });
          },
          "seconds"_a,
          "After close(): waits until all have left the job, if this process serves them: its rendezvous, a "
          "server. Returns False when seconds passed first.")
      .def_prop_ro("serves_rendezvous", &PyEngine::serves_rendezvous,
                   "Whether workers join the job at this process.")
      .def("retire", &PyEngine::retire, Release(),
           "After close(): ends what a server here does for other workers, for a process that ends by an "
           "error.");
}

}  // namespace gradwire::python
