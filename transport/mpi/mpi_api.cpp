// libgradwire_mpi.so: MpiApi over the MPI library that it was built with.
#include "transport/mpi/mpi_api.h"

#include <mpi.h>

#include <array>
#include <climits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/half_sums.h"
#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(std::string(call) + ": " + text.data());
}

void check(int code, const char* call, std::uint32_t rank) {
  if (code != MPI_SUCCESS) check(code, (std::string(call) + " for rank " + std::to_string(rank)).c_str());
}

int checked_count(std::size_t count, const char* call) {
  // MPI counts in int, and a larger count would become negative. The layers above cut arrays long before
  // this.
  if (count > INT_MAX) {
    throw std::invalid_argument(std::string(call) + ": " + std::to_string(count) +
                                " elements at once; expected at most " + std::to_string(INT_MAX));
  }
  return static_cast<int>(count);
}

std::string name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "thread level " + std::to_string(level);
  }
}

// MPI_User_function: what it is given is never const.
void sum_float16(void* from, void* to, int* count, MPI_Datatype*) {
  add_float16(static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to),
              static_cast<std::size_t>(*count));
}
void sum_bfloat16(void* from, void* to, int* count, MPI_Datatype*) {
  add_bfloat16(static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to),
               static_cast<std::size_t>(*count));
}

// Open MPI 4.1 adds bytes and shorts with saturation where the processor has AVX, and without where it has
// not.
template <typename T>
void sum_wrapping(void* from, void* to, int* count, MPI_Datatype*) {
  const T* __restrict left = static_cast<const T*>(from);
  T* __restrict right = static_cast<T*>(to);
  for (int i = 0; i < *count; ++i) right[i] = static_cast<T>(left[i] + right[i]);
}

class SumOperation {
 public:
  explicit SumOperation(MPI_User_function* function) {
    // Lets MPI choose among all its algorithms. Of 16-bit floats the order of a sum is then MPI's, as with
    // MPI_SUM.
    constexpr int kCommutes = 1;
    check(MPI_Op_create(function, kCommutes, &operation_), "MPI_Op_create");
  }
  ~SumOperation() { MPI_Op_free(&operation_); }
  SumOperation(const SumOperation&) = delete;
  SumOperation& operator=(const SumOperation&) = delete;
  MPI_Op get() const { return operation_; }

 private:
  MPI_Op operation_ = MPI_OP_NULL;
};

struct SumOperations {
  SumOperation float16{sum_float16};
  SumOperation bfloat16{sum_bfloat16};
  SumOperation int8{sum_wrapping<std::uint8_t>};
  SumOperation int16{sum_wrapping<std::uint16_t>};
};

struct Reduction {
  MPI_Datatype type;
  MPI_Op operation;
};

// What ports of one process share: MPI is initialised once, and finalised once.
struct Process {
  std::mutex mutex;
  int ports = 0;  // that use MPI
  bool initialised_here = false;
  bool has_failed = false;
  bool has_lost_operations = false;
};
Process& process() {
  static auto& process = *new Process();  // never destroyed: a thread may still be in MPI at exit
  return process;
}

