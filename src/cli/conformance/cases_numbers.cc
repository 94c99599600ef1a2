// What the rank computes (docs/protocol.md, sections 4 and 5): rows have the same bits in whatever company
// they travel, and parts of a row add up to the row. No weights are needed to see this; run.h compares with a
// model where one is given.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

Result<Received> compute(Client& client, const std::vector<uint32_t>& rows,
                         const std::function<void(RawFrame&)>& change = {}) {
  RequestShape shape;
  shape.rows = rows;
  RawFrame request = client.request(shape);
  if (change) change(request);
  TANDEM_TRY(client.send(request));
  return expect_reply(client, request);
}

Bytes row_bytes(const Received& reply, const RankFacts& facts, size_t row) {
  const Bytes all = output_bytes(reply);
  const size_t size = dtype_bytes(facts.reply_dtype, facts.hidden_size);
  return {all.begin() + static_cast<std::ptrdiff_t>(row * size),
          all.begin() + static_cast<std::ptrdiff_t>((row + 1) * size)};
}

Status same(const Bytes& one, const Bytes& other, const std::string& what) {
  if (one == other) return {};
  size_t bytes = 0;
  for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) bytes += one[i] != other[i] ? 1 : 0;
  return mismatch(what + ": the same bits", fmt::format("{} other bytes", bytes));
}

Status finite(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received reply, compute(*client, {1, 2, 3, 4}));
  const std::vector<double> values = output_values(reply, lab.facts);
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); }))
    return mismatch("finite numbers for rows between -1 and 1", "others");
  if (std::ranges::all_of(values, [](double value) { return value == 0; }))
    return mismatch("rows of experts", "zeros");
  return {};
}

Status repeat(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received one, compute(*client, {1, 2, 3}));
  TANDEM_ASSIGN(const Received two, compute(*client, {1, 2, 3}));
  return same(output_bytes(one), output_bytes(two), "the same rows twice");
}

Status company(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  std::vector<uint32_t> rows(64);
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = i + 1;
  TANDEM_ASSIGN(const Received together, compute(*client, rows));
  for (const uint32_t row : {0u, 17u, 63u}) {
    TANDEM_ASSIGN(const Received alone, compute(*client, {rows[row]}));
    TANDEM_TRY(same(row_bytes(together, lab.facts, row), output_bytes(alone),
                    fmt::format("row {} of 64 and alone", row)));
  }
  return {};
}

Status order(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received one, compute(*client, {1, 2, 3}));
  // No rotation of the first: who turns all rows by one place would turn these alike.
  TANDEM_ASSIGN(const Received two, compute(*client, {2, 1, 3}));
  const auto of = [&](const Received& reply, size_t row) { return row_bytes(reply, lab.facts, row); };
  TANDEM_TRY(same(of(one, 0), of(two, 1), "row 1 first and second"));
  TANDEM_TRY(same(of(one, 1), of(two, 0), "row 2 second and first"));
  TANDEM_TRY(same(of(one, 2), of(two, 2), "row 3 third and third"));
  if (of(one, 0) == of(one, 1)) return mismatch("other rows for other rows", "equal ones");
  return {};
}

Status classes(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received decode, compute(*client, {1, 2, 3}));
  TANDEM_ASSIGN(const Received prefill,
                compute(*client, {1, 2, 3}, [](RawFrame& f) { f.header.row_class = 2; }));
  return same(output_bytes(decode), output_bytes(prefill), "decode and prefill");
}

Status two_clients(Lab& lab) {
  TANDEM_ASSIGN(const auto one, Client::serving(lab));
  TANDEM_ASSIGN(const auto two, Client::serving(lab));
  TANDEM_ASSIGN(const Received alone, compute(*one, {1, 2, 3}));
  const RawFrame first = one->request({.rows = {1, 2, 3}});
  const RawFrame second = two->request({.rows = {4, 1, 5, 6}});
  TANDEM_TRY(two->send(second));
  TANDEM_TRY(one->send(first));
  TANDEM_ASSIGN(const Received mine, expect_reply(*one, first));
  TANDEM_ASSIGN(const Received theirs, expect_reply(*two, second));
  TANDEM_TRY(same(output_bytes(alone), output_bytes(mine), "alone and beside another client"));
  return same(row_bytes(alone, lab.facts, 0), row_bytes(theirs, lab.facts, 1), "the same row of two clients");
}

Status layers(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const uint16_t last = lab.facts.moe_layers.back();
  TANDEM_ASSIGN(const Received one, compute(*client, {1}));
  TANDEM_ASSIGN(const Received two, compute(*client, {1}, [last](RawFrame& f) { f.header.layer = last; }));
  if (output_bytes(one) == output_bytes(two)) return mismatch("another result of another layer", "the same");
  return {};
}

Status not_a_number(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received clean, compute(*client, {1, 2, 3}));
  RawFrame request = client->request({.rows = {1, 2, 3}});
  RawPayload& rows = request.payloads.front();  // the second row begins with NaN
  const size_t at = dtype_bytes(rows.dtype, rows.cols);
  const size_t size = dtype_bytes(rows.dtype, 1);
  for (size_t i = 0; i < size; ++i) rows.data[at + i] = i + 1 == size ? std::byte{0x7f} : std::byte{0xff};
  TANDEM_TRY(client->send(request));
  // A router may find no expert for such a row, and say so.
  if (!lab.facts.gate_on_attention) {
    const auto refused = client->frame();
    if (!refused) return mismatch("a reply", refused.error().message);
    if (refused->code() != 0) return {};
    TANDEM_TRY(client->send(request));
  }
  TANDEM_ASSIGN(const Received beside, expect_reply(*client, request));
  TANDEM_TRY(
      same(row_bytes(clean, lab.facts, 0), row_bytes(beside, lab.facts, 0), "a row above one with NaN"));
  return same(row_bytes(clean, lab.facts, 2), row_bytes(beside, lab.facts, 2), "a row below one with NaN");
}

