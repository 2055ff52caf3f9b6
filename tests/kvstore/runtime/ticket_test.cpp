#include "kvstore/runtime/ticket.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

TEST(Ticket, CallsWhatComesNextOnceWhicheverIsFirst) {
  int calls = 0;
  const auto count = [&](const std::exception_ptr& error) { calls += error ? 100 : 1; };
  const Ticket later;
  later.then(count);
  EXPECT_EQ(calls, 0);
  later.succeed();
  later.fail(std::make_exception_ptr(std::runtime_error("too late")));
  EXPECT_EQ(calls, 1);

  const Ticket before;
  before.fail(std::make_exception_ptr(std::runtime_error("lost")));
  before.then(count);
  EXPECT_EQ(calls, 101);
  EXPECT_THROW(before.wait(), std::runtime_error);
}

}  // namespace
}  // namespace gradwire::kvstore
