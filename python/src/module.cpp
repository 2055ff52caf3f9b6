// The extension gradwire._core: one file per part, listed here.
#include <nanobind/nanobind.h>

#include "python/src/bindings.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(
      false);  // a traceback keeps what is open; twenty lines of it hid the error itself
  module.doc() = "gradwire's C++ core. Use the typed package around it.";
  gradwire::python::bind_errors(module);
  gradwire::python::bind_compress(module);
  gradwire::python::bind_device_codec(module);
  gradwire::python::bind_engine(module);
  gradwire::python::bind_connect(module);
  gradwire::python::bind_facts(module);
  gradwire::python::bind_simulation(module);
}
