// gradwire._core: what is asked without a job: of this build, of libraries, of texts and files.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "compress/cuda/cuda_devices.h"
#include "compress/payload/simd_target.h"
#include "kvstore/checkpoint/checkpoint_source.h"
#include "kvstore/wire/weight_replies.h"
#include "python/src/bindings.h"
#include "transport/address.h"
#include "transport/decorators/fault_spec.h"
#include "transport/mpi/mpi.h"
#include "transport/nccl/nccl_library.h"
#include "transport/nccl/nccl_port.h"
#include "transport/zmq/job_key.h"
#include "transport/zmq/zmq_version.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict describe_mpi(const std::string& library) {
  const auto description = transport::describe_mpi(library);
  nb::dict out;
  out["version"] = description.version;
  out["thread_level"] = description.thread_level;
  return out;
}

}  // namespace

void bind_facts(nb::module_& module) {
  module.def(
      "build_info",
      [] {
        nb::dict info;
        info["zmq"] = transport::zmq_version();
        info["curve"] = transport::has_curve();
        info["simd"] = compress::simd_target();
        const compress::CudaDevices cuda = compress::cuda_devices();
        info["cuda_devices"] = cuda.count;
        info["cuda_missing"] = cuda.missing;
        info["nccl_missing"] = transport::nccl_missing();
        return info;
      },
      "What the core was built with and runs on: version of ZeroMQ and whether it can encrypt, instruction "
      "set of the codecs, number of "
      "CUDA devices and, where there is none, the reason; why NCCL cannot be used by this build, if so.");
  module.def(
      "make_job_key", [] { return transport::JobKey::make().text(); },
      "Makes the secret of an encrypted job: 128 hexadecimal digits.");
  module.def(
      "resolve",
      [](const std::string& host) {
        const nb::gil_scoped_release release;
        return transport::resolve(host);
      },
      "host"_a,
      "The numeric address of a host as this machine finds it, one that others can reach if it has one. "
      "Raises "
      "TransportError.");
  module.def(
      "address_towards", &transport::address_towards, "peer_address"_a,
      "The address of this machine from which packets to a numeric address leave. Raises TransportError.");
  module.def(
      "address_of_interface", &transport::address_of_interface, "name"_a, "peer_address"_a,
      "The address of a network interface, of the peer's family where there is a choice. Raises ValueError, "
      "listing the interfaces that there are.");
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
  module.def(
      "describe_mpi", &describe_mpi, "library"_a,
      "Version and thread level of MPI, which it initialises and finalises: for a process of its own.");
  module.def(
      "nccl_version", [](const std::string& library) { return transport::NcclLibrary(library).version(); },
      "library"_a,
      "Version of the NCCL there, which needs no GPU. Raises TransportError with the loader's reason.");
  module.def(
      "canonical_weights", [](const std::string& text) { return kvstore::WeightReplies(text).text(); },
      "text"_a,
      "How servers send weights, 'fp16' or 'delta:int8', with every parameter written out. Raises "
      "ValueError.");
  module.def(
      "check_faults",
      [](const std::string& text, std::optional<std::uint32_t> workers, std::uint32_t servers) {
        const transport::FaultSpec spec = transport::parse_faults(text);
        if (workers) transport::require_members(spec, *workers, servers);
      },
      "text"_a, "workers"_a.none(), "servers"_a,
      "Raises ValueError unless text says what a job is to be disturbed by (GRADWIRE_FAULTS), and nodes that "
      "it has; "
      "workers: None where others may come.");
}

}  // namespace gradwire::python
