// Whatever the gradients, what a codec keeps back stays within a few gradients, and their mean arrives: every
// codec, 1 to 4 workers, every reply, tensors of few elements and around a codec unit.
//
// That sent and kept make up what was given says nothing of it: a codec that sends nothing fulfils that too.
// GRADWIRE_RESIDUAL_ROUNDS sets the rounds of a run, with all replies and workers around a unit too.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

/// In root mean squares of a worker's gradient, the largest so far; of a fixed threshold in thresholds.
struct Bounds {
  double worker;  ///< no residual of the workers has a larger root mean square
  double server;  ///< nor has Server's, divided by the number of workers
  int rounds;  ///< from then on the mean of what arrived is that of what was given, but for a tenth; 0: the
               ///< codec needs more than the quick form has
};

struct Promise {
  const char* spec;
  std::size_t unit;  ///< elements that share a scale or a selection; of others a SIMD group and its tail
  Bounds few;        ///< of 1 to 3 elements, and around `unit` if it is short
  Bounds unit_long;  ///< of a codec unit, an element more and one less, where those are more elements
  float threshold =
      0;            ///< a fixed one: gradients are cut to it, since more than that never leaves in a round
  Bounds longer{};  ///< of a codec unit in the long form, 300 rounds, where that needs more room
};

// The table in compress/README.md, "Bounds on residuals": the worst of the patterns below, and some room.
constexpr Promise kPromises[] = {
    {"none", 64, {0, 0, 1}, {}},
    {"fp16", 64, {0.001, 0.001, 1}, {}},
    {"bf16", 64, {0.01, 0.01, 1}, {}},
    {"int8:block=32", 32, {0.05, 0.05, 1}, {}},
    {"int4:block=32", 32, {0.5, 0.2, 5}, {}},
    {"nf2:block=32", 32, {4, 3, 40}, {}},
    {"nf2", 128, {4, 3, 40}, {}},
    {"nf4:block=32", 32, {0.5, 0.2, 5}, {}},
    {"nf4", 128, {0.5, 0.2, 5}, {}},
    {"fp8:block=32", 32, {0.05, 0.05, 1}, {}},
    {"fp8:format=e5m2,block=32", 32, {0.1, 0.1, 1}, {}},
    {"qsgd:bucket=64", 64, {1, 1, 10}, {}},
    {"qsgd:bits=8,bucket=64", 64, {0.05, 0.05, 1}, {}},
    {"natural", 64, {2, 1, 10}, {}},
    {"2bit:threshold=auto", 65536, {4, 2, 40}, {4, 2, 40}},
    {"2bit:threshold=auto,scale=2.5,reply_scale=2.5", 65536, {6, 2, 60}, {6, 2, 60}},
    // These two of one large element of a unit: 34 after 300 rounds.
    {"2bit:threshold=auto,scale=0.5,reply_scale=0.5", 65536, {2, 1, 20}, {4, 2, 40}, 0, {60, 2, 0}},
    {"1bit", 65536, {2, 1, 20}, {20, 2, 200}, 0, {60, 2, 0}},
    // sqrt(65536) / clip rounds, for one element.
    {"terngrad", 65536, {2, 1.5, 20}, {180, 10, 0}, 0, {200, 200, 0}},
    {"topk:ratio=0.1", 65536, {2, 1, 20}, {12, 3, 120}, 0, {12, 4, 120}},  // 1 / ratio rounds
    {"topk:ratio=0.3,values=fp16", 65536, {2, 1, 20}, {4, 2, 40}},
    {"randomk:ratio=0.3", 65536, {40, 0, 280}, {40, 0, 280}},  // by chance: t rounds in (1 - ratio)^t cases
    {"2bit:threshold=1", 64, {1, 0.5, 20}, {}, 1},
    {"1bit:threshold=0.5", 64, {1.5, 1, 30}, {}, 1},
    {"randomk:ratio=0.5,values=bf16", 65536, {40, 0, 280}, {25, 0.01, 200}},
};

void PrintTo(const Promise& promise, std::ostream* out) { *out << promise.spec; }

/// Gradients of one kind, a function of worker, element and round. `draw` is standard Gaussian.
struct Pattern {
  const char* name;
  float (*value)(std::size_t worker, std::size_t element, int round, float draw);
};

