#include "transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "the loader gives no reason" : text;
}

}  // namespace

std::string nccl_version_text(int code) {
  // Up to 2.8 a version had four digits.
  const int major = code < 10'000 ? code / 1'000 : code / 10'000;
  const int minor = code < 10'000 ? code / 100 % 10 : code / 100 % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

// Its names stay local: a framework in the same process may have loaded an NCCL of its own.
NcclLibrary::NcclLibrary(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw TransportError(
        "nccl: '" + path_ + "' cannot be loaded: " + loader_error() +
        "; install NCCL (pip install nvidia-nccl-cu13) or use a store that needs none, such as "
        "'allreduce'");
  }
  int code = 0;
  // The one function whose absence means that the library is another one: version_ is empty until it is
  // known.
  if (const int result = function<int(int*)>("ncclGetVersion")(&code); result != 0)
    throw TransportError("nccl: '" + path_ + "': ncclGetVersion gives error " + std::to_string(result));
  version_ = nccl_version_text(code);
}

void* NcclLibrary::find(const char* name) const {
  void* const function = dlsym(handle_, name);
  if (function != nullptr) return function;
  throw TransportError(
      "nccl: '" + path_ + "' has no " + name +
      (version_.empty() ? ", so it is not NCCL" : ": NCCL " + version_ + " is too old, 2.14 has it"));
}

}  // namespace gradwire::transport
