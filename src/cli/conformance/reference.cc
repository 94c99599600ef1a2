#include "cli/conformance/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/buffer.h"
#include "cli/compute.h"
#include "cli/model_folder.h"
#include "model/model.h"

namespace tandem::conformance {
namespace {

constexpr uint32_t kRows = 5;

// The experts of a model, as the rank says that it computes them.
class Reference {
 public:
  static Result<std::unique_ptr<Reference>> load(const std::string& model, int threads,
                                                 const RankFacts& facts) {
    Settings settings;
    settings.model = model;
    settings.engine.threads = threads;
    settings.engine.deterministic = facts.deterministic;
    settings.engine.compute_dtype = facts.value("compute_dtype") == "f32" ? "float32" : "bf16";
    settings.engine.balanced_routing = facts.value("routing") == "balanced";
    const std::string weights = facts.value("weights");
    settings.engine.weights = weights == "as stored" ? "auto" : weights;
    settings.afd.compute_gate_on_attention = facts.gate_on_attention;
    settings.afd.compute_shared_experts_on_attention =
        facts.value("shared_experts") == "attention" ? "true" : "false";
    settings.afd.send_token_ids = facts.token_ids;
    if (facts.activation_format != ActivationFormat::plain)
      settings.afd.activation_dtype = facts.value("activation_dtype");
    auto reference = std::make_unique<Reference>();
    TANDEM_ASSIGN(reference->config_, read_model_config(model));
    TANDEM_ASSIGN(reference->compute_, Compute::create(settings, threads_for(settings, 2)));
    const Placement placement = Placement::from(settings);
    TANDEM_ASSIGN(const SplitSettings own,
                  split_settings(model, reference->config_, placement, reference->compute_->table()));
    for (const Setting& setting : list_settings(own)) {
      if (setting.key == "model_fingerprint" && setting.value != facts.value(setting.key))
        return make_error(ErrorCode::invalid_argument,
                          model + " is another model than the rank's: " + setting.value + " here, " +
                              facts.value(setting.key) + " there");
    }
    LoadOptions load;
    load.compute_dtype = placement.compute_dtype;
    load.storage = placement.weights;
    load.nodes = &reference->compute_->nodes();
    load.held.attention = false;
    load.held.router = !placement.gate_on_attention;
    load.held.shared_experts = !placement.shared_experts_on_attention;
    TANDEM_ASSIGN(reference->weights_,
                  load_model_weights(model, reference->config_, reference->compute_->table(),
                                     reference->compute_->pool(), load));
    TANDEM_ASSIGN(reference->block_, make_moe_block(reference->config_, reference->weights_, placement,
                                                    /*on_attention=*/false, reference->compute_->runner()));
    return reference;
  }

  // The output of a request's rows, as bytes of the reply's dtype.
  Result<Bytes> run(RawFrame request, const RankFacts& facts) {
    const uint32_t rows = request.header.rows;
    const RawPayload& activation = request.payloads.front();
    const RawPayload* scale = request.find(PayloadRole::activation_scale);
    TANDEM_ASSIGN(OwnedBuffer in, OwnedBuffer::allocate(activation.data.size()));
    std::memcpy(in.data(), activation.data.data(), activation.data.size());
    TANDEM_ASSIGN(OwnedBuffer out,
                  OwnedBuffer::allocate(dtype_bytes(facts.reply_dtype, size_t{rows} * facts.hidden_size)));
    MoeRequest moe;
    moe.layer = request.header.layer;
    moe.rows = rows;
    moe.in = {.dtype = activation.dtype,
              .data = in.data(),
              .row_stride = facts.hidden_size,
              .format = facts.activation_format,
              .scales = scale != nullptr ? scale->data.data() : nullptr,
              .scale_stride = scale != nullptr ? scale->cols : 0};
    std::vector<int32_t> ids;
    std::vector<float> weights;
    if (const RawPayload* payload = request.find(PayloadRole::expert_ids); payload != nullptr) {
      copy(*payload, ids);
      copy(*request.find(PayloadRole::expert_weights), weights);
      moe.routing = RoutingView{ids, weights, facts.top_k};
    } else if (const RawPayload* tokens = request.find(PayloadRole::token_ids); tokens != nullptr) {
      copy(*tokens, ids);
      moe.routing = TokenIds{ids};
    }
    const size_t bytes = dtype_bytes(facts.reply_dtype, size_t{rows} * facts.hidden_size);
    moe.out = {out.data(), bytes, MemorySpace::host};
    TANDEM_TRY(block_->run(moe));
    return Bytes(out.data(), out.data() + bytes);
  }