class LibraryPort final : public MpiApi {
 public:
  std::string version() const override;
  std::string initialise() override;
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }
  void join(Done done) override;

  void send(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) override;
  void send_confirmed(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) override;
  void receive(std::uint32_t rank, Tag tag, std::span<std::byte> bytes, Done done) override;
  std::optional<Probed> probe() override;
  void receive_probed(std::span<std::byte> bytes, Done done) override;

  void all_reduce(std::span<std::byte> values, ElementType type, Done done) override;
  void all_gather(std::span<const std::byte> block, std::byte* all, std::size_t stride_bytes,
                  Done done) override;
  void barrier(Done done) override;

  std::size_t poll() override;
  std::size_t under_way() const override { return requests_.size() + ended_.size(); }
  void finish() override;
  void abandon() noexcept override;

 private:
  struct Operation {
    Done done;
    bool is_send = false;
  };

  static int initialise_process();
  Reduction reduction_of(ElementType type) const;
  void add(MPI_Request request, Done done) { add_operation(request, {std::move(done)}); }
  void add_operation(MPI_Request request, Operation operation);
  void take_completed(std::size_t count);

  std::uint32_t rank_ = 0;
  std::uint32_t size_ = 1;
  MPI_Comm messages_ = MPI_COMM_NULL;  // two, so that our tags and our collectives meet nobody else's
  MPI_Comm sums_ = MPI_COMM_NULL;
  std::unique_ptr<SumOperations> sum_operations_;
  MPI_Message probed_ = MPI_MESSAGE_NULL;

  std::vector<MPI_Request> requests_;  // the operations of the same index
  std::vector<Operation> operations_;
  std::vector<Done> ended_;     // to be called by poll()
  std::vector<int> completed_;  // poll()'s, kept for their memory
  std::vector<MPI_Status> statuses_;
};

std::string LibraryPort::version() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  return text.data();
}

// One thread calls us. Where MPI is ours alone, that is enough for it; else the process has threads that call
// it too.
void require_level(int provided, bool initialised_here) {
  // FUNNELED is enough: MPI was initialised on the I/O thread, which is MPI's main thread then.
  if (initialised_here && provided < MPI_THREAD_FUNNELED) {
    throw TransportError("mpi: MPI gives " + name_of_level(provided) +
                         ", and gradwire calls it from a thread of its own: MPI_THREAD_FUNNELED or better is "
                         "needed; use an MPI that was built with threads");
  }
  if (!initialised_here && provided < MPI_THREAD_MULTIPLE) {
    throw TransportError("mpi: this process initialised MPI with " + name_of_level(provided) +
                         ", and gradwire calls it from a thread of its own: initialise it with "
                         "MPI_THREAD_MULTIPLE (mpi4py does unless mpi4py.rc.thread_level says otherwise), or "
                         "create the store before anything initialises MPI");
  }
}

// MPI_THREAD_MULTIPLE lets what else the process has (mpi4py, say) call MPI beside us.
int LibraryPort::initialise_process() {
  const std::lock_guard lock(process().mutex);
  int initialised = 0, finalised = 0, provided = 0;
  // MPI allows this question at any time, also before MPI_Init and after MPI_Finalize.
  check(MPI_Finalized(&finalised), "MPI_Finalized");
  if (finalised != 0) {
    throw TransportError(
        "mpi: MPI was finalised in this process and cannot be started again; use one store over MPI per "
        "process");
  }
  // Any further MPI call could go on with them, in memory that is its owner's again (abandon).
  if (process().has_lost_operations) {
    throw TransportError(
        "mpi: a job over MPI failed in this process while messages were under way; start a new process");
  }
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  if (initialised == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    process().initialised_here = true;
    // By default an error of MPI ends the process. Only where MPI is ours: other users may rely on that.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  } else {
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  // A second port in one process has an I/O thread of its own, so MPI is no longer called by one thread.
  require_level(provided, process().initialised_here && process().ports == 0);
  ++process().ports;
  return provided;
}

std::string LibraryPort::initialise() {
  const int provided = initialise_process();
  int rank = 0, size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  rank_ = static_cast<std::uint32_t>(rank);
  size_ = static_cast<std::uint32_t>(size);
  return name_of_level(provided);
}

void LibraryPort::join(Done done) {
  sum_operations_ = std::make_unique<SumOperations>();
  const auto duplicate = [this](MPI_Comm& to, Done then) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(MPI_COMM_WORLD, &to, &request), "MPI_Comm_idup");
    add(request, std::move(then));
  };
  const auto return_errors = [](MPI_Comm communicator) {
    check(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  };
  // MPI_Comm_idup does not block, so a rank that never comes is found by the deadline of the rendezvous.
  duplicate(messages_, [=, this, done = std::move(done)] {
    return_errors(messages_);
    duplicate(sums_, [=, this] {
      return_errors(sums_);
      done();
    });
  });
}

