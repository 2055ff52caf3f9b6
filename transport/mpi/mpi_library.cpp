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
  const auto make = reinterpret_cast<MakeMpiPort>(dlsym(library, kMakeMpiPort));
  if (make == nullptr) {
    throw TransportError("mpi: '" + path + "' is of another version of gradwire: " + loader_error() +
                         "; build it together with this one");
  }
  return std::unique_ptr<MpiApi>(make());
}

}  // namespace gradwire::transport
