// DSpark against plain formulas in float64 that compute everything anew for each block, and its state under
// every way of cutting a text into steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "model/dspark_testing.h"

namespace tandem::test {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// A model whose layers attend to the window alone: its layers and the drafter's stages are the same block.
class Plain {
 public:
  explicit Plain(const DsparkFixture& files) : files_(files), config_(files.config()) {}

  // What the model computes of a text: logits of the last token, and the drafter's row of each.
  Row run(const std::vector<int32_t>& ids) {
    Rows streams = embed(ids);
    Rows taps(ids.size());
    std::vector<Rows> outputs;
    for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      block(name, streams, [&](const Rows& x) {
        const Rows keys = keys_of(name, x, 0);
        return attention(name, x, 0, [&](size_t row) {
          const size_t first = row + 1 < window() ? 0 : row + 1 - window();
          return Rows(keys.begin() + long(first), keys.begin() + long(row) + 1);
        });
      });
      outputs.push_back(streams);
    }
    context_.clear();
    for (size_t row = 0; row < ids.size(); ++row) {
      Row taps_of_row;
      for (const uint32_t layer : config_.draft.target_layers) {
        for (uint32_t i = 0; i < hidden(); ++i) {
          double sum = 0;
          for (uint32_t s = 0; s < num_streams(); ++s) sum += outputs[layer][row][s * hidden() + i];
          taps_of_row.push_back(sum / num_streams());
        }
      }
      context_.push_back(norm(times("mtp.0.main_proj.weight", taps_of_row), "mtp.0.main_norm.weight"));
    }
    return times("head.weight", norm(collapse("", streams.back()), "norm.weight"));
  }

  struct Block {
    std::vector<int32_t> tokens;
    Rows logits;
    Row confidences;
  };
  // Behind the text of the last `run`, whose next token is `said`.
  Block draft(int32_t said) {
    const uint32_t size = config_.draft.block_size;
    const size_t length = context_.size();
    std::vector<int32_t> ids(size, config_.draft.noise_token_id);
    ids[0] = said;
    Rows streams = embed(ids);
    for (uint32_t stage = 0; stage < config_.draft.num_stages; ++stage) {
      const std::string name = "mtp." + std::to_string(stage);
      const size_t first = length - std::min<size_t>(length, window());
      const Rows seen(context_.begin() + long(first), context_.end());
      Rows context = keys_of(name, seen, first);
      block(name, streams, [&](const Rows& x) {
        Rows all = context;
        for (const Row& key : keys_of(name, x, length)) all.push_back(key);
        return attention(name, x, length, [&](size_t) { return all; });
      });
    }
    const std::string last = "mtp." + std::to_string(config_.draft.num_stages - 1) + ".";
    const auto& in = files_.of(last + "markov_head.markov_w1.weight");
    const auto& weights = files_.of(last + "confidence_head.proj.weight").values;
    Block out;
    int32_t before = said;
    for (uint32_t i = 0; i < size; ++i) {
      const Row x = collapse(last, streams[i]);
      Row logits = times("head.weight", norm(x, last + "norm.weight"));
      Row e(in.values.begin() + long(before * in.cols()), in.values.begin() + long((before + 1) * in.cols()));
      const Row added = times(last + "markov_head.markov_w2.weight", e);
      for (size_t v = 0; v < logits.size(); ++v) logits[v] += added[v];
      double score = 0;
      for (size_t c = 0; c < weights.size(); ++c)
        score += double{weights[c]} * (c < x.size() ? x[c] : e[c - x.size()]);
      out.confidences.push_back(sigmoid(score));
      before = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
      out.tokens.push_back(before);
      out.logits.push_back(std::move(logits));
    }
    return out;
  }

 private:
  uint32_t hidden() const { return config_.hidden_size; }
  uint32_t num_streams() const { return config_.hyper_connections.num_streams; }
  size_t window() const { return config_.compressed.window; }

