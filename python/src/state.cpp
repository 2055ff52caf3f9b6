// gradwire._core: what an Engine keeps from round to round: residuals, checkpoints, optimizers' states.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kvstore/checkpoint/optimizer_file.h"
#include "python/src/bindings.h"
#include "python/src/py_engine.h"

namespace gradwire::python {

namespace nb = nanobind;
using namespace nb::literals;
using kvstore::KeyId;

namespace {

nb::ndarray<nb::numpy, float, nb::ndim<1>> as_array(std::vector<float> values) {
  auto kept = std::make_unique<std::vector<float>>(std::move(values));
  float* data = kept->data();
  const std::size_t shape[] = {kept->size()};
  const nb::capsule owner(kept.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return {data, 1, shape, owner};
}

}  // namespace

void bind_state(nb::class_<PyEngine>& engine) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  using Collective = nb::call_guard<InterruptEnds, nb::gil_scoped_release>;
  engine
      .def(
          "residual",
          [](PyEngine& s, KeyId key) {
            return as_array(without_gil([&] { return s.engine().residuals().of(key); }));
          },
          "key"_a,
          "A copy of what the key's codec has not sent yet, float32 (elements,); (0,) where there is none.")
      .def(
          "set_residual",
          [](PyEngine& s, KeyId key, const ConstFloats& values) {
            const nb::gil_scoped_release release;
            s.engine().residuals().set(key, flat(values));
          },
          "key"_a, "values"_a.noconvert(),
          "Replaces it. Raises ValueError where a value is not finite, but with nonfinite=mxnet.")
      .def(
          "add_to_residual",
          [](PyEngine& s, KeyId key, const ConstFloats& values) {
            const nb::gil_scoped_release release;
            s.engine().residuals().add(key, flat(values));
          },
          "key"_a, "values"_a.noconvert(),
          "Adds to it what a round brought and no rank used; all ranks call it with the same values.")
      .def(
          "keep_rollback", [](PyEngine& s, bool keep) { s.engine().residuals().keep_rollback(keep); },
          "keep"_a, "Keeps, from the next round on, what roll_back() needs: a second copy of every residual.")
      .def(
          "server_residual",
          [](PyEngine& s, KeyId key) {
            return as_array(without_gil([&] { return s.engine().residuals().of_servers(key); }));
          },
          "key"_a,
          "A copy of what servers have not sent yet of the key's replies, float32 (elements,); (0,) where "
          "there is "
          "none. Between rounds of all workers.")
      .def(
          "draw_residuals", [](PyEngine& s) { s.engine().residuals().draw(); }, Collective(),
          "Takes what servers have not sent yet of their replies into the workers' residuals, which send it "
          "next. "
          "Collective, between steps; before the servers end.")
      .def(
          "roll_back",
          [](PyEngine& s, const std::vector<KeyId>& keys) { s.engine().residuals().roll_back(keys); },
          "keys"_a, Release(), "Puts the residuals of keys back to what they were before their last round.")
      .def(
          "discard_residuals",
          [](PyEngine& s, const std::vector<KeyId>& keys) { s.engine().residuals().discard(keys); }, "keys"_a,
          Release(),
          "Discards the residuals of keys that will not be pushed again, on all ranks. No-op after close().")
      .def(
          "save_checkpoint",
          [](PyEngine& s, const std::string& folder, const nb::bytes& front_end) {
            const std::string_view given(front_end.c_str(), front_end.size());
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            s.engine().checkpoints().save(folder, given);
          },
          "folder"_a, "front_end"_a, "Writes all that is kept from round to round. Collective.")
      .def(
          "load_checkpoint",
          [](PyEngine& s, const std::string& folder) {
            kvstore::Restored restored;
            {
              const InterruptEnds interrupt;
              const nb::gil_scoped_release release;
              restored = s.engine().checkpoints().load(folder);
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
            s.engine().optimizer_states().save(path, dump);
          },
          "path"_a, "with_parameters"_a,
          "Writes what the servers' optimizer remembers of each weight. Of one rank alone.")
      .def(
          "load_optimizer_states",
          [](PyEngine& s, const std::string& path) {
            const InterruptEnds interrupt;
            const nb::gil_scoped_release release;
            return s.engine().optimizer_states().load(path);
          },
          "path"_a,
          "Puts it back. Returns the optimizer that it brought, empty where it is the one before. "
          "Collective.");
}

}  // namespace gradwire::python
