// A Messenger that forwards everything: the base of those that watch or disturb a node's messenger.
//
// Threading, lifetime: as the Messenger that it owns; the Sink is called by the thread that calls that one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

class ForwardingMessenger : public Messenger, protected Sink {
 public:
  explicit ForwardingMessenger(std::unique_ptr<Messenger> messenger) : messenger_(std::move(messenger)) {}

  void send(Node to, std::vector<Frame> frames) override { messenger_->send(to, std::move(frames)); }
  Node self() const override { return messenger_->self(); }
  World world() const override { return messenger_->world(); }
  std::optional<Node> local_peer() const override { return messenger_->local_peer(); }
  bool seals_payloads() const override { return messenger_->seals_payloads(); }
  bool loses_frames() const override { return messenger_->loses_frames(); }
  void attach(Sink& sink) override {
    sink_ = &sink;
    messenger_->attach(*this);
  }
  void detach() override { messenger_->detach(); }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return messenger_->exchange(name, blob, timeout);
  }
  void report_wait(const WaitReport& report) override { messenger_->report_wait(report); }
  std::uint64_t exchanges() const override { return messenger_->exchanges(); }
  void fail(const std::string& text) override { messenger_->fail(text); }
  std::uint32_t newcomers() const override { return messenger_->newcomers(); }
  void regroup(const std::string& text, Parting parting) override { messenger_->regroup(text, parting); }
  void note_error(const std::string& error) override { messenger_->note_error(error); }
  void leave(std::chrono::milliseconds timeout) override { messenger_->leave(timeout); }
  bool outlast(std::chrono::milliseconds timeout) override { return messenger_->outlast(timeout); }
  std::vector<PeerCounters> counters() const override { return messenger_->counters(); }

 protected:
  void on_frames(Node from, std::vector<Frame> frames) override { sink_->on_frames(from, std::move(frames)); }
  void on_failure(const std::string& text) override { sink_->on_failure(text); }
  void on_membership_changed(const std::string& text) override { sink_->on_membership_changed(text); }
  void on_call_mismatch(const std::string& text) override { sink_->on_call_mismatch(text); }
  void on_question(const std::set<std::string>& rounds) override { sink_->on_question(rounds); }
  void on_goodbye(Node peer, const std::string& error) override { sink_->on_goodbye(peer, error); }
  void on_departure(Node server, Node mirror) override { sink_->on_departure(server, mirror); }

 private:
  const std::unique_ptr<Messenger> messenger_;
  Sink* sink_ = nullptr;
};

}  // namespace gradwire::transport
