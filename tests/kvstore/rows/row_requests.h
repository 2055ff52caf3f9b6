// What workers send to a RowAggregator, and what it answers, without a server around it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstore/rows/row_aggregator.h"
#include "kvstore/wire/protocol.h"
#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {

using Ids = std::vector<std::uint64_t>;
using Values = std::vector<float>;

inline constexpr RowShape kTable{20, 2};
inline constexpr std::uint64_t kKey = 4;

inline transport::Frame rows_frame(transport::Kind kind, std::uint64_t step, const Ids& ids,
                                   const Values& values, const RowShape& shape = kTable) {
  transport::Buffer payload =
      transport::Buffer::allocate(max_row_head_bytes(ids.size()) + values.size() * sizeof(float));
  const std::size_t head = write_row_head(shape, ids, payload.bytes());
  if (!values.empty())
    std::memcpy(payload.bytes().data() + head, values.data(), values.size() * sizeof(float));
  payload.truncate(head + values.size() * sizeof(float));
  transport::FrameHeader header;
  header.kind = kind;
  header.key = kKey;
  header.step = step;
  header.count = ids.size();
  header.offset = 100 * step + static_cast<std::uint64_t>(kind);
  return {header, std::move(payload)};
}

/// A pull that does not say which rows.
inline transport::Frame everything(std::uint64_t step) {
  transport::Frame frame = rows_frame(transport::Kind::kRowPull, step, {}, {});
  frame.payload = {};
  return frame;
}

inline Answers send(RowAggregator& rows, std::uint32_t worker, transport::Frame frame) {
  Answers answers;
  rows.handle(worker, std::move(frame), answers);
  return answers;
}

/// A command that its server's Aggregator has carried out.
inline Answers heed(RowAggregator& rows, std::string_view text, std::uint32_t worker = 0) {
  Answers answers;
  rows.heed(worker, command(text), answers);
  return answers;
}

inline std::pair<Ids, Values> rows_in(const transport::Frame& frame) {
  EXPECT_EQ(frame.header.kind, transport::Kind::kRowReply);
  const OpenedRows opened = open_rows(frame.payload.bytes(), frame.header.count);
  Values values(opened.body.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), opened.body.data(), opened.body.size());
  return {opened.ids, values};
}

inline void expect_rows(const Answers& answers, const Ids& ids, const Values& values) {
  ASSERT_THAT(answers, testing::SizeIs(1));
  EXPECT_EQ(rows_in(answers[0].frame), std::pair(ids, values));
}

inline void expect_refused(const Answers& answers, const std::string& why) {
  ASSERT_THAT(answers, testing::SizeIs(1));
  ASSERT_EQ(answers[0].frame.header.kind, transport::Kind::kError);
  EXPECT_EQ(answers[0].frame.header.content, static_cast<std::uint8_t>(Refusal::kRows));
  EXPECT_THAT(payload_text(answers[0].frame), testing::HasSubstr(why));
}

inline void expect_only(const Answers& answers, transport::Kind kind) {
  ASSERT_THAT(answers, testing::SizeIs(1));
  EXPECT_EQ(answers[0].frame.header.kind, kind);
}

}  // namespace gradwire::kvstore
