#include "kvstore/client/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/client/tensor_rounds.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Tensors : public testing::Test {
 protected:
  /// As after a round of a codec that agrees scales.
  void agree(KeyId key) {
    Tensor& tensor = tensors_[key];
    tensor.use(tensors_.compression_in_round(tensor));
    tensor.scales = {{.threshold = 1, .level = 2}};
    tensor.scales_known = tensor.scales_known_before = true;
    ++tensor.step;
  }

  TensorTable tensors_{1};
};

TEST_F(Tensors, HavePartsByOffsetAndTurnsThatBeginElsewhereOnEachWorker) {
  const Tensor& tensor = tensors_.add({"w", {20}}, three_parts());
  EXPECT_EQ(tensor.id, 0);
  EXPECT_EQ(tensor.parts[1].part.offset, 8);
  EXPECT_EQ(tensor.parts[2].part.server, 1);
  EXPECT_THAT(tensor.turns, testing::UnorderedElementsAre(0, 1, 2));
  TensorTable others(0);
  EXPECT_NE(tensor.turns, others.add({"w", {20}}, three_parts()).turns);
}

TEST_F(Tensors, TravelByTheCodecOfAllUnlessTheyHaveTheirOwn) {
  tensors_.add({"a", {20}}, three_parts());
  tensors_.add({"b", {20}}, three_parts());
  const auto all = compression("int8"), own = compression("2bit:threshold=0.5");
  tensors_.set_compression(all);
  const std::vector<KeyId> second{1};
  tensors_.set_compression_of(second, own);
  EXPECT_EQ(tensors_.compression_of(tensors_[0]), all);
  EXPECT_EQ(tensors_.compression_of(tensors_[1]), own);
}

TEST_F(Tensors, OfFloat64TravelInThoseBitsWithCodecNoneAlone) {
  tensors_.add({"a", {20}, "float64"}, three_parts());
  tensors_.add({"b", {20}}, three_parts());
  EXPECT_NE(tensors_.compression_in_round(tensors_[0])->codec->as_float64(), nullptr);
  EXPECT_EQ(tensors_.compression_in_round(tensors_[1])->codec->as_float64(), nullptr);
  tensors_.set_compression(compression("fp16"));
  EXPECT_EQ(tensors_.compression_in_round(tensors_[0])->codec->as_float64(), nullptr);
}

TEST_F(Tensors, KeepTheirScalesWhenTheSameCodecIsSetAgain) {
  tensors_.add({"w", {20}}, three_parts());
  tensors_.set_compression(compression("2bit"));
  agree(0);
  tensors_.set_compression(compression("2bit"));
  EXPECT_TRUE(tensors_[0].scales_known);
  EXPECT_TRUE(tensors_.is_in_force(tensors_[0]));
  tensors_.set_compression(compression("1bit"));
  EXPECT_FALSE(tensors_[0].scales_known);
  EXPECT_FALSE(tensors_.is_in_force(tensors_[0]));
}

TEST_F(Tensors, LeaveTheScalesOfATensorsOwnCodecAloneWhenThatOfAllChanges) {
  tensors_.add({"w", {20}}, three_parts());
  const std::vector<KeyId> key{0};
  tensors_.set_compression_of(key, compression("2bit"));
  agree(0);
  tensors_.set_compression(compression("int8"));
  EXPECT_TRUE(tensors_[0].scales_known);
}

TEST_F(Tensors, GoOnWithACheckpointsScalesOnceTheirCodecIsSet) {
  tensors_.add({"w", {20}}, three_parts());
  tensors_.set_compression(compression("2bit"));
  agree(0);
  tensors_[0].residual.assign(std::vector<float>(20, 0.25F));
  const TensorState saved = tensors_.read(0);
  EXPECT_EQ(saved.step, 1);
  TensorTable later(0);
  later.add({"w", {20}}, three_parts());
  later.write(0, saved);
  EXPECT_FALSE(later[0].scales_known) << "codec none is in force";
  later.set_compression(compression("2bit"));
  EXPECT_TRUE(later[0].scales_known);
  EXPECT_EQ(later.read(0), saved);
}

TEST_F(Tensors, WithoutAgreedScalesSaveNone) {
  tensors_.add({"w", {20}}, three_parts());
  EXPECT_THAT(tensors_.read(0).scales, IsEmpty());
  EXPECT_EQ(tensors_.read(0).compression, "");
}

TEST_F(Tensors, CatchUpWithTheRankThatHasGoneFarthest) {
  for (const char* name : {"a", "b", "c"}) tensors_.add({name, {20}}, three_parts());
  for (const KeyId key : {0, 1, 2}) {
    agree(key);
    tensors_[key].value_current = true;
  }
  tensors_.catch_up(std::vector<StepSpread>{{1, 1}, {0, 1}, {1, 4}});
  EXPECT_THAT(tensors_.steps(), ElementsAre(1, 1, 4));
  EXPECT_TRUE(tensors_[0].scales_known);
  EXPECT_FALSE(tensors_[1].scales_known) << "others have not agreed on them";
  EXPECT_TRUE(tensors_[1].value_current);
  EXPECT_FALSE(tensors_[2].value_current);
}

TEST_F(Tensors, ForgetSumsOfFloat64ButNotOthers) {
  tensors_.add({"a", {2}, "float64"}, std::vector<Part>{{0, 0, 2}});
  tensors_.add({"b", {2}}, std::vector<Part>{{0, 0, 2}});
  for (const KeyId key : {0, 1}) tensors_[key].value_current = true;
  tensors_[0].value64 = {1, 2};
  tensors_.forget_sums_of_float64();
  EXPECT_FALSE(tensors_[0].value_current);
  EXPECT_TRUE(tensors_[1].value_current);
}

}  // namespace
}  // namespace gradwire::kvstore
