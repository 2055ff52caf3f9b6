#include "kvstore/runtime/codec_pool.h"

#include "transport/thread_name.h"

namespace gradwire::kvstore {

CodecPool::CodecPool(unsigned threads) {
  threads_.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

CodecPool::~CodecPool() {
  // All are asked to stop before the first is joined, so that they end side by side.
  for (auto& thread : threads_) thread.request_stop();
}

void CodecPool::submit(std::int32_t priority, Task job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace(priority, std::move(job));
  }
  submitted_.notify_one();
}

void CodecPool::work(const std::stop_token& stop) {
  transport::name_this_thread("gw codec");
  for (;;) {
    std::unique_lock lock(mutex_);
    if (!submitted_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
    // wait() is true, too, where a stop was requested and jobs are left. Those are dropped.
    if (stop.stop_requested()) return;
    Task job = std::move(jobs_.extract(jobs_.begin()).mapped());
    lock.unlock();
    job();
  }
}

}  // namespace gradwire::kvstore
