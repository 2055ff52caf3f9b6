#include "kvstore/client/residuals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kvstore/client/tensor_rounds.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;
using transport::Role;
using Values = std::vector<float>;

class OfTensors : public testing::TestWithParam<ElementType> {
 protected:
  OfTensors() {
    tensors_.add({"a", {20}}, three_parts());
    tensors_.add({"b", {20}}, three_parts());
    tensors_.set_compression(compression("2bit:threshold=0.5"));
  }
  Values read(KeyId key, std::uint64_t offset = 0, std::size_t count = 20) {
    Values values(count, -1.0F);
    residuals_.read(key, offset, values);
    return values;
  }
  /// A round that leaves left in every element of the first tensor.
  void round(float left) {
    Operation push;
    push.in = gradient_;
    begin(tensors_[0], std::move(push), tensors_, pending_);
    residuals_.keep_what_was(tensors_[0]);
    if (tensors_[0].has_before) tensors_[0].residual_before = tensors_[0].residual;  // as encoding does
    tensors_[0].residual.assign(Values(20, left));
    end(tensors_[0], pending_);
  }

  const Values gradient_ = Values(20, 1.0F);
  PendingRequests pending_{Role::kServer, {}};
  TensorTable tensors_{0, GetParam()};
  Residuals residuals_{tensors_};
};

TEST_P(OfTensors, AreReadAndWrittenInPieces) {
  Values none(3, -1.0F);
  EXPECT_FALSE(residuals_.read(0, 0, none));
  EXPECT_THAT(none, Each(-1.0F));
  residuals_.write(0, 4, Values{1, 2, 3});
  EXPECT_THAT(read(0, 3, 5), ElementsAre(0, 1, 2, 3, 0));
  EXPECT_FALSE(residuals_.read(1, 0, none)) << "each tensor has its own";
}

TEST_P(OfTensors, AreAddedTo) {
  residuals_.add(0, 1, Values{1, 2}, 0.5F);
  residuals_.add(0, 2, Values{4}, 1);
  EXPECT_THAT(read(0, 0, 4), ElementsAre(0, 0.5F, 5, 0));
}

TEST_P(OfTensors, AreMeasuredTogether) {
  residuals_.write(0, 0, Values{3});
  residuals_.write(1, 19, Values{4});
  EXPECT_EQ(residuals_.squares(), 25);
}

TEST_P(OfTensors, TheShareSentIsThatOfTensorsThatAreCompressedNow) {
  tensors_[0].parts[1].share = {4, 1, true};
  tensors_[1].parts[0].share = {4, 4, true};
  EXPECT_EQ(residuals_.share().value(), 1 - 5.0 / 8);
  const std::vector<KeyId> second{1};
  tensors_.set_compression_of(second, compression("none"));
  EXPECT_EQ(residuals_.share().value(), 0.75);
}

TEST_P(OfTensors, GoBackToWhatTheyWereBeforeTheLastRound) {
  const std::vector<KeyId> both{0, 1};
  residuals_.keep_rollback(true);
  round(0.25F);
  round(0.5F);
  residuals_.roll_back(both);
  EXPECT_THAT(read(0), Each(0.25F));
  residuals_.roll_back(both);
  EXPECT_THAT(read(0), Each(0.25F)) << "nothing was kept since";
}

TEST_P(OfTensors, StayAsTheyAreWithoutRollbackAndOnceTheyWereWritten) {
  const std::vector<KeyId> first{0};
  round(0.25F);
  residuals_.roll_back(first);
  EXPECT_THAT(read(0), Each(0.25F));
  residuals_.keep_rollback(true);
  round(0.5F);
  residuals_.write(0, 0, Values(20, 2.0F));
  residuals_.roll_back(first);
  EXPECT_THAT(read(0), Each(2.0F));
  round(0.5F);
  residuals_.keep_rollback(false);
  residuals_.roll_back(first);
  EXPECT_THAT(read(0), Each(0.5F));
}

TEST_P(OfTensors, AreDiscardedWithAllThatARoundAgreed) {
  const std::vector<KeyId> first{0}, both{0, 1};
  residuals_.keep_rollback(true);
  round(0.25F);
  round(0.5F);
  residuals_.write(1, 0, Values{3});
  tensors_[0].scales_known = true;
  residuals_.discard(first);
  Values none(1, -1.0F);
  EXPECT_FALSE(residuals_.read(0, 0, none));
  EXPECT_FALSE(tensors_[0].scales_known) << "as on the other ranks, which have discarded theirs, too";
  EXPECT_EQ(residuals_.squares(), 9);
  residuals_.roll_back(both);
  EXPECT_FALSE(residuals_.read(0, 0, none)) << "what was before is gone, too";
}

TEST_P(OfTensors, OfARoundInProgressStay) {
  round(0.25F);
  Operation push;
  push.in = gradient_;
  begin(tensors_[0], std::move(push), tensors_, pending_);
  residuals_.discard(std::vector<KeyId>{0});
  end(tensors_[0], pending_);
  EXPECT_THAT(read(0), Each(0.25F));
}

TEST_P(OfTensors, MayHoldNaNWhereTheCodecSaysSo) {
  EXPECT_FALSE(residuals_.keeps_nonfinite(0));
  const std::vector<KeyId> first{0};
  tensors_.set_compression_of(first, compression("2bit:threshold=0.5,nonfinite=mxnet"));
  EXPECT_TRUE(residuals_.keeps_nonfinite(0));
}

TEST_P(OfTensors, BeyondTheTypeStayFinite) {
  const float most = std::numeric_limits<float>::max();
  residuals_.write(0, 0, Values{most, -most, NAN, INFINITY});
  const Values kept = read(0, 0, 4);
  EXPECT_NEAR(kept[0] / most, 1, 1.0 / 256);
  EXPECT_EQ(kept[1], -kept[0]);
  EXPECT_TRUE(std::isnan(kept[2]));
  EXPECT_EQ(kept[3], INFINITY);
}

INSTANTIATE_TEST_SUITE_P(Kept, OfTensors, testing::Values(ElementType::kFloat32, ElementType::kBfloat16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST(Residual, InBfloat16IsRoundedToNearestEven) {
  Residual residual(ElementType::kBfloat16);
  EXPECT_TRUE(residual.empty());
  residual.assign(Values{1 + 1.0F / 256, 1 + 3.0F / 256, 0.25F});
  EXPECT_THAT(residual.floats(), ElementsAre(1, 1 + 4.0F / 256, 0.25F));
  EXPECT_EQ(residual.view().bytes().size(), 6);
  EXPECT_FALSE(residual.is_all_sent());
  residual.assign(Values{0, -0.0F, 0});
  EXPECT_TRUE(residual.is_all_sent());
  residual.clear();
  EXPECT_TRUE(residual.empty());
}

}  // namespace
}  // namespace gradwire::kvstore