// ---- with the routing in the request: parts of a row ----

std::function<void(RawFrame&)> part(const RankFacts& facts, int slot, float factor, bool shared) {
  return [=, &facts](RawFrame& f) {
    f.header.flags = kFramePartial;
    RawPayload& weights = *f.find(PayloadRole::expert_weights);
    std::vector<float> values(weights.data.size() / sizeof(float));
    std::memcpy(values.data(), weights.data.data(), weights.data.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const bool kept = slot < 0 || static_cast<int>(i % facts.top_k) == slot;
      values[i] = kept ? values[i] * factor : 0;
    }
    weights.data = bytes_of(values);
    if (shared)
      f.payloads.push_back(
          {PayloadRole::shared_rows, DType::u8, f.header.rows, 1, Bytes(f.header.rows, std::byte{1})});
  };
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// `summands` roundings of bf16, each half a unit of the last of 8 bits.
Status close(const std::vector<double>& one, const std::vector<double>& other, const RankFacts& facts,
             double summands, const std::string& what) {
  const double step = facts.reply_dtype == DType::bf16 ? 1.0 / 256 : 1.0 / (1 << 20);
  const double bound = summands * step * std::max(largest(one), largest(other));
  double most = 0;
  for (size_t i = 0; i < one.size(); ++i) most = std::max(most, std::abs(one[i] - other[i]));
  if (most <= bound) return {};
  return mismatch(fmt::format("{}: equal within {:g}", what, bound),
                  fmt::format("a difference of {:g}", most));
}

Status doubled(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received one, compute(*client, {1, 2, 3}, part(lab.facts, -1, 1, false)));
  TANDEM_ASSIGN(const Received two, compute(*client, {1, 2, 3}, part(lab.facts, -1, 2, false)));
  std::vector<double> twice = output_values(one, lab.facts);
  for (double& value : twice) value *= 2;
  return close(twice, output_values(two, lab.facts), lab.facts, 2, "twice the weights, twice the rows");
}

Status slots_add_up(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received whole, compute(*client, {1, 2, 3}));
  std::vector<double> sum(size_t{3} * lab.facts.hidden_size);
  double most = 0;
  for (uint32_t slot = 0; slot < lab.facts.top_k; ++slot) {
    const bool shared = lab.facts.shared_on_ffn && slot == 0;
    TANDEM_ASSIGN(const Received one,
                  compute(*client, {1, 2, 3}, part(lab.facts, static_cast<int>(slot), 1, shared)));
    const std::vector<double> values = output_values(one, lab.facts);
    most = std::max(most, largest(values));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  // Parts may be larger than their sum.
  std::vector<double> scale = output_values(whole, lab.facts);
  const double room = std::max(1.0, most / std::max(largest(scale), 1e-30));
  return close(scale, sum, lab.facts, (lab.facts.top_k + 2) * room, "a row and the sum of its parts");
}

Status slots_in_any_order(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  TANDEM_ASSIGN(const Received one, compute(*client, {1, 2}));
  const uint32_t top_k = lab.facts.top_k;
  TANDEM_ASSIGN(const Received two, compute(*client, {1, 2}, [top_k](RawFrame& f) {
                  for (const PayloadRole role : {PayloadRole::expert_ids, PayloadRole::expert_weights}) {
                    Bytes& data = f.find(role)->data;
                    const Bytes before = data;
                    for (uint32_t i = 0; i < 2 * top_k; ++i) {
                      const uint32_t mirrored = i / top_k * top_k + (top_k - 1 - i % top_k);
                      std::copy_n(before.begin() + mirrored * 4, 4, data.begin() + i * 4);
                    }
                  }
                }));
  // Who rounds after each expert rounds other sums.
  return close(output_values(one, lab.facts), output_values(two, lab.facts), lab.facts, top_k + 2,
               "slots in reverse");
}

}  // namespace

void add_number_cases(std::vector<Case>& cases) {
  cases.push_back({"numbers.finite", "finite numbers that are not all 0", finite});
  cases.push_back({"numbers.repeat", "the same rows give the same bits", repeat});
  cases.push_back({"numbers.company", "a row has the same bits alone and among 64", company});
  cases.push_back({"numbers.order", "rows come back in their order, whatever it is", order});
  cases.push_back({"numbers.classes", "decode and prefill have the same bits", classes});
  cases.push_back({"numbers.two_clients", "another client's rows change no bit", two_clients});
  Case of_layers{"numbers.layers", "another layer has other experts", layers};
  of_layers.skip = [](const RankFacts& facts) {
    return std::string(facts.moe_layers.size() < 2 ? "one layer" : "");
  };
  cases.push_back(std::move(of_layers));
  Case nan{"numbers.not_a_number", "a row with NaN leaves other rows alone", not_a_number};
  nan.skip = [](const RankFacts& facts) {
    return std::string(facts.activation_format == ActivationFormat::plain ? "" : "rounded rows");
  };
  cases.push_back(std::move(nan));
  for (Case one : {Case{"numbers.doubled", "twice the weights give twice the part", doubled},
                   Case{"numbers.slots_add_up", "a row is the sum of its parts", slots_add_up},
                   Case{"numbers.slots_in_any_order", "the order of a row's slots does not matter",
                        slots_in_any_order}}) {
    one.skip = without_routing;
    cases.push_back(std::move(one));
  }
}

}  // namespace tandem::conformance
