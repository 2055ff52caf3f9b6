#include "fusion/network_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <vector>

namespace gradwire::fusion {
namespace {

constexpr double kRate = 120;

// Max-min fair rates by filling: all flows grow alike until a link is full, whose flows then stay.
class Filling {
 public:
  explicit Filling(std::size_t links) : left_(links, kRate) {}

  std::size_t add(std::vector<std::size_t> links) {
    flows_.push_back(std::move(links));
    return flows_.size() - 1;
  }

  std::vector<double> rates() {
    std::vector<double> rates(flows_.size(), 0);
    std::vector<bool> fixed(flows_.size(), false);
    while (std::ranges::count(fixed, false) > 0) {
      const auto growing = [&](std::size_t link) {
        double count = 0;
        for (std::size_t f = 0; f < flows_.size(); ++f) count += !fixed[f] && uses(f, link) ? 1 : 0;
        return count;
      };
      double step = std::numeric_limits<double>::infinity();
      for (std::size_t link = 0; link < left_.size(); ++link) {
        if (growing(link) > 0) step = std::min(step, left_[link] / growing(link));
      }
      std::vector<std::size_t> full;
      for (std::size_t link = 0; link < left_.size(); ++link) {
        const double count = growing(link);
        left_[link] -= step * count;
        if (count > 0 && left_[link] < 1e-9) full.push_back(link);
      }
      for (std::size_t f = 0; f < flows_.size(); ++f) {
        if (fixed[f]) continue;
        rates[f] += step;
        fixed[f] = std::ranges::any_of(full, [&](std::size_t link) { return uses(f, link); });
      }
    }
    return rates;
  }

 private:
  bool uses(std::size_t flow, std::size_t link) const { return std::ranges::count(flows_[flow], link) > 0; }

  std::vector<double> left_;
  std::vector<std::vector<std::size_t>> flows_;
};

TEST(NetworkModel, ServersApartShareAsAllTheFlowsDo) {
  for (const std::uint32_t workers : {1U, 2U, 5U}) {
    for (const std::uint32_t pushing : {1U, 2U, 3U, 7U}) {
      Filling filling(workers + pushing);  // uplinks of workers, then downlinks of servers
      for (std::uint32_t w = 0; w < workers; ++w) {
        for (std::uint32_t s = 0; s < pushing; ++s) filling.add({w, workers + s});
      }
      const NetworkModel network{Topology::kServersApart, workers, 7, kRate, 0, 0};
      for (const double rate : filling.rates()) {
        EXPECT_NEAR(flow_rates(network, pushing, 2).push, rate, 1e-9) << workers << " to " << pushing;
        EXPECT_NEAR(flow_rates(network, 2, pushing).reply, rate, 1e-9);
      }
    }
  }
}

TEST(NetworkModel, PeersShareAsAllTheFlowsDo) {
  for (const std::uint32_t hosts : {2U, 3U, 6U}) {
    for (const bool replying : {false, true}) {
      Filling filling(2 * hosts);  // uplinks, then downlinks
      for (std::uint32_t from = 0; from < hosts; ++from) {
        for (std::uint32_t to = 0; to < hosts; ++to) {
          if (from == to) continue;
          filling.add({from, hosts + to});                // a push of the worker
          if (replying) filling.add({from, hosts + to});  // a reply of the server
        }
      }
      const NetworkModel network{Topology::kServersBeside, hosts, hosts, kRate, 0, 0};
      for (const double rate : filling.rates()) {
        EXPECT_NEAR(flow_rates(network, hosts, replying ? hosts : 0).push, rate, 1e-9) << hosts;
      }
    }
  }
}

TEST(NetworkModel, OneServerBesideAWorkerHearsTheOthers) {
  const NetworkModel network{Topology::kServersBeside, 4, 1, kRate, 0, 0};
  EXPECT_DOUBLE_EQ(flow_rates(network, 1, 1).push, kRate / 3);
  EXPECT_DOUBLE_EQ(flow_rates(network, 0, 1).reply, kRate / 3);
}

TEST(NetworkModel, TheBusiestLinkCarriesWhatTheWorkersShareOut) {
  const auto seconds = [](Topology topology, std::uint32_t workers, std::uint32_t servers) {
    return least_wire_seconds({topology, workers, servers, kRate, 0, 0}, 2 * kRate, kRate);
  };
  EXPECT_DOUBLE_EQ(seconds(Topology::kServersApart, 8, 2), 8);
  EXPECT_DOUBLE_EQ(seconds(Topology::kServersApart, 8, 16), 2);
  EXPECT_DOUBLE_EQ(seconds(Topology::kServersBeside, 8, 8), 7.0 / 8 * 3);
  EXPECT_DOUBLE_EQ(seconds(Topology::kServersBeside, 8, 1), 14);
  EXPECT_DOUBLE_EQ(seconds(Topology::kRing, 8, 1), 2 * 7.0 / 8 * 2);
  EXPECT_DOUBLE_EQ(seconds(Topology::kServersBeside, 1, 1), 0);
}

TEST(NetworkModel, RefusesWhatNoNetworkIs) {
  const NetworkModel good{Topology::kServersApart, 2, 2, kRate, 0, 0};
  EXPECT_NO_THROW(validate(good));
  for (void (*spoil)(NetworkModel&) :
       {+[](NetworkModel& n) { n.workers = 0; }, +[](NetworkModel& n) { n.servers = 0; },
        +[](NetworkModel& n) { n.bytes_per_second = 0; }, +[](NetworkModel& n) { n.latency_seconds = -1; },
        +[](NetworkModel& n) { n.message_seconds = std::numeric_limits<double>::quiet_NaN(); },
        +[](NetworkModel& n) { n.wakeup_seconds = -1; },
        +[](NetworkModel& n) { n.topology = Topology::kRing; },
        +[](NetworkModel& n) { n.topology = Topology::kServersBeside, n.servers = 3; }}) {
    NetworkModel bad = good;
    spoil(bad);
    EXPECT_THROW(validate(bad), std::invalid_argument);
  }
}

}  // namespace
}  // namespace gradwire::fusion
