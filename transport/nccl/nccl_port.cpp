// NCCL behind NcclPort: the one file that includes its header, whose functions are looked up when a job
// begins.
#include "transport/nccl/nccl_port.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

#include "transport/messenger.h"
#include "transport/nccl/nccl_library.h"

namespace gradwire::transport {
namespace {

// Ranks exchange the id as bytes of this length (PROTOCOL.md, chapter 13).
static_assert(sizeof(ncclUniqueId) == sizeof(NcclPort::Id));

void expect(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would be blamed for it
  throw TransportError(std::string(call) + ": " + cudaGetErrorString(status) + " (" +
                       cudaGetErrorName(status) + ")");
}

ncclDataType_t nccl_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return ncclFloat64;
    case ElementType::kFloat32:
      return ncclFloat32;
    case ElementType::kFloat16:
      return ncclFloat16;
    case ElementType::kBfloat16:
      return ncclBfloat16;
    case ElementType::kInt8:
      return ncclInt8;
    case ElementType::kInt32:
      return ncclInt32;
    // NcclSums widens these before they come here.
    case ElementType::kInt16:
      break;
  }
  throw TransportError("ncclAllReduce: NCCL has no 16-bit integers");
}

/// NCCL's functions, each under its own name. All are in 2.14, the first with communicators that do not
/// block.
struct NcclCalls {
  explicit NcclCalls(const NcclLibrary& library)
      : get_unique_id(library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId")),
        comm_init_rank(library.function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig")),
        comm_get_async_error(library.function<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError")),
        comm_finalize(library.function<decltype(ncclCommFinalize)>("ncclCommFinalize")),
        comm_destroy(library.function<decltype(ncclCommDestroy)>("ncclCommDestroy")),
        comm_abort(library.function<decltype(ncclCommAbort)>("ncclCommAbort")),
        get_error_string(library.function<decltype(ncclGetErrorString)>("ncclGetErrorString")),
        get_last_error(library.function<decltype(ncclGetLastError)>("ncclGetLastError")),
        all_reduce(library.function<decltype(ncclAllReduce)>("ncclAllReduce")),
        all_gather(library.function<decltype(ncclAllGather)>("ncclAllGather")) {}

  decltype(ncclGetUniqueId)* get_unique_id;
  decltype(ncclCommInitRankConfig)* comm_init_rank;
  decltype(ncclCommGetAsyncError)* comm_get_async_error;
  decltype(ncclCommFinalize)* comm_finalize;
  decltype(ncclCommDestroy)* comm_destroy;
  decltype(ncclCommAbort)* comm_abort;
  decltype(ncclGetErrorString)* get_error_string;
  decltype(ncclGetLastError)* get_last_error;
  decltype(ncclAllReduce)* all_reduce;
  decltype(ncclAllGather)* all_gather;
};

class CudaSlot final : public NcclPort::Slot {
 public:
  explicit CudaSlot(std::size_t size_bytes) : size_bytes_(size_bytes) {
    try {
      expect(cudaHostAlloc(&host_, size_bytes, cudaHostAllocDefault), "cudaHostAlloc");
      expect(cudaMalloc(&device_, size_bytes), "cudaMalloc");
      // Without timing, which only costs: the event is asked whether it has happened.
      expect(cudaEventCreateWithFlags(&fetched_, cudaEventDisableTiming), "cudaEventCreate");
    } catch (...) {
      // A constructor that throws runs no destructor.
      release();
      throw;
    }
  }
  ~CudaSlot() override { release(); }

  std::span<std::byte> bytes() override { return {static_cast<std::byte*>(host_), size_bytes_}; }
  std::byte* host() const { return static_cast<std::byte*>(host_); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }
  cudaEvent_t fetched() const { return fetched_; }

 private:
  void release() noexcept {
    if (fetched_ != nullptr) cudaEventDestroy(fetched_);
    if (device_ != nullptr) cudaFree(device_);
    if (host_ != nullptr) cudaFreeHost(host_);
  }

  const std::size_t size_bytes_;
  void* host_ = nullptr;
  void* device_ = nullptr;
  cudaEvent_t fetched_ = nullptr;
};

class CudaNccl final : public NcclPort {
 public:
  CudaNccl(const std::string& library, int device) : library_(library), calls_(library_), device_(device) {
    int count = 0;
    expect(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (device < 0 || device >= count) {
      throw TransportError("device=" + std::to_string(device) + " is not among the " + std::to_string(count) +
                           " GPUs of this machine; set GRADWIRE_DEVICE to 0 to " + std::to_string(count - 1));
    }
    // The device is not made current here: this runs on the caller's thread, whose device is the framework's.
    expect(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
  }

  ~CudaNccl() override {
    // Null where begin_join() was never called, as after ranks that do not agree.
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  std::string version() const override { return library_.version(); }

  std::string device() const override {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text = std::string(properties_.name) + " (GPU-";
    // By UUID: ordinals differ between processes that see other GPUs (CUDA_VISIBLE_DEVICES).
    for (const char byte : properties_.uuid.bytes) {
      text += kDigits[static_cast<unsigned char>(byte) >> 4];
      text += kDigits[static_cast<unsigned char>(byte) & 15];
    }
    return text + ")";
  }

  Id make_id() override {
    ncclUniqueId made;
    expect(calls_.get_unique_id(&made), "ncclGetUniqueId");
    Id id;
    std::memcpy(id.data(), &made, id.size());
    return id;
  }

  void begin_join(const Id& id, std::uint32_t rank, std::uint32_t ranks) override {
    expect(cudaSetDevice(device_), "cudaSetDevice");  // of this thread, which is ours
    // Not blocking: else it would wait for whatever the framework does on the legacy default stream.
    expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    ncclUniqueId joined;
    std::memcpy(&joined, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    // Every call returns at once, so that each wait has a deadline of ours (is_ready).
    config.blocking = 0;
    rank_ = rank;
    expect_begun(calls_.comm_init_rank(&communicator_, static_cast<int>(ranks), joined,
                                       static_cast<int>(rank), &config),
                 "ncclCommInitRank");
  }

  bool is_ready() override {
    ncclResult_t state = ncclSuccess;
    expect(calls_.comm_get_async_error(communicator_, &state), "ncclCommGetAsyncError");
    // The state is also how this rank learns that another one has failed.
    if (state == ncclInProgress) return false;
    // An error in the background belongs to what was begun last, since nothing else may begin before it is
    // ready.
    expect(state, last_call_);
    return true;
  }

  std::unique_ptr<Slot> make_slot(std::size_t size_bytes) override {
    return std::make_unique<CudaSlot>(size_bytes);
  }

  void begin_all_reduce(Slot& slot, std::size_t elements, ElementType type) override {
    const auto& memory = static_cast<const CudaSlot&>(slot);
    // Copy, sum and copy back are in one stream, which keeps their order without a wait on the host.
    upload(memory, 0, elements * bytes_of(type));
    expect_begun(calls_.all_reduce(memory.device(), memory.device(), elements, nccl_type(type), ncclSum,
                                   communicator_, stream_),
                 "ncclAllReduce");
  }

  void begin_all_gather(Slot& slot, std::size_t block_bytes) override {
    const auto& memory = static_cast<const CudaSlot&>(slot);
    upload(memory, rank_ * block_bytes, block_bytes);
    expect_begun(calls_.all_gather(memory.device() + rank_ * block_bytes, memory.device(), block_bytes,
                                   ncclInt8, communicator_, stream_),
                 "ncclAllGather");
  }

  void fetch(Slot& slot, std::size_t size_bytes) override {
    const auto& memory = static_cast<const CudaSlot&>(slot);
    expect(cudaMemcpyAsync(memory.host(), memory.device(), size_bytes, cudaMemcpyDeviceToHost, stream_),
           "cudaMemcpyAsync");
    // Behind the copy in the stream: once it has happened, the result is in the host's memory.
    expect(cudaEventRecord(memory.fetched(), stream_), "cudaEventRecord");
  }

  bool is_done(Slot& slot) override {
    const cudaError_t status = cudaEventQuery(static_cast<const CudaSlot&>(slot).fetched());
    if (status == cudaErrorNotReady) return false;
    expect(status, "cudaEventQuery");
    return true;
  }

  void begin_end() override { expect_begun(calls_.comm_finalize(communicator_), "ncclCommFinalize"); }

  void end() override {
    const ncclResult_t result = calls_.comm_destroy(communicator_);
    // Also where it failed: a communicator is destroyed once, and abort() must not touch it again.
    communicator_ = nullptr;
    expect(result, "ncclCommDestroy");
  }

  void abort() noexcept override {
    if (communicator_ != nullptr) calls_.comm_abort(communicator_);
    communicator_ = nullptr;
  }

 private:
  void upload(const CudaSlot& memory, std::size_t from, std::size_t size_bytes) {
    expect(cudaMemcpyAsync(memory.device() + from, memory.host() + from, size_bytes, cudaMemcpyHostToDevice,
                           stream_),
           "cudaMemcpyAsync");
  }

  void expect(cudaError_t status, const char* call) const { transport::expect(status, call); }

  void expect(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    std::string text = std::string(call) + ": " + calls_.get_error_string(result);
    // The error's own text is of a dozen kinds. The last one that NCCL has logged names the host or the file.
    if (const char* last = calls_.get_last_error(nullptr); last != nullptr && *last != '\0')
      text += std::string(" (NCCL's last words: ") + last + ")";
    throw TransportError(text);
  }

  /// What goes on in the background is no error yet; is_ready() tells when it is one.
  void expect_begun(ncclResult_t result, const char* call) {
    last_call_ = call;
    if (result != ncclInProgress) expect(result, call);
  }

  const NcclLibrary library_;
  const NcclCalls calls_;
  const int device_;
  cudaDeviceProp properties_{};
  std::uint32_t rank_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  const char* last_call_ = "NCCL";
};

}  // namespace

std::unique_ptr<NcclPort> open_nccl(const std::string& library, int device) {
  try {
    return std::make_unique<CudaNccl>(library, device);
  } catch (const TransportError& error) {
    const std::string text = error.what();
    // NcclLibrary has said already what to do.
    if (text.starts_with("nccl: ")) throw;
    throw TransportError("nccl: " + text + "; a store that needs no GPU is 'allreduce'");
  }
}

std::string nccl_missing() { return {}; }

}  // namespace gradwire::transport
