// Waits of Python's calls, which Ctrl-C ends.
//
// Threading: each on the thread that waits, which holds the GIL when it begins.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>

namespace gradwire::python {

/// While one lives on the main thread, Ctrl-C ends the process at once: for waits there that cannot look at
/// Python's signals. On any other thread it does nothing, for Python acts on signals on its main thread,
/// which is free. Where Ctrl-C is ignored (nohup) it stays so.
class InterruptEnds {
 public:
  InterruptEnds() : is_main_(::gettid() == ::getpid()) {
    if (!is_main_) return;
    ::sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction ends {};
    ends.sa_handler = SIG_DFL;
    ::sigaction(SIGINT, &ends, nullptr);
  }
  /// With its flags: Python's handler is without SA_RESTART, so that calls of the user's own are interrupted.
  ~InterruptEnds() {
    if (is_main_) ::sigaction(SIGINT, &before_, nullptr);
  }
  InterruptEnds(const InterruptEnds&) = delete;
  InterruptEnds& operator=(const InterruptEnds&) = delete;

 private:
  const bool is_main_;
  struct sigaction before_ {};
};

inline constexpr auto kSignalCheck = std::chrono::milliseconds(100);

/// Seconds; a wait of as many ends only when what it waits for has come.
inline constexpr double kForEver = 1e9;

inline std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Calls poll(slice) without the GIL until it returns true or `seconds` passed; Ctrl-C is heard between
/// slices.
template <typename Poll>
bool wait_interruptibly(double seconds, const Poll& poll) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + from_seconds(std::min(seconds, kForEver));
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    {
      const nanobind::gil_scoped_release release;
      if (poll(std::clamp(left, milliseconds(0), kSignalCheck))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (left <= kSignalCheck) return false;
  }
}

}  // namespace gradwire::python
