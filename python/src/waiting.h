// Waits of Python's calls, which Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>

namespace gradwire::python {

/// While it lives, Ctrl-C ends the process at once: for waits that cannot look at Python's signals.
class InterruptEnds {
 public:
  InterruptEnds() : before_(std::signal(SIGINT, SIG_DFL)) {}
  ~InterruptEnds() { std::signal(SIGINT, before_); }
  InterruptEnds(const InterruptEnds&) = delete;
  InterruptEnds& operator=(const InterruptEnds&) = delete;

 private:
  void (*before_)(int);
};

inline constexpr auto kSignalCheck = std::chrono::milliseconds(100);

inline std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Calls poll(slice) without the GIL until it returns true or `seconds` passed; Ctrl-C is heard between
/// slices.
template <typename Poll>
bool wait_interruptibly(double seconds, const Poll& poll) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + from_seconds(std::min(seconds, 1e9));
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
