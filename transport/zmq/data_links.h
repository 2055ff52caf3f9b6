// DataLinks are the connections over which a node's frames to its peers travel. A worker has
// `streams_per_peer` to every server, a server one socket on which they all arrive. With replicas a server
// is also a peer of its mirror, to which it connects, and of the server that it mirrors.
//
// A stream opens with a kHello that carries the job's epoch. The other side answers with a kHello. A
// kGoodbye from either side ends the stream, and the other side acknowledges it. So a node that leaves knows
// that everything it sent has arrived.
//
// Threading: the I/O thread only. Received frames go to the Inbox, which any thread may read.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/inbox.h"
#include "transport/membership/control.h"
#include "transport/traffic.h"
#include "transport/zmq/curve.h"
#include "transport/zmq/listening.h"
#include "transport/zmq/rejection_log.h"
#include "transport/zmq/unauthenticated_peers.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

/// Frames to one peer, packed and counted on the thread that sends them.
struct Outgoing {
  Node to;
  std::uint64_t spread = 0;  ///< chooses among streams; the same for all frames of one (key, offset)
  std::uint64_t byte_count = 0;
  std::uint64_t frame_count = 0;
  Packet packet;
};

class DataLinks {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Gets the events of the links.
  struct Report {
    Inbox& inbox;
    Traffic& traffic;
    RejectionLog& refusals;
  };

  explicit DataLinks(Report report) : report_(report) {}
  virtual ~DataLinks() = default;
  DataLinks(const DataLinks&) = delete;
  DataLinks& operator=(const DataLinks&) = delete;

  virtual const std::vector<void*>& sockets() const = 0;
  /// Reads what has arrived, up to a batch; returns whether more may be waiting.
  virtual bool take_messages() = 0;

  void begin(const World& world, Node self, Time now);
  void send(Outgoing outgoing);
  /// Repeats hellos that were not answered; settles goodbyes that will not come.
  void tick(Time now);
  bool is_open() const;
  /// Peers with a stream that is not open.
  std::vector<Node> awaited() const;
  /// Hears from the scheduler that a peer has left; its streams' own goodbyes may still be under way.
  void announce_goodbye(Node peer, const std::string& error, Time now);
  /// Hears from the scheduler that a server has died: its connections are closed for good, so that nothing
  /// comes from it any more should it live after all, and the memory of what was on its way is given back.
  void announce_departure(Node server, Node mirror);
  /// error: what ends this node; empty: it has come to its end.
  void say_goodbye(const std::string& error);
  /// Whether every peer that is still there has answered say_goodbye().
  bool is_goodbye_answered() const;
  /// Whether all streams with a peer are open and local (ZmqMessage::came_locally).
  bool is_local(Node peer) const;
  /// The peers that frames may go to.
  std::vector<Node> peers() const;

 protected:
  struct Stream {
    bool open = false;
    bool local = false;         // its hello came locally
    bool left = false;          // the peer said goodbye on it
    bool acknowledged = false;  // the peer answered our goodbye on it
    std::string route;          // server: the routing id of the connection
    std::size_t socket = 0;     // worker: its place in the list of sockets
    std::string at;             // the local socket to which we have connected; empty over TCP
    Time connected_at{};        // last, where that is set
  };
  struct Peer {
    std::vector<Stream> streams;
    std::optional<Time> announced;  // when the scheduler said that it has left
    bool gone = false;
    std::string error;  // what has ended it, if an error has
  };

  virtual void on_begin() = 0;
  virtual void write(const Stream& stream, Packet packet) = 0;
  virtual void drop(const Stream& stream) = 0;
  virtual void on_tick(Time now) = 0;
  /// Takes the frames of one message from an open stream of a known peer. Throws FrameError.
  void take_frames(Node from, std::uint32_t stream, std::vector<Frame> frames);
  /// Connects a stream to where a peer listens.
  static void reach(Stream& stream, ZmqSocket& socket, const std::string& endpoint,
                    const std::optional<JobKey>& key);
  /// Notes the user that has answered a stream's hello. Throws FrameError if it is another user.
  static void note_answer(Stream& stream, const ZmqMessage& answer);
  void write_control(Node to, const Stream& stream, const FrameHeader& header, const std::string& text);
  FrameHeader header_of(Kind kind) const;

  Report report_;
  World world_;
  Node self_;
  std::map<Node, Peer> peers_;

 private:
  void on_control(Node from, Stream& stream, const Frame& frame);
  void settle_goodbye(Node node, Peer& peer);
};

/// A worker's. endpoints: of the servers, in rank order.
class WorkerLinks final : public DataLinks {
 public:
  /// Gets the reason when a server refuses this node.
  WorkerLinks(Report report, const ZmqContext& context, const std::vector<std::string>& endpoints,
              std::uint32_t streams_per_peer, std::uint64_t max_frame_bytes, const std::optional<JobKey>& key,
              std::function<void(const std::string&)> refused);

  const std::vector<void*>& sockets() const override { return handles_; }
  bool take_messages() override;

 private:
  void on_begin() override {}
  void write(const Stream& stream, Packet packet) override {
    sockets_[stream.socket].send(std::move(packet));
  }
  void drop(const Stream& stream) override;
  void on_tick(Time now) override;
  void take(Node from, std::uint32_t stream, Packet packet);

  std::vector<ZmqSocket> sockets_;  // stream s of server r at r * streams + s
  std::vector<void*> handles_;
  std::function<void(const std::string&)> refused_;
  Time next_hello_{};
};

/// A server's.
class ServerLinks final : public DataLinks {
 public:
  /// Listens at once. Throws TransportError.
  ServerLinks(Report report, const ZmqContext& context, const Listening& listening,
              std::uint64_t max_frame_bytes, const std::optional<JobKey>& key);

  /// Connects to the mirror of `self`, where the lower of the two does that: two servers, which mirror each
  /// other, share a connection. endpoints: of the servers, in rank order. Before begin().
  void connect_mirror(const ZmqContext& context, Node self, const std::vector<std::string>& endpoints,
                      std::uint64_t max_frame_bytes, const std::optional<JobKey>& key);

  /// Where it listens, as it is published, port filled in.
  const std::string& endpoint() const { return endpoint_; }
  /// For processes of this machine; empty when endpoint() is an ipc one already.
  const std::string& local_endpoint() const { return local_endpoint_; }
  const std::vector<void*>& sockets() const override { return handles_; }
  bool take_messages() override;

 private:
  struct Origin {
    Node node;
    std::uint32_t stream = 0;
  };

  void on_begin() override;
  void write(const Stream& stream, Packet packet) override;
  void drop(const Stream& stream) override;
  void on_tick(Time now) override;
  void take_from_mirror(Packet packet);
  void take(const std::string& route, Packet packet);
  Stream& on_hello(const std::string& route, const Frame& frame);
  void take_connection_events();

  std::optional<ZapAuthenticator> authenticator_;  // of a job with a key
  ZmqSocket router_;
  ConnectionWatch watch_;
  std::optional<ZmqSocket> to_mirror_;
  Node mirror_;  ///< at the other end of that
  Time next_hello_{};
  std::string endpoint_, local_endpoint_;
  std::vector<void*> handles_;
  std::map<std::string, Origin> origins_;  // by routing id
  UnauthenticatedPeers strangers_;
  std::vector<std::pair<std::string, Packet>> early_;  // what came before the roster, with its routing id
};

/// Ten bytes that name a connection: "gw" and eight random ones, so that a reconnect is known for what it is.
std::string random_routing_id();

}  // namespace gradwire::transport
