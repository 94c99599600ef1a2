#include "attention/logit_scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace tandem {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity(), kLowest = -kInfinite;

// Logits looked at together: enough chains that the comparison's latency is hidden, few enough that a block
// that holds something to keep is searched in no time.
constexpr size_t kBlock = 64;

// Vectors spelled out: from loops over an array the compiler makes a chain of scalar moves, four times as
// slow.
using Lanes [[gnu::vector_size(16)]] = float;

// Lane by lane. A NaN in x leaves m.
void raise(Lanes& m, Lanes x) {
  m = x > m ? x : m;
}

// Of kBlock logits.
float block_maximum(const float* logits) {
  std::array<Lanes, 4> most;
  most.fill(Lanes{kLowest, kLowest, kLowest, kLowest});
  constexpr size_t kWidth = sizeof(Lanes) / sizeof(float);
  for (size_t i = 0; i < kBlock; i += most.size() * kWidth) {
    for (size_t v = 0; v < most.size(); ++v) {
      Lanes x;
      std::memcpy(&x, logits + i + v * kWidth, sizeof x);
      raise(most[v], x);
    }
  }
  raise(most[0], most[1]);
  raise(most[2], most[3]);
  raise(most[0], most[2]);
  return std::max({most[0][0], most[0][1], most[0][2], most[0][3]});
}

// The nucleus is looked for in buckets of the logits below the best one, in units of the temperature: 64 a
// unit, so that one bucket of a flat distribution over a large vocabulary holds some hundred; beyond 32 units
// all of them together weigh nothing, and share the last.
constexpr float kBucketsPerUnit = 64;
constexpr int32_t kBuckets = 2048;

// e^-x for x >= 0 to about 2^-22, by its series around the next power of two; whatever is below 2^-126 counts
// as that. In float32 without a branch, so that a loop of it becomes vector instructions.
float exp_of_minus(float x) {
  const float scaled = x * std::numbers::log2e_v<float>;
  const float y = scaled < 126.0f ? scaled : 126.0f;
  // y is not below 0, and either neighbour will do where it lies between two: lround is a call.
  const int32_t power = static_cast<int32_t>(y + 0.5f);  // NOLINT(bugprone-incorrect-roundings)
  const float z = (static_cast<float>(power) - y) * std::numbers::ln2_v<float>;  // in -0.35..0.35
  const float series =
      1 + z * (1 + z * (1.0f / 2 + z * (1.0f / 6 + z * (1.0f / 24 + z * (1.0f / 120 + z * (1.0f / 720))))));
  return series * std::bit_cast<float>((127 - power) << 23);
}

// Calls visit(first, end) for each block that holds a logit above `bound()`, in order.
template <class Bound, class Visit>
void for_blocks_above(std::span<const float> logits, const Bound& bound, const Visit& visit) {
  size_t first = 0;
  for (; first + kBlock <= logits.size(); first += kBlock) {
    if (block_maximum(logits.data() + first) > bound()) visit(first, first + kBlock);
  }
  if (first < logits.size()) visit(first, logits.size());
}

}  // namespace

size_t best_logit(std::span<const float> logits) {
  size_t best = logits.size();
  float most = kLowest;
  for_blocks_above(
      logits, [&] { return most; },
      [&](size_t first, size_t end) {
        for (size_t i = first; i < end; ++i) {
          if (!(logits[i] > most)) continue;
          most = logits[i];
          best = i;
        }
      });
  return best;
}

void best_logits(std::span<const float> logits, size_t count, std::vector<LogitCandidate>& out) {
  out.clear();
  if (count == 0) return;
  // A heap whose front is the worst kept. Later ids lose to equal logits, so what does not beat the front's
  // logit stays out.
  float bar = kLowest;
  for_blocks_above(
      logits, [&] { return bar; },
      [&](size_t first, size_t end) {
        for (size_t i = first; i < end; ++i) {
          if (!(logits[i] > bar) || !std::isfinite(logits[i])) continue;
          if (out.size() == count) {
            std::pop_heap(out.begin(), out.end(), better);
            out.pop_back();
          }
          out.push_back({logits[i], static_cast<int32_t>(i)});
          std::push_heap(out.begin(), out.end(), better);
          if (out.size() == count) bar = out.front().logit;
        }
      });
  std::sort_heap(out.begin(), out.end(), better);
}

LogitCandidate last_of_nucleus(std::span<const float> logits, float best, float temperature, float top_p,
                               std::vector<LogitCandidate>& scratch) {
  const float per_unit = 1 / temperature;
  const auto below = [&](float logit) { return (best - logit) * per_unit; };  // NaN of a NaN
  // What is not finite gets a bucket of its own behind the others.
  const auto bucket_of = [&](float logit) {
    const float x = below(logit) * kBucketsPerUnit;
    const int32_t bucket = static_cast<int32_t>(x < kBuckets - 1 ? x : kBuckets - 1);
    return std::abs(logit) < kInfinite ? bucket : kBuckets;
  };
  std::array<double, kBuckets + 1> sums{};
  std::array<float, kBlock> weights;
  std::array<int32_t, kBlock> buckets;
  const auto fill = [&](size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) weights[i] = exp_of_minus(below(logits[first + i]));
    for (size_t i = 0; i < count; ++i) buckets[i] = bucket_of(logits[first + i]);
  };
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t count = std::min(kBlock, logits.size() - first);
    fill(first, count);
    for (size_t i = 0; i < count; ++i) sums[static_cast<size_t>(buckets[i])] += weights[i];
  }
  sums[kBuckets] = 0;
  double total = 0;
  for (const double sum : sums) total += sum;

  const double wanted = top_p * total;
  size_t bucket = 0;
  double sum = 0;
  for (; bucket + 1 < kBuckets && sum + sums[bucket] < wanted; ++bucket) sum += sums[bucket];
  scratch.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (bucket_of(logits[i]) == static_cast<int32_t>(bucket)) {
      scratch.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
  std::sort(scratch.begin(), scratch.end(), better);
  for (const LogitCandidate& candidate : scratch) {
    sum += exp_of_minus(below(candidate.logit));
    if (sum >= wanted) return candidate;
  }
  // Rounding kept the last bucket's sum below what is wanted: everything.
  return scratch.empty() ? LogitCandidate{kLowest, 0} : scratch.back();
}

}  // namespace tandem
