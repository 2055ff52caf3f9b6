// gradwire._core: the collectives. Arrays come as runs of bytes, results go back as such, without a copy; the
// typed package knows their dtypes and shapes.
#include "kvstore/collectives/collectives.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "python/src/bindings.h"
#include "python/src/py_engine.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using kvstore::Collectives;
using kvstore::DataType;
using kvstore::ReduceOp;

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;
using Gathered = std::pair<std::vector<std::uint64_t>, NumpyBytes>;

std::span<const std::byte> view(const ConstBytes& array) {
  return std::as_bytes(std::span(array.data(), array.size()));
}
std::span<std::byte> view(const Bytes& array) {
  return std::as_writable_bytes(std::span(array.data(), array.size()));
}

/// Runs a collective without the GIL. What failed may still be read by a server of this process: its arrays
/// are kept until close().
template <typename Call>
auto collective(PyEngine& engine, const nb::object& arrays, const Call& call) {
  try {
    const InterruptEnds interrupt;
    const nb::gil_scoped_release release;
    return call(engine.engine().collectives());
  } catch (const std::invalid_argument&) {
    throw;
  } catch (...) {
    engine.keep_until_close(arrays);
    throw;
  }
}

Gathered to_numpy(kvstore::Blocks blocks) {
  auto* kept = new transport::Buffer(std::move(blocks.bytes));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<transport::Buffer*>(p); });
  auto* data = reinterpret_cast<std::uint8_t*>(kept->bytes().data());
  return {std::move(blocks.elements), NumpyBytes(data, {kept->size_bytes()}, owner)};
}

void broadcast(PyEngine& self, const Bytes& values, const std::string& dtype, std::uint32_t root,
               const std::string& agreed) {
  const DataType type = kvstore::parse_data_type(dtype);
  collective(self, nb::cast(values),
             [&](Collectives& all) { all.broadcast(view(values), type, root, agreed); });
}

void all_reduce(PyEngine& self, const ConstBytes& in, const Bytes& out, const std::string& dtype,
                const std::string& op, const std::string& agreed) {
  const DataType type = kvstore::parse_data_type(dtype);
  const ReduceOp how = kvstore::parse_reduce_op(op);
  collective(self, nb::make_tuple(in, out),
             [&](Collectives& all) { all.all_reduce(view(in), view(out), type, how, agreed); });
}

void reduce_scatter(PyEngine& self, const ConstBytes& in, const Bytes& out, const std::string& dtype,
                    const std::string& op, std::uint64_t row_elements, const std::string& agreed) {
  const DataType type = kvstore::parse_data_type(dtype);
  const ReduceOp how = kvstore::parse_reduce_op(op);
  collective(self, nb::make_tuple(in, out), [&](Collectives& all) {
    all.reduce_scatter(view(in), view(out), type, how, row_elements, agreed);
  });
}

Gathered all_gather(PyEngine& self, const ConstBytes& block, const std::string& dtype,
                    const std::string& agreed) {
  const DataType type = kvstore::parse_data_type(dtype);
  return to_numpy(collective(self, nb::cast(block),
                             [&](Collectives& all) { return all.all_gather(view(block), type, agreed); }));
}

Gathered all_to_all(PyEngine& self, const std::vector<ConstBytes>& blocks, const std::string& dtype,
                    const std::string& agreed) {
  const DataType type = kvstore::parse_data_type(dtype);
  std::vector<std::span<const std::byte>> views;
  for (const auto& block : blocks) views.push_back(view(block));
  return to_numpy(collective(self, nb::cast(blocks),
                             [&](Collectives& all) { return all.all_to_all(views, type, agreed); }));
}

}  // namespace

void bind_collectives(nb::class_<PyEngine>& engine) {
  engine
      .def("collective_broadcast", &broadcast, "values"_a.noconvert(), "dtype"_a, "root"_a, "agreed"_a,
           "Writes root's bytes to everybody's. Collective.")
      .def("collective_all_reduce", &all_reduce, "values"_a.noconvert(), "out"_a.noconvert(), "dtype"_a,
           "op"_a, "agreed"_a, "Combines all workers' arrays elementwise. Collective.")
      .def("collective_reduce_scatter", &reduce_scatter, "values"_a.noconvert(), "out"_a.noconvert(),
           "dtype"_a, "op"_a, "row_elements"_a, "agreed"_a,
           "As collective_all_reduce, for this worker's near-equal share of the rows. Collective.")
      .def("collective_all_gather", &all_gather, "block"_a.noconvert(), "dtype"_a, "agreed"_a,
           "Elements of every worker's block, and the blocks one after the other. Collective.")
      .def("collective_all_to_all", &all_to_all, "blocks"_a.noconvert(), "dtype"_a, "agreed"_a,
           "Elements of what each worker had for this one, one after the other. Collective.");
}

}  // namespace gradwire::python
