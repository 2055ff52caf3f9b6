#include "kvstore/aggregate/updater.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Updater, TestAddsTheRescaledGradient) {
  const auto updater = make_updater(parse_optimizer("test rescale_grad=2"));
  std::vector<float> weight = {1, 2};
  OptimizerState state;
  updater->update(weight, std::vector<float>{3, -1}, state);
  EXPECT_EQ(weight, (std::vector<float>{7, 0}));
}

// torch.optim.SGD(lr=.1, momentum=.9, weight_decay=.01) on the same numbers gives the same weights.
TEST(Updater, SgdWithMomentumAndDecay) {
  const auto updater = make_updater(parse_optimizer("sgd learning_rate=0.1 momentum=0.9 wd=0.01"));
  std::vector<float> weight = {1};
  OptimizerState state;
  updater->update(weight, std::vector<float>{0.5F}, state);
  EXPECT_NEAR(weight[0], 0.949F, 1e-6);
  updater->update(weight, std::vector<float>{0.5F}, state);
  EXPECT_NEAR(weight[0], 0.852151F, 1e-6);
}

/// Three steps on a gradient of 1 at a rate of 1, three at 0.01.
float at_two_rates(const std::string& optimizer) {
  std::vector<float> weight = {0};
  OptimizerState state;
  for (const char* rate : {" learning_rate=1", " learning_rate=0.01"}) {
    const auto updater = make_updater(parse_optimizer(optimizer + rate));
    for (int step = 0; step < 3; ++step) updater->update(weight, std::vector<float>{1}, state);
  }
  return weight[0];
}

// torch.optim.SGD's weights, and MXNet 1.9.1's, whose momentum goes on at the rate of the steps that made it.
TEST(Updater, MomentumOfGradientsFollowsANewRateAndMxnetsDoesNot) {
  EXPECT_NEAR(at_two_rates("sgd momentum=0.9"), -5.7321969F, 1e-5);
  EXPECT_NEAR(at_two_rates("sgd momentum=0.9 nesterov=1"), -8.1889772F, 1e-5);
  EXPECT_NEAR(at_two_rates("mxnet_sgd momentum=0.9"), -12.2757897F, 1e-5);
}

TEST(Updater, SgdClips) {
  const auto updater = make_updater(parse_optimizer("sgd learning_rate=1 clip_gradient=0.5"));
  std::vector<float> weight = {0, 0};
  OptimizerState state;
  updater->update(weight, std::vector<float>{3, -3}, state);
  EXPECT_EQ(weight, (std::vector<float>{-0.5F, 0.5F}));
}

// As MXNet 1.9.1's does: clip(2 - 1) leads down, where clip(2) - 1 would lead up.
TEST(Updater, AdamClipsWhatDecayWasAddedTo) {
  const auto updater = make_updater(parse_optimizer("adam learning_rate=1 wd=1 clip_gradient=0.5"));
  std::vector<float> weight = {-1};
  OptimizerState state;
  updater->update(weight, std::vector<float>{2}, state);
  EXPECT_NEAR(weight[0], -2, 1e-5);
}

TEST(Updater, ValuesOutOfRangeAreNamed) {
  EXPECT_THAT(
      [] { make_updater(parse_optimizer("adam beta1=1")); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("beta1=1 of adam is out of range; expected at least 0 "
                                                     "and below 1")));
  EXPECT_THAT([] { make_updater(parse_optimizer("sgd learning_rate=-1")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected at least 0")));
}

TEST(Updater, ValuesThatFloat32CannotSayAreNamed) {
  for (const char* text : {"sgd learning_rate=1e39", "adam learning_rate=1e39"}) {
    EXPECT_THAT([text] { make_updater(parse_optimizer(text)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("=1e+39 of ")))
        << text;
  }
}

TEST(Updater, SmallValuesCountAsFarAsFloat32SaysThem) {
  std::vector<float> weight = {0};
  OptimizerState state;
  make_updater(parse_optimizer("sgd learning_rate=1e-40"))->update(weight, std::vector<float>{-1}, state);
  EXPECT_EQ(weight[0], 1e-40F);
  make_updater(parse_optimizer("sgd learning_rate=1e-320"))->update(weight, std::vector<float>{-1}, state);
  EXPECT_EQ(weight[0], 1e-40F);
}

TEST(Updater, NesterovNeedsAMomentum) {
  EXPECT_THAT([] { make_updater(parse_optimizer("sgd nesterov=1")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("nesterov=1 of sgd needs a momentum")));
  make_updater(parse_optimizer("sgd nesterov=1 momentum=0.9"));
}

TEST(Updater, BadOnesNameTheNearest) {
  EXPECT_THAT([] { make_updater(parse_optimizer("sdg")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'sgd'")));
  EXPECT_THAT([] { make_updater(parse_optimizer("sgd learning_rat=1")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'learning_rate'")));
  for (const char* bad :
       {"sgd learning_rate", "sgd learning_rate=", "sgd learning_rate=x", "sgd learning_rate=nan"}) {
    EXPECT_THROW(parse_optimizer(bad), std::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace gradwire::kvstore
