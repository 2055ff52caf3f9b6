// gradwire._core: the plan of a step and the simulator of fusion/, as plain values and functions.
#include "fusion/simulation.h"

#include <nanobind/stl/vector.h>

#include "python/src/bindings.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using namespace fusion;

namespace {

void bind_values(nb::module_& module) {
  nb::enum_<Topology>(module, "Topology", "Where a round is summed.")
      .value("SERVERS_APART", Topology::kServersApart)
      .value("SERVERS_BESIDE", Topology::kServersBeside)
      .value("RING", Topology::kRing);
  nb::enum_<SendOrder>(module, "SendOrder", "In what order parts go.")
      .value("PRIORITY", SendOrder::kPriority)
      .value("FIFO", SendOrder::kFifo);
  nb::enum_<NextForward>(module, "NextForward", "What the next step's forward waits for.")
      .value("PER_LAYER", NextForward::kPerLayer)
      .value("DRAINED", NextForward::kDrained);
  nb::class_<SimulatedLayer>(module, "SimulatedLayer")
      .def(nb::init<std::uint64_t, double, double>(), "elements"_a, "forward_seconds"_a, "backward_seconds"_a)
      .def_ro("elements", &SimulatedLayer::elements)
      .def_ro("forward_seconds", &SimulatedLayer::forward_seconds)
      .def_ro("backward_seconds", &SimulatedLayer::backward_seconds);
  nb::class_<LayerTimes>(module, "LayerTimes", "Seconds from the start of the step's backward.")
      .def_ro("ready_seconds", &LayerTimes::ready_seconds)
      .def_ro("arrived_seconds", &LayerTimes::arrived_seconds)
      .def_ro("forward_seconds", &LayerTimes::forward_seconds);
  nb::class_<Simulated>(module, "Simulated")
      .def_ro("step_seconds", &Simulated::step_seconds)
      .def_ro("compute_seconds", &Simulated::compute_seconds)
      .def_ro("sent_bytes", &Simulated::sent_bytes)
      .def_ro("received_bytes", &Simulated::received_bytes)
      .def_ro("busiest_link", &Simulated::busiest_link)
      .def_ro("layers", &Simulated::layers)
      .def_ro("events", &Simulated::events);
}

void bind_plan(nb::module_& module) {
  nb::class_<PlanLimits>(module, "PlanLimits")
      .def(nb::init<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                    std::uint64_t>(),
           "partition_elements"_a, "unit_elements"_a, "least_pieces"_a, "shortest_piece_elements"_a,
           "shard_bound_elements"_a, "fusion_bytes"_a)
      .def_prop_ro_static("LEAST_PIECES", [](nb::handle) { return PlanLimits().least_pieces; });
  nb::class_<PlannedKey>(module, "PlannedKey", "One or several layers that travel under one name.")
      .def_ro("layers", &PlannedKey::layers)
      .def_ro("turns", &PlannedKey::turns);
  nb::class_<PlannedPart>(module, "PlannedPart", "What one server owns of a key, or a piece of that.")
      .def_ro("key", &PlannedPart::key)
      .def_ro("server", &PlannedPart::server)
      .def_ro("elements", &PlannedPart::elements);
  nb::class_<StepPlan>(module, "StepPlan").def_ro("keys", &StepPlan::keys).def_ro("parts", &StepPlan::parts);
  module.def(
      "plan_step",
      [](const std::vector<std::uint64_t>& layer_elements, std::uint32_t servers, std::uint32_t first,
         const PlanLimits& limits) { return plan_step(layer_elements, servers, first, limits); },
      "layer_elements"_a, "servers"_a, "first"_a, "limits"_a,
      "What travels in a step: layers, front layer first, become keys, keys parts with a home. first: the "
      "server whose parts are encoded first.");
}

// Each field once, flat: Python's own dataclass has the structure.
void bind_setup(nb::module_& module) {
  nb::class_<NetworkModel>(module, "NetworkModel")
      .def(nb::init<Topology, std::uint32_t, std::uint32_t, double, double, double, double>(), "topology"_a,
           "workers"_a, "servers"_a, "bytes_per_second"_a, "latency_seconds"_a, "message_seconds"_a,
           "wakeup_seconds"_a);
  nb::class_<CodecCosts>(module, "CodecCosts")
      .def(nb::init<double, double, double, double, double>(), "push_bytes"_a, "reply_bytes"_a,
           "encode_seconds"_a, "decode_seconds"_a, "sum_seconds"_a)
      .def_ro("push_bytes", &CodecCosts::push_bytes);
  nb::class_<CoreModel>(module, "CoreModel", "The machine that a worker shares with others and with servers.")
      .def(nb::init<double, double, double, double, double>(), "cores"_a, "compute_threads"_a, "workers"_a,
           "servers_share"_a, "byte_seconds"_a);
  nb::class_<SimulationSetup>(module, "SimulationSetup")
      .def(nb::init<std::vector<SimulatedLayer>, NetworkModel, CodecCosts, PlanLimits, std::uint64_t,
                    std::uint64_t, SendOrder, NextForward, unsigned, unsigned, unsigned, CoreModel>(),
           "layers"_a, "network"_a, "codec"_a, "limits"_a, "message_bytes"_a, "credit_bytes"_a, "order"_a,
           "next_forward"_a, "codec_threads"_a, "server_threads"_a, "steps"_a, "machine"_a);
}

}  // namespace

void bind_simulation(nb::module_& module) {
  bind_values(module);
  bind_plan(module);
  bind_setup(module);
  module.def("shortest_piece", &shortest_piece, "unit_elements"_a, "unit_payload_bytes"_a,
             "Least elements of a piece that is worth a frame, by the payload of a codec unit in bytes.");
  module.def("simulate", &simulate, "setup"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Simulates steps of training: what each takes, and when each layer's sum arrives.");
  module.def("least_step_seconds", nb::overload_cast<const SimulationSetup&>(&least_step_seconds), "setup"_a,
             "Seconds that no schedule of these layers on this network can beat.");
}

}  // namespace gradwire::python