 private:
  template <class T>
  static void copy(const RawPayload& from, std::vector<T>& to) {
    to.resize(from.data.size() / sizeof(T));
    std::memcpy(to.data(), from.data.data(), from.data.size());
  }

  ModelConfig config_;
  std::unique_ptr<Compute> compute_;
  ModelWeights weights_;
  std::unique_ptr<MoeBlock> block_;
};

RequestShape shape_of(uint16_t layer) {
  RequestShape shape;
  for (uint32_t row = 0; row < kRows; ++row) shape.rows.push_back(1000 + row);
  shape.layer = layer;
  return shape;
}

Status compare(Lab& lab, const Bytes& wanted, uint16_t layer) {
  RawFrame request = lab.bystander->request(shape_of(layer));
  request.header.layer = layer;  // 0 too
  TANDEM_TRY(lab.bystander->send(request));
  TANDEM_ASSIGN(const Received reply, expect_reply(*lab.bystander, request));
  const std::vector<double> ours = values_of(wanted, lab.facts), theirs = output_values(reply, lab.facts);
  // Other kernels sum in another order: a unit of the last place of the row's largest value, and of what is
  // summed up to it. Deterministic sums are equal where numerics_id is; here, within their grid.
  const double step = lab.facts.reply_dtype == DType::bf16 ? 1.0 / 64 : 1.0 / (1 << 12);
  for (uint32_t row = 0; row < kRows; ++row) {
    double largest = 0, most = 0;
    for (size_t i = row * size_t{lab.facts.hidden_size}; i < (row + 1) * size_t{lab.facts.hidden_size}; ++i) {
      largest = std::max(largest, std::abs(ours[i]));
      most = std::max(most, std::abs(ours[i] - theirs[i]));
    }
    if (!(most <= step * largest)) {
      return mismatch(
          fmt::format("row {} of layer {} within {:g} of the reference", row, layer, step * largest),
          fmt::format("a difference of {:g}", most));
    }
  }
  return {};
}

}  // namespace

Case reference_case(const std::string& model, int threads) {
  return {"numbers.reference", "rows of every layer are those of the model in " + model,
          [model, threads](Lab& lab) -> Status {
            // Before a session waits for it: loading and computing take longer than a silence may.
            TANDEM_TRY(lab.bystander->send(lab.bystander->plain(FrameKind::goodbye), Channel::control));
            TANDEM_ASSIGN(const std::unique_ptr<Reference> reference,
                          Reference::load(model, threads, lab.facts));
            std::vector<Bytes> wanted;
            for (const uint16_t layer : lab.facts.moe_layers) {
              RawFrame request = make_request(lab.facts, shape_of(layer));
              request.header.layer = layer;
              TANDEM_ASSIGN(Bytes rows, reference->run(std::move(request), lab.facts));
              wanted.push_back(std::move(rows));
            }
            TANDEM_ASSIGN(lab.bystander, Client::serving(lab));
            for (size_t i = 0; i < wanted.size(); ++i)
              TANDEM_TRY(compare(lab, wanted[i], lab.facts.moe_layers[i]));
            return {};
          }};
}

}  // namespace tandem::conformance
