// NcclLibrary is libnccl.so.2, opened when a job asks for it. Nothing here needs NCCL to be installed, and
// its version is known without a GPU.
//
// Threading: from any thread. Lifetime: the library is never unloaded.
#pragma once

#include <string>

namespace gradwire::transport {

class NcclLibrary {
 public:
  /// Loads it. path: of a file ("/.../nvidia/nccl/lib/libnccl.so.2"), or a name for the loader to find
  /// ("libnccl.so.2"). Throws TransportError with what the loader says.
  explicit NcclLibrary(const std::string& path);

  /// "2.32.3"
  const std::string& version() const { return version_; }

  /// A function of NCCL's. Throws TransportError when this NCCL does not have it.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(find(name));
  }

 private:
  void* find(const char* name) const;

  std::string path_;
  void* handle_;
  std::string version_;
};

/// Writes NCCL's number of a version, 23203, as people do: "2.32.3".
std::string nccl_version_text(int code);

}  // namespace gradwire::transport
