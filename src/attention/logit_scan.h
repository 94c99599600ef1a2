// Passes over a row of logits as large as a vocabulary: the best token, the k best ones,
// the nucleus. No pass sorts the row or copies it. Pure;
// any thread. A NaN is never chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

struct LogitCandidate {
  float logit;
  int32_t token;
};

// Larger logit first, then the lower id: a total order, so that ties cannot depend on the batch.
inline bool better(const LogitCandidate& a, const LogitCandidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The best token, the first of equal ones; logits.size() when all are NaN or -inf.
size_t best_logit(std::span<const float> logits);

// The `count` best of the finite logits, best first, fewer when there are fewer. `out` is replaced and keeps
// its memory.
void best_logits(std::span<const float> logits, size_t count, std::vector<LogitCandidate>& out);

// Where top-p cuts: the last of the finite logits that is needed, best first, for the share `top_p` (below 1)
// of their softmax at `temperature` (above 0). `best` is the largest of them. Sums are good to about 1e-6.
// `scratch` is overwritten and keeps its memory.
LogitCandidate last_of_nucleus(std::span<const float> logits, float best, float temperature, float top_p,
                               std::vector<LogitCandidate>& scratch);

}  // namespace tandem
