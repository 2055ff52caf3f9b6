#include "transport/zmq/job_end.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

TEST(JobEnd, IsWaitedFor) {
  JobEnd end;
  EXPECT_FALSE(end.wait_for(0ms));
  std::jthread other([&] { end.set(nullptr); });
  EXPECT_TRUE(end.wait_for(1min));
}

TEST(JobEnd, TheFirstEndCounts) {
  JobEnd end;
  end.set(std::make_exception_ptr(std::runtime_error("first")));
  end.set(nullptr);
  EXPECT_THROW(end.wait_for(0ms), std::runtime_error);
  EXPECT_THROW(end.wait_for(0ms), std::runtime_error);  // whoever asks, and how often
}

TEST(JobEnd, AFailureIsTakenOnceAndAStopStays) {
  JobEnd end;
  EXPECT_FALSE(end.take_asked().failure || end.take_asked().stop);
  end.ask_to_fail("first");
  end.ask_to_fail("second");
  EXPECT_EQ(end.take_asked().failure, "first");
  EXPECT_FALSE(end.take_asked().failure);
  end.ask_to_stop();
  EXPECT_TRUE(end.take_asked().stop);
  EXPECT_TRUE(end.take_asked().stop);
}

TEST(JobEnd, WhatIsAskedEndsAPoll) {
  JobEnd end;
  const ZmqContext context;
  const ZmqSocket socket(context, ZMQ_ROUTER, 1);
  end.ask_to_stop();
  void* const sockets[] = {socket.get()};
  const auto began = std::chrono::steady_clock::now();
  poll(sockets, end.wakeup(), 1min);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

}  // namespace
}  // namespace gradwire::transport