void LibraryPort::send(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(bytes.data(), checked_count(bytes.size(), "MPI_Isend"), MPI_BYTE, static_cast<int>(rank),
                  static_cast<int>(tag), messages_, &request),
        "MPI_Isend", rank);
  add_operation(request, {std::move(done), true});
}

void LibraryPort::send_confirmed(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Issend(bytes.data(), checked_count(bytes.size(), "MPI_Issend"), MPI_BYTE, static_cast<int>(rank),
                   static_cast<int>(tag), messages_, &request),
        "MPI_Issend", rank);
  add_operation(request, {std::move(done), true});
}

void LibraryPort::receive(std::uint32_t rank, Tag tag, std::span<std::byte> bytes, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(bytes.data(), checked_count(bytes.size(), "MPI_Irecv"), MPI_BYTE, static_cast<int>(rank),
                  static_cast<int>(tag), messages_, &request),
        "MPI_Irecv", rank);
  add(request, std::move(done));
}

std::optional<MpiApi::Probed> LibraryPort::probe() {
  int found = 0, count = 0;
  MPI_Status status;
  // Matched probing: MPI_Imrecv below receives the very message whose length was read here.
  check(MPI_Improbe(MPI_ANY_SOURCE, static_cast<int>(Tag::kHead), messages_, &found, &probed_, &status),
        "MPI_Improbe");
  if (found == 0) return std::nullopt;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  return Probed{static_cast<std::uint32_t>(status.MPI_SOURCE), static_cast<std::size_t>(count)};
}

void LibraryPort::receive_probed(std::span<std::byte> bytes, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Imrecv(bytes.data(), checked_count(bytes.size(), "MPI_Imrecv"), MPI_BYTE, &probed_, &request),
        "MPI_Imrecv");
  add(request, std::move(done));
}

Reduction LibraryPort::reduction_of(ElementType type) const {
  switch (type) {
    case ElementType::kFloat64:
      return {MPI_DOUBLE, MPI_SUM};
    case ElementType::kFloat32:
      return {MPI_FLOAT, MPI_SUM};
    case ElementType::kFloat16:
      // MPI 3 has no 16-bit floats. The operation knows what the words mean, for MPI they are only 16 bits
      // wide.
      return {MPI_UINT16_T, sum_operations_->float16.get()};
    case ElementType::kBfloat16:
      return {MPI_UINT16_T, sum_operations_->bfloat16.get()};
    case ElementType::kInt8:
      return {MPI_UINT8_T, sum_operations_->int8.get()};
    case ElementType::kInt16:
      return {MPI_UINT16_T, sum_operations_->int16.get()};
    case ElementType::kInt32:
      return {MPI_INT32_T, MPI_SUM};
  }
  throw std::invalid_argument("mpi: element type " + std::to_string(static_cast<int>(type)) +
                              " is none of ElementType's");
}

void LibraryPort::all_reduce(std::span<std::byte> values, ElementType type, Done done) {
  const auto [mpi_type, operation] = reduction_of(type);
  const int count = checked_count(values.size() / bytes_of(type), "MPI_Iallreduce");
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(MPI_IN_PLACE, values.data(), count, mpi_type, operation, sums_, &request),
        "MPI_Iallreduce");
  add(request, std::move(done));
}

