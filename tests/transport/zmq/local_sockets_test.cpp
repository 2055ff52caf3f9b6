// Local sockets against another user of the machine. Their names are anybody's to take once their owner is
// dead, and what goes over them is not encrypted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/address.h"
#include "transport/zmq/data_links.h"

namespace gradwire::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr uid_t kNobody = 65534;
constexpr std::uint64_t kEpoch = 7;
const World kWorld{1, 1, kEpoch};

constexpr int kHandshakeBytes =
    200;  // of a worker: more than its greeting and READY, less than with its hello

/// A process of another user that takes a local socket's name and answers whoever comes as a server would.
class OtherUser {
 public:
  struct Heard {
    int connections = 0;
    int bytes = 0;
  };

  /// Throws std::runtime_error where the name is in use.
  explicit OtherUser(const std::string& endpoint) {
    const std::string greeting = zmtp_greeting() + zmtp_ready();
    const std::string hello =
        zmtp_frame(1, as_text(encode_header(control_header(Kind::kHello, {Role::kServer, 0}, kEpoch), {}))) +
        zmtp_frame(0, "");
    if (pipe(stop_) != 0 || pipe(report_) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) serve(endpoint.substr(std::strlen("ipc://@")), greeting, hello);
    close(stop_[0]);
    close(report_[1]);
    char listens = 0;
    if (read(report_[0], &listens, 1) == 1) return;
    end();
    throw std::runtime_error("the name could not be taken");
  }
  ~OtherUser() { end(); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  /// Has it let go of the name.
  Heard heard() {
    Heard heard;
    if (write(stop_[1], "s", 1) != 1 || read(report_[0], &heard, sizeof(heard)) != sizeof(heard))
      throw std::runtime_error("no report");
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    return heard;
  }

 private:
  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(stop_[1]);
    close(report_[0]);
  }

  // Between fork() and _exit(): system calls alone.
  [[noreturn]] void serve(const std::string& name, const std::string& greeting, const std::string& hello) {
    close(stop_[1]);
    if (syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0) _exit(1);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // a zero byte in front: abstract
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0) _exit(1);
    if (listen(listener, 16) != 0 || write(report_[1], "l", 1) != 1) _exit(1);
    pollfd watched[18] = {{stop_[0], POLLIN, 0}, {listener, POLLIN, 0}};
    int heard_of[std::size(watched)] = {};
    nfds_t count = 2;
    Heard heard;
    while (poll(watched, count, -1) > 0 && watched[0].revents == 0) {
      for (nfds_t i = 2; i < count; ++i) {
        char bytes[4096];
        const ssize_t read_now = watched[i].revents == 0 ? 0 : read(watched[i].fd, bytes, sizeof(bytes));
        if (watched[i].revents != 0 && read_now <= 0) watched[i].fd = -1;  // poll() leaves it out
        if (read_now <= 0) continue;
        heard.bytes += static_cast<int>(read_now);
        const bool had_hello = heard_of[i] > kHandshakeBytes;
        heard_of[i] += static_cast<int>(read_now);
        if (heard_of[i] > kHandshakeBytes && !had_hello &&
            write(watched[i].fd, hello.data(), hello.size()) < 0)
          _exit(1);
      }
      if (watched[1].revents == 0 || count == std::size(watched)) continue;
      const int connection = accept(listener, nullptr, nullptr);
      if (connection < 0 || write(connection, greeting.data(), greeting.size()) < 0) _exit(1);
      watched[count++] = {connection, POLLIN, 0};
      ++heard.connections;
    }
    _exit(write(report_[1], &heard, sizeof(heard)) == sizeof(heard) ? 0 : 1);
  }

  int stop_[2] = {-1, -1};
  int report_[2] = {-1, -1};
  pid_t pid_ = -1;
};

/// One side's links, with all that they report to.
template <class Links>
struct End {
  template <class... Arguments>
  explicit End(Node self, const Arguments&... arguments)
      : links({inbox, traffic, refusals}, context, arguments...) {
    links.begin(kWorld, self, std::chrono::steady_clock::now());
  }
  void step() {
    links.take_messages();
    links.tick(std::chrono::steady_clock::now());
  }

  std::string log;
  const ZmqContext context;
  Inbox inbox;
  Traffic traffic;
  RejectionLog refusals{[this](const std::string& line) { log += line + "\n"; }};
  Links links;
};

struct Worker : End<WorkerLinks> {
  explicit Worker(const std::string& endpoint)
      : End({Role::kWorker, 0}, std::vector{endpoint}, 1U, std::uint64_t{1} << 20, std::optional<JobKey>(),
            [](const std::string& why) { ADD_FAILURE() << why; }) {}

  void push() {
    std::vector<Frame> frames(1);
    frames[0].header = control_header(Kind::kPush, {Role::kWorker, 0}, kEpoch);
    frames[0].payload = Buffer::allocate(4096);
    links.send({{Role::kServer, 0}, 0, 4096 + kHeaderBytes, 1, pack(std::move(frames))});
  }
};

struct Server : End<ServerLinks> {
  explicit Server(const std::string& endpoint)
      : End({Role::kServer, 0}, Listening{{endpoint}, {}, {}}, std::uint64_t{1} << 20,
            std::optional<JobKey>()) {}
};

bool opens(Worker& worker, Server& server) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!worker.links.is_open() && std::chrono::steady_clock::now() < deadline) {
    worker.step();
    server.step();
    std::this_thread::sleep_for(1ms);
  }
  return worker.links.is_open();
}

void step_for(Worker& worker, std::chrono::milliseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
    worker.step();
    std::this_thread::sleep_for(5ms);
  }
}

class LocalSockets : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  }
  const std::string endpoint_ = local_endpoint();
};

TEST_F(LocalSockets, WhoTakesADeadServersNameHearsNothing) {
  Worker worker(endpoint_);
  {
    Server server(endpoint_);
    ASSERT_TRUE(opens(worker, server));
    EXPECT_TRUE(worker.links.is_local({Role::kServer, 0}));
    EXPECT_THROW(OtherUser other(endpoint_), std::runtime_error) << "while the server lives";
  }
  OtherUser other(endpoint_);
  for (int i = 0; i < 10; ++i) {
    worker.push();
    step_for(worker, 100ms);
  }
  const OtherUser::Heard heard = other.heard();
  EXPECT_EQ(heard.connections, 0);
  EXPECT_EQ(heard.bytes, 0);
}

TEST_F(LocalSockets, WhoPosesAsAServerIsNotTakenForOneAndTheServerIs) {
  OtherUser other(endpoint_);
  Worker worker(endpoint_);
  step_for(worker, 1000ms);
  EXPECT_FALSE(worker.links.is_open());
  EXPECT_THAT(worker.log, HasSubstr("is not of this user"));
  EXPECT_GE(other.heard().connections, 1) << "or nothing was tested";
  Server server(endpoint_);
  EXPECT_TRUE(opens(worker, server));
  EXPECT_TRUE(worker.links.is_local({Role::kServer, 0}));
}

TEST(LocalSocket, ThatIsNotThereYetIsTriedAgain) {
  const std::string endpoint = local_endpoint();
  Worker worker(endpoint);
  step_for(worker, 100ms);
  Server server(endpoint);
  EXPECT_TRUE(opens(worker, server));
  EXPECT_THAT(worker.log, Not(HasSubstr("is not of this user")));
}

}  // namespace
}  // namespace gradwire::transport
