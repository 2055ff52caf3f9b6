// Names threads as top, perf and debuggers show them: "gradwire engine".
#pragma once

#include <pthread.h>

namespace gradwire::transport {

/// Names the calling thread. Linux keeps 15 characters of it.
inline void name_this_thread(const char* name) noexcept { pthread_setname_np(pthread_self(), name); }

}  // namespace gradwire::transport