  Row times(const std::string& tensor, const Row& x, size_t first_row = 0, size_t rows = 0) const {
    const auto& w = files_.of(tensor);
    if (rows == 0) rows = w.values.size() / w.cols();
    Row y(rows);
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < w.cols(); ++c) y[r] += double{w.values[(first_row + r) * w.cols() + c]} * x[c];
    return y;
  }
  double rms_factor(const double* x, size_t n) const {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[i] * x[i];
    return 1 / std::sqrt(squares / double(n) + double{config_.rms_norm_eps});
  }
  Row norm(Row x, const std::string& gains) const {
    const double factor = rms_factor(x.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * double{files_.of(gains).values[i]};
    return x;
  }
  Rows embed(const std::vector<int32_t>& ids) const {
    Rows streams;
    const auto& table = files_.of("embed.weight").values;
    for (const int32_t id : ids) {
      Row& row = streams.emplace_back();
      for (uint32_t s = 0; s < num_streams(); ++s)
        row.insert(row.end(), table.begin() + id * long(hidden()), table.begin() + (id + 1) * long(hidden()));
    }
    return streams;
  }
  Row mixes(const std::string& site, const Row& streams) const {
    Row m = times(site + "_fn", streams);
    const double factor = rms_factor(streams.data(), streams.size());
    for (double& value : m) value *= factor;
    return m;
  }
  Row collapse(const std::string& prefix, const Row& streams) const {
    Row m = mixes(prefix + "hc_head", streams), x(hidden());
    for (uint32_t s = 0; s < num_streams(); ++s) {
      const double pre = sigmoid(m[s] * double{files_.of(prefix + "hc_head_scale").values[0]} +
                                 double{files_.of(prefix + "hc_head_base").values[s]}) +
                         epsilon();
      for (uint32_t i = 0; i < hidden(); ++i) x[i] += pre * streams[s * hidden() + i];
    }
    return x;
  }
  double epsilon() const { return double{config_.hyper_connections.epsilon}; }

  // One site: `sublayer` takes the normed rows.
  void site(const std::string& name, const std::string& gains, Rows& streams,
            const std::function<Rows(const Rows&)>& sublayer) const {
    const uint32_t n = num_streams();
    const auto& base = files_.of(name + "_base").values;
    const auto& scale = files_.of(name + "_scale").values;
    Rows xs, posts;
    std::vector<Rows> mixing;
    for (const Row& row : streams) {
      const Row m = mixes(name, row);
      Row x(hidden()), post(n);
      Rows c(n, Row(n));
      for (uint32_t i = 0; i < n; ++i) {
        const double pre = sigmoid(m[i] * double{scale[0]} + double{base[i]}) + epsilon();
        for (uint32_t k = 0; k < hidden(); ++k) x[k] += pre * row[i * hidden() + k];
        post[i] = 2 * sigmoid(m[n + i] * double{scale[1]} + double{base[n + i]});
        double sum = 0;
        for (uint32_t j = 0; j < n; ++j)
          sum += c[i][j] =
              std::exp(m[2 * n + i * n + j] * double{scale[2]} + double{base[2 * n + i * n + j]});
        for (double& value : c[i]) value = value / sum + epsilon();
      }
      const auto columns = [&] {
        for (uint32_t j = 0; j < n; ++j) {
          double sum = epsilon();
          for (uint32_t i = 0; i < n; ++i) sum += c[i][j];
          for (uint32_t i = 0; i < n; ++i) c[i][j] /= sum;
        }
      };
      columns();
      for (uint32_t round = 1; round < config_.hyper_connections.sinkhorn_iterations; ++round) {
        for (Row& each : c) {
          double sum = epsilon();
          for (const double value : each) sum += value;
          for (double& value : each) value /= sum;
        }
        columns();
      }
      xs.push_back(norm(x, gains));
      posts.push_back(post);
      mixing.push_back(c);
    }
    const Rows ys = sublayer(xs);
    for (size_t row = 0; row < streams.size(); ++row) {
      Row next(streams[row].size());
      for (uint32_t j = 0; j < n; ++j) {
        for (uint32_t k = 0; k < hidden(); ++k) {
          double value = posts[row][j] * ys[row][k];
          for (uint32_t i = 0; i < n; ++i) value += mixing[row][i][j] * streams[row][i * hidden() + k];
          next[j * hidden() + k] = value;
        }
      }
      streams[row] = std::move(next);
    }
  }
  void block(const std::string& name, Rows& streams,
             const std::function<Rows(const Rows&)>& attention_of) const {
    site(name + ".hc_attn", name + ".attn_norm.weight", streams, attention_of);
    site(name + ".hc_ffn", name + ".ffn_norm.weight", streams, [&](const Rows& xs) {
      Rows ys;
      for (const Row& x : xs) ys.push_back(experts(name + ".ffn.", x));
      return ys;
    });
  }

  // Turns the last values of a head by the angles of a position.
  void rotate(double* head, double position, double sign) const {
    const uint32_t dim = config_.attention.head_dim, rope = config_.attention.qk_rope_head_dim;
    for (uint32_t i = 0; i < rope / 2; ++i) {
      const double angle = sign * position * std::pow(10000.0, -2.0 * i / rope);
      double &a = head[dim - rope + 2 * i], &b = head[dim - rope + 2 * i + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
  Rows keys_of(const std::string& name, const Rows& xs, size_t first_position) const {
    Rows keys;
    for (size_t row = 0; row < xs.size(); ++row) {
      keys.push_back(norm(times(name + ".attn.wkv.weight", xs[row]), name + ".attn.kv_norm.weight"));
      rotate(keys.back().data(), double(first_position + row), 1);
    }
    return keys;
  }
  Rows attention(const std::string& name, const Rows& xs, size_t first_position,
                 const std::function<Rows(size_t)>& seen) const {
    const std::string attn = name + ".attn.";
    const uint32_t heads = config_.attention.num_heads, dim = config_.attention.head_dim;
    const uint32_t groups = config_.compressed.num_output_groups, lora = config_.compressed.output_lora_rank;
    const auto& sinks = files_.of(attn + "attn_sink").values;
    Rows ys;
    for (size_t row = 0; row < xs.size(); ++row) {
      const Rows keys = seen(row);
      const double position = double(first_position + row);
      Row q = times(attn + "wq_b.weight", norm(times(attn + "wq_a.weight", xs[row]), attn + "q_norm.weight"));
      Row low;
      for (uint32_t h = 0; h < heads; ++h) {
        double* query = q.data() + h * dim;
        const double factor = rms_factor(query, dim);
        for (uint32_t d = 0; d < dim; ++d) query[d] *= factor;
        rotate(query, position, 1);
        double denominator = std::exp(double{sinks[h]});
        Row out(dim);
        for (const Row& key : keys) {
          double score = 0;
          for (uint32_t d = 0; d < dim; ++d) score += query[d] * key[d];
          const double weight = std::exp(score / std::sqrt(double(dim)));
          denominator += weight;
          for (uint32_t d = 0; d < dim; ++d) out[d] += weight * key[d];
        }
        for (uint32_t d = 0; d < dim; ++d) query[d] = out[d] / denominator;
        rotate(query, position, -1);
      }
      for (uint32_t g = 0; g < groups; ++g) {
        const size_t width = heads * dim / groups;
        const Row part(q.begin() + long(g * width), q.begin() + long((g + 1) * width));
        const Row u = times(attn + "wo_a.weight", part, g * lora, lora);
        low.insert(low.end(), u.begin(), u.end());
      }
      ys.push_back(times(attn + "wo_b.weight", low));
    }
    return ys;
  }
  Row mlp(const std::string& name, const Row& x) const {
    Row g = times(name + ".w1.weight", x);
    const Row u = times(name + ".w3.weight", x);
    for (size_t i = 0; i < g.size(); ++i) {
      const double gate = std::min(g[i], 10.0);
      g[i] = gate * sigmoid(gate) * std::clamp(u[i], -10.0, 10.0);
    }
    return times(name + ".w2.weight", g);
  }
  Row experts(const std::string& ffn, const Row& x) const {
    Row scores = times(ffn + "gate.weight", x);
    for (double& score : scores) score = std::sqrt(std::log1p(std::exp(score)));
    std::vector<size_t> order(scores.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = e;
    const auto& bias = files_.of(ffn + "gate.bias").values;
    std::ranges::sort(
        order, [&](size_t a, size_t b) { return scores[a] + double{bias[a]} > scores[b] + double{bias[b]}; });
    double sum = 0;
    for (uint32_t k = 0; k < config_.router.top_k; ++k) sum += scores[order[k]];
    Row y = mlp(ffn + "shared_experts", x);
    for (uint32_t k = 0; k < config_.router.top_k; ++k) {
      const Row part = mlp(ffn + "experts." + std::to_string(order[k]), x);
      for (size_t i = 0; i < y.size(); ++i) y[i] += 1.5 * scores[order[k]] / sum * part[i];
    }
    return y;
  }

  const DsparkFixture& files_;
  const ModelConfig& config_;
  Rows context_;  // of the last run
};

OfflineOptions room(uint32_t tokens) {
  OfflineOptions options;
  options.capacity = options.tokens_per_sequence = tokens;
  return options;
}

std::vector<OfflineRow> rows_from(const std::vector<int32_t>& text, uint32_t begin, uint32_t end) {
  std::vector<OfflineRow> rows;
  for (uint32_t position = begin; position < end; ++position) rows.push_back({0, position, text[position]});
  return rows;
}

double largest_difference(std::span<const float> have, const Row& want) {
  EXPECT_EQ(have.size(), want.size());
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) largest = std::max(largest, std::abs(double{have[i]} - want[i]));
  return largest;
}

// Lengths inside the window, at its end, beyond it, and a first token.
TEST(Dspark, BlocksEqualThePlainFormulas) {
  const DsparkFixture files({.ratios = "0,0,0", .num_hash_layers = 0});
  const TestModel model = files.load(DType::f32);
  const uint32_t vocab = DsparkFixture::kVocab, size = files.config().draft.block_size;
  const auto text = make_sequences(vocab, {31})[0];
  Plain plain(files);
  for (const uint32_t length : {1u, 7u, 12u, 13u, 17u, 30u}) {
    const auto runner = OfflineRunner::create(*model.model, kernels(), room(48)).value();
    const std::span<const float> logits = runner->run(rows_from(text, 0, length)).value();
    const Row want_logits = plain.run({text.begin(), text.begin() + length});
    EXPECT_LE(largest_difference(logits.last(vocab), want_logits), 1e-4) << length;
    const OfflineBlock have = runner->draft_block({0, length - 1, text[length]}).value();
    const Plain::Block want = plain.draft(text[length]);
    EXPECT_EQ(have.tokens, want.tokens) << length;
    for (uint32_t i = 0; i < size; ++i) {
      const std::span<const float> row(have.logits.data() + size_t{i} * vocab, vocab);
      EXPECT_LE(largest_difference(row, want.logits[i]), 1e-4) << length << ", token " << i;
      EXPECT_NEAR(have.confidences[i], want.confidences[i], 1e-5) << length << ", token " << i;
    }
  }
}

bool same(const OfflineBlock& a, const OfflineBlock& b) {
  return a.tokens == b.tokens && a.logits == b.logits && a.confidences == b.confidences;
}

// Chunks, tokens that are taken back, and blocks that are drafted in between leave no trace: a block is that
// of the text, bit for bit, in every layer that the model has.
TEST(Dspark, AnyWayToATextGivesTheSameBlock) {
  const DsparkFixture files;
  const TestModel model = files.load(DType::bf16);
  const auto text = make_sequences(DsparkFixture::kVocab, {151})[0];
  const auto wrong = make_sequences(DsparkFixture::kVocab, {151, 160})[1];
  const auto fresh = [&] { return OfflineRunner::create(*model.model, kernels(), room(168)).value(); };
  std::vector<OfflineBlock> want(text.size());
  for (const uint32_t length : {1u, 5u, 12u, 40u, 127u, 128u, 129u, 150u}) {
    const auto runner = fresh();
    ASSERT_TRUE(runner->run(rows_from(text, 0, length)));
    want[length] = runner->draft_block({0, length - 1, text[length]}).value();
  }
  for (const uint32_t step : {1u, 5u, 30u}) {
    for (const bool astray : {false, true}) {
      const auto runner = fresh();
      for (uint32_t begin = 0; begin < 150; begin += step) {
        const uint32_t end = std::min(begin + step, 150u);
        ASSERT_TRUE(runner->run(rows_from(text, begin, end)));
        const OfflineBlock block = runner->draft_block({0, end - 1, text[end]}).value();
        if (!want[end].tokens.empty()) {
          EXPECT_TRUE(same(block, want[end])) << "length " << end << " by " << step;
        }
        // Drafts that turn out wrong: their rows are computed, and then others in their place.
        if (astray) {
          ASSERT_TRUE(runner->run(rows_from(wrong, end, std::min(end + 6, 160u))));
        }
      }
    }
  }
}

TEST(Dspark, PlacesOfTheGateAndDraftsThatAreHeldChangeNoBit) {
  const DsparkFixture files;
  const TestModel model = files.load(DType::bf16), plain = files.load(DType::bf16, /*drafts=*/false);
  const auto text = make_sequences(DsparkFixture::kVocab, {41})[0];
  OfflineOptions options = room(64);
  const auto one = OfflineRunner::create(*model.model, kernels(), options).value();
  const auto without = OfflineRunner::create(*plain.model, kernels(), options).value();
  options.gate_on_attention = options.shared_on_attention = true;
  const auto other = OfflineRunner::create(*model.model, kernels(), options).value();
  const std::span<const float> logits = one->run(rows_from(text, 0, 40)).value();
  EXPECT_TRUE(std::ranges::equal(logits, other->run(rows_from(text, 0, 40)).value()));
  EXPECT_TRUE(std::ranges::equal(logits, without->run(rows_from(text, 0, 40)).value()));
  EXPECT_TRUE(
      same(one->draft_block({0, 39, text[40]}).value(), other->draft_block({0, 39, text[40]}).value()));
  EXPECT_FALSE(without->draft_block({0, 39, text[40]}));
  EXPECT_FALSE(one->run_drafts(rows_from(text, 0, 1)));
}

}  // namespace
}  // namespace tandem::test
