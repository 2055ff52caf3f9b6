#include "transport/zmq/job_end.h"

#include <utility>

namespace gradwire::transport {

bool JobEnd::wait_for(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [this] { return is_over_; })) return false;
  if (error_) std::rethrow_exception(error_);
  return true;
}

void JobEnd::set(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_over_, true)) return;
  error_ = std::move(error);
  changed_.notify_all();
}

void JobEnd::ask_to_fail(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!asked_.failure) asked_.failure = text;
  }
  wakeup_.ring();
}

void JobEnd::ask_to_stop() {
  {
    const std::lock_guard lock(mutex_);
    asked_.stop = true;
  }
  wakeup_.ring();
}

JobEnd::Asked JobEnd::take_asked() {
  const std::lock_guard lock(mutex_);
  return {std::exchange(asked_.failure, std::nullopt), asked_.stop};
}

}  // namespace gradwire::transport
