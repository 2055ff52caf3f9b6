#include "transport/mpi/mpi_library.h"

#include <dlfcn.h>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "the loader gives no reason" : text;
}

}  // namespace

// Its names stay local. Open MPI makes its own global when it is initialised, as its plug-ins need.
std::unique_ptr<MpiApi> load_mpi(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw TransportError("mpi: '" + path + "' cannot be loaded: " + loader_error() +
                         "; install Open MPI (Debian: libopenmpi-dev, openmpi-bin) and build gradwire again");
  }
  // The name ends in MpiApi's number: a library of another version has no such name, and no wrong vtable is
  // called.
  const auto make = reinterpret_cast<MakeMpiPort>(dlsym(library, kMakeMpiPort));
  if (make == nullptr) {
    throw TransportError("mpi: '" + path + "' is of another version of gradwire: " + loader_error() +
                         "; build it together with this one");
  }
  // The library stays loaded, with what it knows of this process: whether MPI was initialised or abandoned.
  return std::unique_ptr<MpiApi>(make());
}

}  // namespace gradwire::transport
