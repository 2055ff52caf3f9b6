#include "kvstore/client/submission_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gradwire::kvstore {
namespace {

using transport::Frame;

Frame frame_of(std::uint64_t operation, std::size_t part) {
  Frame frame;
  frame.header.key = operation;
  frame.header.offset = part;
  return frame;
}

using Piece = std::pair<std::uint64_t, std::size_t>;

TEST(SubmissionOrder, WhateverIsReadyFirstGoesInTheOrderOfSubmission) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    SubmissionOrder order;
    std::vector<Piece> all;
    for (std::uint64_t n = 0; n < 6; ++n) {
      const std::size_t parts = 1 + random() % 4;
      EXPECT_EQ(order.expect(parts), n);
      for (std::size_t part = 0; part < parts; ++part) all.emplace_back(n, part);
    }
    auto arriving = all;
    std::shuffle(arriving.begin(), arriving.end(), random);
    std::vector<Piece> gone;
    for (const auto& [operation, part] : arriving) {
      for (const Frame& frame : order.add(operation, part, frame_of(operation, part)))
        gone.emplace_back(frame.header.key, frame.header.offset);
    }
    EXPECT_EQ(gone, all);
  }
}

TEST(SubmissionOrder, NothingWaitsLongerThanItMust) {
  SubmissionOrder order;
  order.expect(2);
  order.expect(1);
  EXPECT_TRUE(order.add(0, 1, frame_of(0, 1)).empty());
  EXPECT_EQ(order.add(0, 0, frame_of(0, 0)).size(), 2U);
  EXPECT_EQ(order.add(1, 0, frame_of(1, 0)).size(), 1U);
  order.expect(1);
  EXPECT_EQ(order.add(2, 0, frame_of(2, 0)).size(), 1U);
}

}  // namespace
}  // namespace gradwire::kvstore
