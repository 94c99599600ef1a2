#include "program/operations_ffn.h"

#include <cassert>
#include <span>
#include <utility>

namespace tandem {
namespace {

ExpertGroup all_rows(const DenseMlpSpec& spec, uint32_t rows) {
  return {&spec.weights->gate_up, &spec.weights->down, spec.identity_rows->data(), spec.identity_rows->data(),
          rows};
}

class Submit final : public Operation {
 public:
  Submit(std::string name, const SubmitSpec& spec)
      : Operation(OperationKind::submit, std::move(name)), spec_(spec) {}

  Status run(StepContext& step) const override {
    FfnRequest request;
    request.layer = spec_.layer;
    request.lane = step.lane;
    request.step = step.batch.step;
    request.row_class = step.batch.row_class;
    request.program = step.batch.program;
    request.rows = step.rows();
    request.capacity = step.capacity;
    request.in = step.view(spec_.in);
    if (is_quantized(spec_.format)) {
      request.in.format = spec_.format;
      request.in.scales = step.data<const std::byte>(spec_.scales);
      request.in.scale_stride = spec_.scales.cols;
    }
    if (!spec_.ids.empty()) {
      const size_t entries = size_t{request.rows} * spec_.ids.cols;
      request.routing = RoutingView{{step.data<const int32_t>(spec_.ids), entries},
                                    {step.data<const float>(spec_.weights), entries},
                                    spec_.ids.cols};
    } else if (spec_.sends_token_ids) {
      request.routing = TokenIds{step.batch.token_ids};
    }
    request.out = step.bytes(spec_.out);
    request.deadline = step.batch.deadline;
    // Before the submit: what it sends may be computed before it returns.
    const Instant begin = now();
    Result<Ticket> ticket = step.port.submit(request);
    if (!ticket) return std::unexpected<Error>(std::move(ticket).error());
    step.exchange.state = FfnExchange::State::submitted;
    step.exchange.ticket = *ticket;
    step.exchange.submitted = begin;
    ++step.stats.submits;
    return {};
  }

 private:
  SubmitSpec spec_;
};

class Collect final : public Operation {
 public:
  explicit Collect(std::string name) : Operation(OperationKind::collect, std::move(name)) {}

  Status run(StepContext& step) const override {
    if (step.exchange.state == FfnExchange::State::submitted) return make_error(ErrorCode::would_block, {});
    assert(step.exchange.state == FfnExchange::State::completed);
    step.exchange.state = FfnExchange::State::idle;
    Status status = std::move(step.exchange.status);
    // A far side that reports would_block would make this operation run again with nothing to wait for.
    if (!status && status.error().code == ErrorCode::would_block) {
      return make_error(ErrorCode::internal, name() + ": the experts completed a request with would_block");
    }
    return status;
  }
};

}  // namespace

OperationPtr dense_gate_up(std::string name, const DenseMlpSpec& spec) {
  assert(spec.weights != nullptr && !spec.weights->empty() && spec.identity_rows != nullptr);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    const ExpertGroup group = all_rows(spec, step.rows());
    GroupedGateUpArgs args;
    args.groups = {&group, 1};
    args.in = step.view(spec.in, 0, spec.in_scales);
    args.intermediate = step.out(spec.intermediate);
    step.kernels.run(step.kernels.table().grouped_gate_up, args);
    return {};
  });
}

OperationPtr dense_down(std::string name, const DenseMlpSpec& spec) {
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    const ExpertGroup group = all_rows(spec, step.rows());
    GroupedDownArgs args;
    args.groups = {&group, 1};
    args.intermediate = step.view(spec.intermediate, 0, spec.intermediate_scales);
    args.scale_block_cols = spec.scale_block_cols;
    args.out = step.data<float>(spec.out);
    args.out_stride = spec.out.cols;
    step.kernels.run(step.kernels.table().grouped_down, args);
    return {};
  });
}

OperationPtr route(std::string name, MoeBlock& block, LayerIndex layer, const Tensor& in, const Tensor& ids,
                   const Tensor& weights) {
  assert(ids.dtype == DType::i32 && weights.dtype == DType::f32 && ids.cols == weights.cols);
  return make_compute(std::move(name), [&block, layer, in, ids, weights](StepContext& step) -> Status {
    const size_t entries = size_t{step.rows()} * ids.cols;
    return block.route_rows(layer, step.rows(), step.view(in), {step.data<int32_t>(ids), entries},
                            {step.data<float>(weights), entries}, step.batch.token_ids);
  });
}

OperationPtr shared_experts(std::string name, MoeBlock& block, LayerIndex layer, const Tensor& in,
                            const Tensor& out) {
  return make_compute(std::move(name), [&block, layer, in, out](StepContext& step) -> Status {
    return block.run_shared(layer, step.rows(), step.view(in), step.bytes(out));
  });
}

OperationPtr quantize(std::string name, const QuantizeSpec& spec) {
  assert(is_quantized(spec.format) && spec.in_column + spec.values.cols <= spec.in.cols);
  assert(spec.block_cols != 0 || spec.scales.cols == scale_cols(spec.format, spec.values.cols));
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    QuantizeArgs args;
    args.in = step.view(spec.in, spec.in_column);
    args.format = spec.format;
    args.values = step.data<std::byte>(spec.values);
    args.scales = step.data<std::byte>(spec.scales);
    args.rows = step.rows(spec.in);
    args.cols = spec.values.cols;
    args.block_cols = spec.block_cols;
    step.kernels.run(step.kernels.table().quantize_rows, args);
    return {};
  });
}

OperationPtr submit(std::string name, const SubmitSpec& spec) {
  assert(spec.ids.empty() || !spec.sends_token_ids);
  assert(is_quantized(spec.format) != spec.scales.empty());
  return std::make_unique<Submit>(std::move(name), spec);
}

OperationPtr collect(std::string name) {
  return std::make_unique<Collect>(std::move(name));
}

}  // namespace tandem
