// gradwire._core: what an Engine has counted and measured, and its timeline.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/src/bindings.h"
#include "python/src/py_engine.h"
#include "transport/decorators/faults.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict counters(PyEngine& self) {
  transport::Counters sum;
  for (const auto& peer : self.engine().metrics().counters()) {
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
  const kvstore::DeviceTraffic devices = self.engine().metrics().device_traffic();
  out["bytes_from_devices"] = devices.bytes_from_devices;
  out["bytes_to_devices"] = devices.bytes_to_devices;
  return out;
}

// By kind: how many frames met it, and how many were looked at. Empty without faults.
nb::dict faults(PyEngine& self) {
  nb::dict out;
  if (self.faults() == nullptr) return out;
  const transport::FaultCounts counts = self.faults()->counts();
  out["frames"] = counts.frames;
  for (std::size_t i = 0; i < transport::kFaultKinds; ++i)
    out[std::string(transport::name_of(static_cast<transport::Fault>(i))).c_str()] = counts.met[i];
  return out;
}

}  // namespace

void bind_metrics(nb::class_<PyEngine>& engine) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  using Collective = nb::call_guard<InterruptEnds, nb::gil_scoped_release>;
  engine
      .def(
          "residual_norm", [](PyEngine& s) { return s.engine().residuals().norm(); }, Release(),
          "The Euclidean norm of all residuals together; None while a round is in progress.")
      .def(
          "share_sent", [](PyEngine& s) { return s.engine().residuals().share_sent(); }, Release(),
          "Of |gradient + residual|^2, in the keys' last measured rounds; None without, or while a round is "
          "in progress.")
      .def("faults", &faults, "Frames by what GRADWIRE_FAULTS has done to them; empty without it.")
      .def(
          "unmet_kills",
          [](PyEngine& s) {
            return s.faults() == nullptr ? std::vector<std::string>() : s.faults()->counts().unmet_kills;
          },
          "Kills of GRADWIRE_FAULTS that were to come to this process and have not, in words.")
      .def("counters", &counters,
           "Bytes and frames at the socket since the start, all peers together; and bytes that have crossed "
           "between the host and its devices.")
      .def(
          "pushed",
          [](PyEngine& s) {
            const kvstore::PushedBytes pushed = s.engine().metrics().pushed();
            return std::pair(pushed.raw, pushed.encoded);
          },
          "Bytes that this worker has pushed: as float32, and encoded.")
      .def(
          "ahead_bytes", [](PyEngine& s) { return s.engine().metrics().ahead_bytes(); },
          "What push() has taken of gradients whose rounds cannot begin yet, at most push_ahead_bytes, and "
          "of rows whose rounds are not known to be over.")
      .def(
          "mirrored_bytes", [](PyEngine& s) { return s.engine().metrics().mirrored_bytes(); }, Collective(),
          "Payload bytes that servers have passed on to their mirrors. Asks the servers.")
      .def(
          "replaced_servers", [](PyEngine& s) { return s.engine().metrics().replaced_servers(); }, Release(),
          "Servers that have died, and who serves in their place.")
      .def(
          "waited_for", [](PyEngine& s) { return s.engine().metrics().waited_for(); }, Collective(),
          "How often each worker's push was the last that a round needed, as the servers have counted.")
      .def(
          "stage_seconds",
          [](PyEngine& s) {
            nb::dict out;
            const auto times = s.engine().metrics().trace().stage_times();
            for (std::size_t stage = 0; stage < times.size(); ++stage) {
              const std::string_view name = kvstore::name_of(static_cast<kvstore::Stage>(stage));
              out[nb::str(name.data(), name.size())] = std::chrono::duration<double>(times[stage]).count();
            }
            return out;
          },
          "Seconds that each stage of all partitions has taken here while they were traced.")
      .def(
          "staleness", [](PyEngine& s) { return s.engine().metrics().staleness(); },
          "Where pushes are applied at once: how many parts this worker has pushed, by how many pushes of "
          "others went "
          "into their weight since this worker was given it.")
      .def("codec_seconds", [](PyEngine& s) { return s.engine().metrics().codec_seconds(); })
      .def("take_notices", [](PyEngine& s) { return s.engine().metrics().take_notices(); })
      .def("take_messages", &PyEngine::take_messages,
           "Lines about messages sent and heard since the last call, where log_messages was given.")
      .def(
          "start_timeline", [](PyEngine& s) { s.engine().metrics().trace().start(); },
          "Notes from now on what happens to every partition here.")
      .def("stop_timeline", &PyEngine::stop_timeline,
           "Notes no more, but how long what is on the wire takes.")
      .def(
          "read_clocks", [](PyEngine& s, double seconds) { s.read_clocks(from_seconds(seconds)); },
          "seconds"_a, Release(), "Compares the servers' clocks with this one's, in at most so many seconds.")
      .def("write_timeline", &PyEngine::write_timeline, "folder"_a, "store"_a, Release(),
           "Writes what was noted to folder and forgets it. Returns the file's path; None in a forked "
           "process. Also "
           "after close().");
}

}  // namespace gradwire::python