constexpr Pattern kPatterns[] = {
    {"constant", [](std::size_t, std::size_t, int, float) { return 0.7f; }},
    {"wavering",
     [](std::size_t w, std::size_t, int round, float) {
       return 0.7f + 0.05f * static_cast<float>((round * 7 + static_cast<int>(w) * 3) % 11 - 5);
     }},
    {"alike", [](std::size_t w, std::size_t i, int, float) { return (i * 7 + w) % 3 == 0 ? -1.0f : 1.0f; }},
    {"workers_differ", [](std::size_t w, std::size_t, int, float) { return 1.0f + static_cast<float>(w); }},
    {"one_worker", [](std::size_t w, std::size_t, int, float) { return w == 0 ? 1.0f : 0.01f; }},
    {"two_valued", [](std::size_t, std::size_t i, int, float) { return i % 3 == 0 ? 1.0f : 0.7f; }},
    {"one_large", [](std::size_t, std::size_t i, int, float) { return i == 1 ? 30.0f : 1.0f; }},
    {"one_hot", [](std::size_t, std::size_t i, int, float) { return i == 0 ? 1.0f : 0.0f; }},
    {"gaussian", [](std::size_t, std::size_t, int, float draw) { return draw; }},
    {"gaussian_around_1", [](std::size_t, std::size_t, int, float draw) { return 1 + draw; }},
    {"heavy_tailed", [](std::size_t, std::size_t, int, float draw) { return draw * draw * draw; }},
    {"decaying", [](std::size_t, std::size_t, int round,
                    float) { return round < 250 ? std::exp2(-0.1f * static_cast<float>(round)) : 0; }},
    {"switching", [](std::size_t, std::size_t i, int round,
                     float) { return round / 7 % 2 == 0 ? 1.0f + static_cast<float>(i % 2) : 0.0f; }},
};

constexpr std::size_t kDraws = 7;  // sets of Gaussian values, used in turn: to draw is slower than to encode

const std::vector<float>& drawn(std::size_t set) {
  static const std::vector<std::vector<float>> sets = [] {
    std::vector<std::vector<float>> made;
    for (unsigned seed = 0; seed < kDraws; ++seed) made.push_back(gaussian(kUnitElements + 1, seed, 1));
    return made;
  }();
  return sets[set % kDraws];
}

template <typename T>
double root_mean_square(const std::vector<T>& values) {
  double sum = 0;
  for (T value : values) sum += double{value} * double{value};
  return std::sqrt(sum / static_cast<double>(values.size()));
}

struct Run {
  std::size_t workers;
  std::size_t elements;
  ReplyKind reply;
  const Pattern* pattern;
  float threshold;

  std::string text() const {
    const char* const replies[] = {"fp32", "exact", "own-name"};
    return std::string(pattern->name) + ", " + std::to_string(workers) + " workers, " +
           std::to_string(elements) + " elements, " + replies[static_cast<std::size_t>(reply)] + " reply";
  }
};

/// Rounds of one run, checked after each against what is promised.
class Training {
 public:
  Training(const Codec& codec, const Run& run, const Bounds& bounds)
      : codec_(codec), run_(run), bounds_(bounds), residuals_(run.workers, std::vector<float>(run.elements)) {
    if (codec.agrees_scales()) next_.resize(unit_count(run.elements));
  }

  void round(int round) {
    double given = 0;
    double kept = 0;
    for (std::size_t w = 0; w < run_.workers; ++w) {
      fill(w, round);
      given = std::max(given, root_mean_square(grad_));
      payloads_[w] = encoded(codec_, grad_, residuals_[w], scales_, nullptr,
                             {7, static_cast<std::uint32_t>(w), static_cast<std::uint64_t>(round), 0});
      kept = std::max(kept, root_mean_square(residuals_[w]));
    }
    const std::vector<Payload> payloads(payloads_.begin(), payloads_.begin() + run_.workers);
    const auto reply = replied(codec_, payloads, run_.elements, run_.reply, server_);
    codec_.decode_reply(reply, run_.workers, run_.reply, sum_, next_);
    scales_ = next_;
    for (std::size_t i = 0; i < run_.elements; ++i) due_[i] -= double{sum_[i]};
    largest_ = std::max(largest_, given);
    check(round + 1, kept);
  }

 private:
  void fill(std::size_t w, int round) {
    const std::size_t set = static_cast<std::size_t>(round) * run_.workers + w;
    const std::vector<float>& draws = drawn(set);
    // The other way round at every second turn: their mean is 0 for each element, as that of fresh draws is.
    const float sign = set / kDraws % 2 == 0 ? 1.0f : -1.0f;
    for (std::size_t i = 0; i < run_.elements; ++i) {
      const float value = run_.pattern->value(w, i, round, sign * draws[i]);
      grad_[i] = run_.threshold > 0 ? std::clamp(value, -run_.threshold, run_.threshold) : value;
      due_[i] += double{grad_[i]};
    }
  }

