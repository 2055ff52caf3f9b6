// gradwire._core: tables of rows. Ids and rows come as arrays and go back as such; the typed package knows
// shapes and dtypes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>

#include "compress/codecs.h"
#include "kvstore/rows/sparse_rows.h"
#include "python/src/bindings.h"
#include "python/src/py_engine.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using kvstore::PulledRows;
using kvstore::Rows;
using kvstore::TableId;
using kvstore::Ticket;

namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyIds = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
using NumpyFloats = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using NumpyRows = std::pair<NumpyIds, NumpyFloats>;

std::span<const std::int64_t> ids_of(const Ids& ids) { return {ids.data(), ids.size()}; }

NumpyRows to_numpy(Rows rows) {
  auto* kept = new Rows(std::move(rows));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Rows*>(p); });
  return {NumpyIds(reinterpret_cast<std::int64_t*>(kept->ids.data()), {kept->ids.size()}, owner),
          NumpyFloats(kept->values.data(), {kept->values.size()}, owner)};
}

std::vector<TableId> declare(PyEngine& self,
                             const std::vector<std::pair<std::string, std::vector<std::uint64_t>>>& tables) {
  std::vector<kvstore::KeySpec> specs;
  for (const auto& [name, shape] : tables) specs.push_back({name, shape});
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  return self.engine().sparse().declare(specs);
}

void init(PyEngine& self, const std::vector<std::tuple<TableId, Ids, ConstFloats>>& tables,
          std::uint32_t root) {
  std::vector<kvstore::FirstRows> given;
  for (const auto& [table, ids, rows] : tables) given.push_back({table, ids_of(ids), flat(rows)});
  const InterruptEnds interrupt;
  const nb::gil_scoped_release release;
  self.engine().sparse().init(given, root);
}

Ticket push(PyEngine& self, TableId table, const Ids& ids, const ConstFloats& rows, std::int32_t priority) {
  const nb::gil_scoped_release release;
  return self.engine().sparse().push(table, ids_of(ids), flat(rows), priority);
}

PulledRows push_pull(PyEngine& self, TableId table, const Ids& ids, const ConstFloats& rows,
                     std::int32_t priority, std::uint32_t program_step) {
  const nb::gil_scoped_release release;
  return self.engine().sparse().push_pull(table, ids_of(ids), flat(rows), priority, program_step);
}

PulledRows pull(PyEngine& self, TableId table, const Ids& ids, std::int32_t priority) {
  const nb::gil_scoped_release release;
  return self.engine().sparse().pull(table, ids_of(ids), priority);
}

NumpyRows rows_of(PyEngine& self, const PulledRows& pulled) {
  Rows rows;
  {
    const nb::gil_scoped_release release;
    rows = self.engine().sparse().rows_of(pulled);
  }
  return to_numpy(std::move(rows));
}

}  // namespace

void bind_sparse(nb::module_& module, nb::class_<PyEngine>& engine) {
  using Collective = nb::call_guard<InterruptEnds, nb::gil_scoped_release>;
  nb::class_<PulledRows>(module, "PulledRows", "Rows on their way.").def_ro("ticket", &PulledRows::done);
  engine
      .def_prop_ro(
          "has_rows", [](PyEngine& s) { return s.identity().has_sparse(); },
          "Whether there are tables of rows: not where a library sums.")
      .def("declare_rows", &declare, "tables"_a,
           "Agrees on new tables, (name, shape) each: the first dimension is rows. Collective.")
      .def("init_rows", &init, "tables"_a.noconvert(), "root"_a = 0,
           "Stores root's rows as the first values of tables, (table, ids, rows) each, whose other rows are "
           "zero; all in one exchange. Collective.")
      .def(
          "set_row_compression",
          [](PyEngine& s, const std::vector<TableId>& tables, const std::string& spec,
             const std::string& reply) {
            s.engine().compression().set_of_tables(tables, compress::parse_spec(spec), reply);
          },
          "tables"_a, "spec"_a, "reply"_a, Collective(),
          "Sets the codec of some tables apart from the others'. Collective.")
      .def("push_rows", &push, "table"_a, "ids"_a.noconvert(), "rows"_a.noconvert(), "priority"_a = 0,
           "Adds rows, in any order, to this round's sum; has taken them when it returns. room_for_rows() is "
           "to be waited for first.")
      .def(
          "room_for_rows", [](PyEngine& s, TableId table) { return s.engine().sparse().room(table); },
          "table"_a, "What a push to the table has to wait for; None: nothing.")
      .def("push_pull_rows", &push_pull, "table"_a, "ids"_a.noconvert(), "rows"_a.noconvert(),
           "priority"_a = 0, "program_step"_a = 0,
           "Likewise, and asks for all rows of the round; where pushes are applied at once, for those given.")
      .def("pull_rows", &pull, "table"_a, "ids"_a.noconvert(), "priority"_a = 0,
           "Asks for some rows as this worker's last round left them, or at once as they are now.")
      .def("rows_of", &rows_of, "pulled"_a,
           "Ids, int64 (n,) ascending, and rows, float32 (n * elements,), once pulled.ticket is done. Rows "
           "that are zero may be left out.")
      .def(
          "row_residual",
          [](PyEngine& s, TableId table) {
            return to_numpy(without_gil([&] { return s.engine().sparse().residual(table); }));
          },
          "table"_a, "A copy of what the table's codec has not sent yet, as rows_of() gives rows.")
      .def(
          "server_row_residual",
          [](PyEngine& s, TableId table) {
            return to_numpy(without_gil([&] { return s.engine().residuals().of_servers_rows(table); }));
          },
          "table"_a,
          "A copy of what servers have not sent yet of the table's replies; a row may be there more than "
          "once. "
          "Between rounds of all workers.")
      .def(
          "set_row_residual",
          [](PyEngine& s, TableId table, const Ids& ids, const ConstFloats& rows) {
            const nb::gil_scoped_release release;
            s.engine().sparse().set_residual(table, ids_of(ids), flat(rows));
          },
          "table"_a, "ids"_a.noconvert(), "rows"_a.noconvert(), "Replaces it.")
      .def(
          "keep_row_rollback", [](PyEngine& s, bool keep) { s.engine().sparse().keep_rollback(keep); },
          "keep"_a, "Keeps what roll_back_rows() needs.")
      .def(
          "roll_back_rows",
          [](PyEngine& s, const std::vector<TableId>& tables) {
            const nb::gil_scoped_release release;
            s.engine().sparse().roll_back(tables);
          },
          "tables"_a, "Puts residuals back to what they were before the tables' last rounds.");
}

}  // namespace gradwire::python
