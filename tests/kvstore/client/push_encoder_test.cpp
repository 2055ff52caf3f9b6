#include "kvstore/client/push_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/kvstore/client/tensor_rounds.h"
#include "tests/kvstore/worker_end.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <typename Element>
std::vector<Element> elements_of(const PushPayload& payload) {
  std::vector<Element> values(payload.bytes.size_bytes() / sizeof(Element));
  std::memcpy(values.data(), payload.bytes.bytes().data(), payload.bytes.size_bytes());
  return values;
}

class Pushes : public testing::Test {
 protected:
  Tensor& push(const std::string& codec, const std::string& dtype = "float32") {
    tensors_.set_compression(compression(codec));
    Tensor& tensor = tensors_.add({"w", {20}, dtype}, three_parts());
    Operation operation;
    if (dtype == "float64") {
      operation.in = gradient64_;
    } else {
      operation.in = gradient_;
    }
    begin(tensor, std::move(operation), tensors_, pending_);
    return tensor;
  }

  std::vector<float> gradient_ = std::vector<float>(20, 1.5F);
  std::vector<double> gradient64_ = std::vector<double>(20, 1.5);
  KeepingMessenger messenger_;
  PendingRequests pending_{transport::Role::kServer, {}};
  TensorTable tensors_{1};
  transport::BufferPool buffers_;
  Notices notices_;
  PushEncoder encoder_{messenger_, buffers_, notices_, true};
};

TEST_F(Pushes, LeaveWhatTheyDoNotSendInTheResidualOfTheirPart) {
  Tensor& tensor = push("2bit:threshold=0.5");
  const PushPayload payload = encoder_.encode(tensor, 1);
  EXPECT_GT(payload.bytes.size_bytes(), 0);
  EXPECT_LE(payload.bytes.size_bytes(), tensor.codec().max_encoded_size(8));
  EXPECT_TRUE(payload.bytes.checksum().has_value());
  EXPECT_THAT(std::vector<float>(tensor.residual.begin() + 8, tensor.residual.begin() + 16), Each(1.0F));
  EXPECT_EQ(tensor.residual[0], 0);
  EXPECT_TRUE(tensor.parts[1].share.is_known);
  EXPECT_EQ(tensor.parts[1].share.kept_squares, 8);
}

TEST_F(Pushes, SendWhatALossyCodecHasLeftWithTheFirstRoundOfNone) {
  Tensor& tensor = push("none");
  tensor.residual.assign(20, 0.25F);
  EXPECT_THAT(elements_of<float>(encoder_.encode(tensor, 2)), ElementsAre(1.75F, 1.75F, 1.75F, 1.75F));
}

TEST_F(Pushes, OfFloat64GoAsTheyAreWithCodecNone) {
  gradient64_[16] = 1e300;
  Tensor& tensor = push("none", "float64");
  EXPECT_THAT(elements_of<double>(encoder_.encode(tensor, 2)), ElementsAre(1e300, 1.5, 1.5, 1.5));
  tensor.residual.assign(20, 0.25F);
  EXPECT_THAT(elements_of<double>(encoder_.encode(tensor, 2)), ElementsAre(1e300, 1.75, 1.75, 1.75));
  EXPECT_THAT(notices_.take(), IsEmpty());
}

TEST_F(Pushes, OfFloat64ThatNoFloatHoldsAreSaidOnce) {
  gradient64_[3] = 1e300;
  Tensor& tensor = push("fp16", "float64");
  const PushPayload payload = encoder_.encode(tensor, 0);
  EXPECT_NE(payload.flags & transport::kFlagNonfinite, 0U);
  encoder_.encode(tensor, 0);
  EXPECT_THAT(notices_.take(),
              ElementsAre(HasSubstr("key 'w': float64 values are beyond the largest float32")));
}

TEST_F(Pushes, Of16BitsAreWidened) {
  const std::vector<std::uint16_t> bits(20, 0x3fc0);  // 1.5 as bfloat16
  for (const char* codec : {"none", "2bit:threshold=0.5"}) {
    PushPayload of_floats = encoder_.encode(push(codec), 1);
    Tensor& tensor = push(codec);
    tensor.current->in = {ElementType::kBfloat16, std::as_bytes(std::span(bits))};
    tensor.residual.assign(tensor.residual.size(), 0.0F);
    EXPECT_EQ(elements_of<std::byte>(encoder_.encode(tensor, 1)), elements_of<std::byte>(of_floats)) << codec;
  }
}

TEST_F(Pushes, SayThatTheyMetWhatIsNotFinite) {
  gradient_[9] = std::numeric_limits<float>::infinity();
  Tensor& tensor = push("2bit:threshold=0.5");
  EXPECT_EQ(encoder_.encode(tensor, 0).flags, 0U);
  EXPECT_EQ(encoder_.encode(tensor, 1).flags, transport::kFlagNonfinite);
}

TEST_F(Pushes, KeepTheResidualThatWasForARollback) {
  Tensor& tensor = push("2bit:threshold=0.5");
  tensor.residual.assign(20, 0.25F);
  tensor.residual_before.assign(20, 0.0F);
  tensor.has_before = true;
  encoder_.encode(tensor, 0);
  EXPECT_EQ(tensor.residual_before[7], 0.25F);
  EXPECT_EQ(tensor.residual_before[8], 0);
}

TEST_F(Pushes, AreShortenedWhereThatIsAllowed) {
  std::ranges::fill(gradient_, 0.0F);
  tensors_.set_compression(compression("2bit:threshold=0.5,lossless=on"));
  Tensor& tensor = tensors_.add({"v", {4096}}, std::vector<Part>{{0, 0, 4096}});
  const std::vector<float> zeros(4096);
  Operation operation;
  operation.in = zeros;
  begin(tensor, std::move(operation), tensors_, pending_);
  PushEncoder plain(messenger_, buffers_, notices_, false);
  EXPECT_LT(encoder_.encode(tensor, 0).bytes.size_bytes(), plain.encode(tensor, 0).bytes.size_bytes());
}

}  // namespace
}  // namespace gradwire::kvstore
