// Callers tracks the threads that drive an Engine, and what each of them waits for from other workers. Only
// when all of them wait is it certain that this worker does nothing before what it waits for has come.
//
// A thread is a caller from its first call, or wait, to its end. Waits with a timeout are not reported.
// Waits without one are within an Endless.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace gradwire::kvstore {

class Callers : public std::enable_shared_from_this<Callers> {
 public:
  /// What a thread waits for.
  struct Wait {
    enum class For : std::uint8_t {
      kExchange,   ///< all workers, in the exchange `what`, the job's `number`-th
      kKey,        ///< the round of key `number` that is under way
      kTurn,       ///< likewise, while a push of the key is held behind it (client/tensor.h); else nobody
      kTable,      ///< round `step` of table `number`
      kOwnRounds,  ///< all rounds that this worker has begun
    };
    For what_for = For::kExchange;
    std::string what;  ///< to people: an exchange's name, or the call
    std::uint64_t number = 0, step = 0;
  };
  /// All callers wait.
  struct Standstill {
    std::uint64_t calls = 0;  ///< that were made so far: while they are as many, it is the same one
    std::vector<Wait> waits;
  };

  /// Notes a call of this thread.
  void note_call();
  /// Notes that something was begun by a thread that need not be a caller, such as autograd's.
  void note_mark() { ++calls_; }

  /// While one lives, this thread waits until what it waits for has come, however often it looks.
  class Endless {
   public:
    explicit Endless(Callers& callers) : callers_(callers) { callers_.change_endless(1); }
    ~Endless() { callers_.change_endless(-1); }
    Endless(const Endless&) = delete;
    Endless& operator=(const Endless&) = delete;

   private:
    Callers& callers_;
  };
  /// While one lives, this thread waits for that.
  class Waiting {
   public:
    Waiting(Callers& callers, Wait wait) : endless_(callers), callers_(callers) {
      callers_.begin_wait(std::move(wait));
    }
    ~Waiting() { callers_.end_wait(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Endless endless_;
    Callers& callers_;
  };

  /// As Waiting, for callers whose wait an object cannot span: begin counts within an Endless only.
  void begin_wait(Wait wait);
  void end_wait();
  void change_endless(int by);

  std::optional<Standstill> standstill() const;
  std::uint64_t calls() const { return calls_; }

 private:
  struct Thread {
    int endless = 0;
    std::optional<Wait> wait;
  };
  Thread& here();  // with mutex_ held
  void forget(std::thread::id thread);

  mutable std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
  std::atomic<std::uint64_t> calls_{0};
  friend class CallersOfThread;
};

}  // namespace gradwire::kvstore
