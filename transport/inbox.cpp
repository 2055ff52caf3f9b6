#include "transport/inbox.h"

#include <exception>

namespace gradwire::transport {

void Inbox::post(Event event) {
  {
    const std::lock_guard lock(mutex_);
    // A failure is the last event, so a Sink gets nothing that came after its cause. What came before is
    // still handed over.
    if (failed()) return;
    events_.push_back(std::move(event));
  }
  changed_.notify_all();
}

void Inbox::post_frames(Node from, std::vector<Frame> frames) { post(Arrival{from, std::move(frames)}); }

void Inbox::post_goodbye(Node peer, const std::string& error) { post(Goodbye{peer, error}); }

void Inbox::post_departure(Node server, Node mirror) { post(Departure{server, mirror}); }

void Inbox::post_question(std::set<std::string> rounds) { post(Question{std::move(rounds)}); }

bool Inbox::post_failure(const std::string& text, Scope scope) {
  {
    const std::lock_guard lock(mutex_);
    // The first cause is final. A caller that gets false does not report another one.
    if (failed()) return false;
    events_.push_back(Failure{text, scope});
    failure_ = text;
    scope_ = scope;
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  return true;
}

void Inbox::attach(Sink& sink) {
  {
    const std::lock_guard lock(mutex_);
    sink_ = &sink;
  }
  changed_.notify_all();
}

void Inbox::detach() {
  std::unique_lock lock(mutex_);
  sink_ = nullptr;
  // The Sink itself detaches: it would wait for its own call to end.
  if (calling_ && caller_ == std::this_thread::get_id()) return;
  changed_.wait(lock, [this] { return !calling_; });
}

void Inbox::deliver() {
  std::unique_lock lock(mutex_);
  caller_ = std::this_thread::get_id();
  while (sink_ != nullptr && !events_.empty()) {
    Sink& sink = *sink_;
    // Taken off before the call: a Sink that throws does not get the event again.
    Event event = std::move(events_.front());
    events_.pop_front();
    calling_ = true;
    // A Sink may post, fail or detach.
    lock.unlock();
    std::exception_ptr thrown;
    try {
      call(sink, event);
    } catch (...) {  // the caller judges it; detach() must not wait for ever
      thrown = std::current_exception();
    }
    lock.lock();
    // Before anything is rethrown, so that detach() ends also when the Sink has thrown.
    calling_ = false;
    changed_.notify_all();
    if (thrown) std::rethrow_exception(thrown);
  }
}

void Inbox::call(Sink& sink, Event& event) {
  if (auto* arrival = std::get_if<Arrival>(&event)) {
    sink.on_frames(arrival->from, std::move(arrival->frames));
  } else if (const auto* goodbye = std::get_if<Goodbye>(&event)) {
    sink.on_goodbye(goodbye->peer, goodbye->error);
  } else if (const auto* departure = std::get_if<Departure>(&event)) {
    sink.on_departure(departure->server, departure->mirror);
  } else if (const auto* question = std::get_if<Question>(&event)) {
    sink.on_question(question->rounds);
  } else if (const auto& failure = std::get<Failure>(event); failure.scope == Scope::kGeneration) {
    sink.on_membership_changed(failure.text);
  } else if (failure.scope == Scope::kCalls) {
    sink.on_call_mismatch(failure.text);
  } else {
    sink.on_failure(failure.text);
  }
}

bool Inbox::wait() {
  std::unique_lock lock(mutex_);
  // Events without a Sink are no reason to wake up: they wait for attach().
  changed_.wait(lock, [this] { return closed_ || (sink_ != nullptr && !events_.empty()); });
  return !closed_;
}

void Inbox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::string Inbox::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Inbox::rethrow() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  // An exception of a type that says what to do: join again, mend the program, or end.
  if (scope_ == Scope::kGeneration) throw MembershipChanged(failure_);
  if (scope_ == Scope::kCalls) throw CallMismatch(failure_);
  throw TransportError(failure_);
}

}  // namespace gradwire::transport