void LibraryPort::all_gather(std::span<const std::byte> block, std::byte* all, std::size_t stride_bytes,
                             Done done) {
  const int count = checked_count(block.size(), "MPI_Iallgather");
  MPI_Datatype bytes = MPI_DATATYPE_NULL, strided = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(count, MPI_BYTE, &bytes), "MPI_Type_contiguous");
  const int code =
      MPI_Type_create_resized(bytes, 0, static_cast<MPI_Aint>(stride_bytes), &strided);  // where blocks begin
  MPI_Type_free(&bytes);
  check(code, "MPI_Type_create_resized");
  check(MPI_Type_commit(&strided), "MPI_Type_commit");
  MPI_Request request = MPI_REQUEST_NULL;
  // One element of the strided type per rank: a piece of a long block lands where it belongs without a copy.
  const int started = MPI_Iallgather(block.data(), count, MPI_BYTE, all, 1, strided, sums_, &request);
  MPI_Type_free(&strided);  // MPI keeps it until the operation has ended
  check(started, "MPI_Iallgather");
  add(request, std::move(done));
}

void LibraryPort::barrier(Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(sums_, &request), "MPI_Ibarrier");
  add(request, std::move(done));
}

// Open MPI gives a small send that is done at once a request that MPI_Testsome takes for inactive: ask once
// before.
void LibraryPort::add_operation(MPI_Request request, Operation operation) {
  int ended = 0;
  check(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  if (ended != 0) {
    // Not called here: the caller may not be ready for it before it has returned to poll().
    ended_.push_back(std::move(operation.done));
    return;
  }
  requests_.push_back(request);
  operations_.push_back(std::move(operation));
}

std::size_t LibraryPort::poll() {
  int count = 0;
  if (!requests_.empty()) {
    completed_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  completed_.data(), statuses_.data());
    // The statuses say which operation failed and why; the code alone says that one has.
    if (code == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < count; ++i) check(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "MPI_Testsome");
    }
    check(code, "MPI_Testsome");
  }
  if (count > 0) take_completed(static_cast<std::size_t>(count));  // MPI_UNDEFINED is negative
  const std::vector<Done> ended = std::exchange(ended_, {});       // a Done may add operations
  for (const Done& done : ended) {
    if (done) done();
  }
  return ended.size();
}

void LibraryPort::take_completed(std::size_t count) {
  // By index before anything moves: MPI_Testsome has numbered them by the list as it was.
  for (std::size_t i = 0; i < count; ++i)
    ended_.push_back(std::move(operations_[static_cast<std::size_t>(completed_[i])].done));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;  // MPI's sign of one that has ended
    requests_[kept] = requests_[i];
    if (kept != i) operations_[kept] = std::move(operations_[i]);
    ++kept;
  }
  requests_.resize(kept);
  operations_.resize(kept);
}

void LibraryPort::finish() {
  for (MPI_Comm* communicator : {&messages_, &sums_}) {
    if (*communicator != MPI_COMM_NULL) check(MPI_Comm_free(communicator), "MPI_Comm_free");
  }
  // Before MPI_Finalize, after which MPI_Op_free is not allowed.
  sum_operations_.reset();
  const std::lock_guard lock(process().mutex);
  const bool is_last = --process().ports == 0;
  // After a failure it could wait for ever for a rank that is dead. Where somebody else initialised MPI, that
  // one finalises it.
  if (is_last && process().initialised_here && !process().has_failed) check(MPI_Finalize(), "MPI_Finalize");
}

void LibraryPort::abandon() noexcept {
  {
    const std::lock_guard lock(process().mutex);
    --process().ports;
    process().has_failed = true;
    process().has_lost_operations |= !requests_.empty();
  }
  // Never destroyed, and not a member: a network card may still write into what was to be received, and MPI
  // into what was to be gathered, if another user of this process calls it. What was to be sent goes back to
  // its owner.
  static auto& kept = *new std::vector<Operation>();
  for (Operation& operation : operations_) {
    if (!operation.is_send) kept.push_back(std::move(operation));
  }
  operations_.clear();
  requests_.clear();
  ended_.clear();
  static_cast<void>(sum_operations_.release());  // MPI is not called any more
}

}  // namespace
}  // namespace gradwire::transport

extern "C" __attribute__((visibility("default"))) gradwire::transport::MpiApi* gradwire_make_mpi_port_1() {
  return new gradwire::transport::LibraryPort();
}
