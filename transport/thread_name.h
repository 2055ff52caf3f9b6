// Names threads as top, perf and debuggers show them: "gw engine".
#pragma once

#include <pthread.h>

namespace gradwire::transport {

/// Names the calling thread, in at most 15 characters: Linux refuses more.
inline void name_this_thread(const char* name) noexcept { pthread_setname_np(pthread_self(), name); }

}  // namespace gradwire::transport
