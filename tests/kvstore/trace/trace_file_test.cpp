// A process's part of a timeline, as a file.
#include "kvstore/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TraceFile : public testing::Test {
 protected:
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) /
                                        testing::UnitTest::GetInstance()->current_test_info()->name();
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

const TraceOrigin kOrigin{{transport::Role::kServer, 3}, {2, 4, 0}, false, "server"};

TEST_F(TraceFile, HasAHeadKeysReadingsAndSpans) {
  Trace trace;
  trace.name_key(Tier::kHost, 7, "a \"quoted\"\\ name\n");
  trace.add_reading({1, -50ms, 80us, TraceClock::time_point(9ns)});
  Span span;
  span.begin = TraceClock::time_point(100ns);
  span.end = TraceClock::time_point(250ns);
  span.key = 7;
  span.offset = 65'536;
  span.bytes = 64;
  span.step = 2;
  span.priority = -1;
  span.stage = Stage::kSum;
  span.tier = Tier::kHost;
  trace.add(span);
  const std::string path = write_trace(folder_ / "made" / "for it", trace, kOrigin);
  EXPECT_EQ(path, folder_ / "made" / "for it" / "server-3.jsonl");
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  EXPECT_THAT(lines, ElementsAre(HasSubstr(R"("role":"server","rank":3,"workers":2,"servers":4,)"),
                                 R"({"key":[1,7,"a \"quoted\"\\ name\u000a"]})",
                                 R"({"clock":[1,-50000000,80000,9]})", "[8,100,250,7,65536,64,2,-1,-1,1]"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "made" / "for it"), {}), 1);
}

TEST_F(TraceFile, SaysWhereItCannotBeWritten) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "file") << "in the way";
  Trace trace;
  EXPECT_THAT([&] { write_trace(folder_ / "file", trace, kOrigin); },
              ThrowsMessage<std::runtime_error>(HasSubstr("server-3.jsonl cannot be written (")));
}

}  // namespace
}  // namespace gradwire::kvstore