  void check(int rounds, double kept) {
    const auto ways = static_cast<double>(run_.workers);
    const double size = run_.threshold > 0 ? double{run_.threshold} : largest_;
    ASSERT_LE(kept, bounds_.worker * size) << "a worker's residual after " << rounds << " rounds";
    ASSERT_LE(root_mean_square(server_), bounds_.server * size * ways)
        << "the server's residual after " << rounds << " rounds";
    if (bounds_.rounds == 0 || rounds < bounds_.rounds) return;
    ASSERT_LE(root_mean_square(due_) / (ways * rounds), 0.1 * size)
        << "what arrived, in the mean of " << rounds << " rounds";
  }

  const Codec& codec_;
  Run run_;
  Bounds bounds_;
  std::vector<std::vector<float>> residuals_;
  std::array<std::vector<std::byte>, 4> payloads_;
  std::vector<float> grad_ = std::vector<float>(run_.elements);
  std::vector<float> server_ = grad_;
  std::vector<float> sum_ = grad_;
  std::vector<double> due_ = std::vector<double>(run_.elements);  ///< given less arrived
  std::vector<UnitScale> scales_;
  std::vector<UnitScale> next_;
  double largest_ = 0;
};

int rounds_asked_for() {
  const char* const text = std::getenv("GRADWIRE_RESIDUAL_ROUNDS");
  return text == nullptr ? 0 : std::atoi(text);
}

void train(const Codec& codec, const Run& run, const Bounds& bounds, int quick_rounds) {
  SCOPED_TRACE(run.text());
  Training training(codec, run, bounds);
  const int asked = rounds_asked_for();
  for (int round = 0; round < (asked > 0 ? asked : quick_rounds); ++round) {
    training.round(round);
    if (testing::Test::HasFatalFailure()) return;
  }
}

/// The promises whose units are as long as they get, or the others.
std::vector<Promise> promises(bool (*wanted)(const Promise&)) {
  std::vector<Promise> chosen;
  std::copy_if(std::begin(kPromises), std::end(kPromises), std::back_inserter(chosen), wanted);
  return chosen;
}

std::string promise_name(const testing::TestParamInfo<Promise>& info) {
  std::string name = info.param.spec;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

class TensorsOfFewElements : public testing::TestWithParam<Promise> {};

TEST_P(TensorsOfFewElements, KeepTheirBounds) {
  const Promise& promise = GetParam();
  const auto codec = make(parse_spec(promise.spec));
  std::vector<std::size_t> shapes{1, 2, 3};
  if (promise.unit < kUnitElements)
    shapes.insert(shapes.end(), {promise.unit - 1, promise.unit, promise.unit + 1});
  for (const Pattern& pattern : kPatterns) {
    for (std::size_t elements : shapes) {
      for (std::size_t workers : {1, 2, 4}) {
        for (ReplyKind reply : reply_kinds(*codec)) {
          train(*codec, {workers, elements, reply, &pattern, promise.threshold}, promise.few, 300);
        }
      }
    }
  }
}

TEST(ResidualBounds, EveryCodecHasOne) {
  for (const CodecEntry& codec : codecs()) {
    const auto is_of_it = [&](const Promise& promise) { return parse_spec(promise.spec).name == codec.name; };
    EXPECT_TRUE(std::ranges::any_of(kPromises, is_of_it)) << codec.name << " has no row in kPromises";
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, TensorsOfFewElements, testing::ValuesIn(kPromises), promise_name);

class LongUnits : public testing::TestWithParam<Promise> {};

TEST_P(LongUnits, KeepTheirBounds) {
  const Promise& promise = GetParam();
  const auto codec = make(parse_spec(promise.spec));
  const bool needs_longer = rounds_asked_for() > 0 && promise.longer.worker > 0;
  const Bounds& bounds = needs_longer ? promise.longer : promise.unit_long;
  for (const Pattern& pattern : kPatterns) {
    for (std::size_t elements : {promise.unit - 1, promise.unit, promise.unit + 1}) {
      train(*codec, {2, elements, ReplyKind::kSame, &pattern, 0}, bounds, 24);
      if (rounds_asked_for() == 0) continue;
      for (ReplyKind reply : reply_kinds(*codec)) {
        train(*codec, {4, elements, reply, &pattern, 0}, bounds, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, LongUnits, testing::ValuesIn(promises([](const Promise& promise) {
                           return promise.unit == kUnitElements;
                         })),
                         promise_name);

}  // namespace
}  // namespace gradwire::compress
