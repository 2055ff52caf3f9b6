// Texts of control frames that no other test reads.
#include "transport/membership/control.h"

#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

TEST(Control, AnErrorTravelsAsOneLine) {
  EXPECT_EQ(parse_error(error_text("ValueError: a=b")), "ValueError: a=b");
  EXPECT_EQ(parse_error(error_text("two\nlines\tand\x1b[31m")), "two lines and [31m");
  EXPECT_EQ(error_text(""), "");
  EXPECT_EQ(parse_error(""), "");
  EXPECT_EQ(parse_error(goodbye_text({Role::kWorker, 1}) + error_text("no")), "no");
  EXPECT_EQ(parse_goodbye(goodbye_text({Role::kWorker, 1}) + error_text("no")), (Node{Role::kWorker, 1}));
}

TEST(Control, ALongErrorIsCutBetweenCharacters) {
  const std::string two_bytes = "\xC3\xA9";
  std::string longest = "x";  // so that byte 400 is within a character
  for (int i = 0; i < 300; ++i) longest += two_bytes;
  EXPECT_EQ(parse_error(error_text(longest)), longest.substr(0, 399) + " ...");
}

}  // namespace
}  // namespace gradwire::transport
