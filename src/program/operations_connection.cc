#include "program/operations_connection.h"

#include <cassert>
#include <utility>

#include "base/bf16.h"

namespace tandem {

OperationPtr connection_mix(std::string name, const ConnectionMixSpec& spec) {
  assert(spec.weights.size() == size_t{spec.streams.cols} * spec.mixes.cols);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    ConnectionMixArgs args;
    args.streams = step.data<float>(spec.streams);
    args.weights = spec.weights.data();
    args.out = step.data<float>(spec.mixes);
    args.rows = step.rows(spec.streams);
    args.cols = spec.streams.cols;
    args.outs = spec.mixes.cols;
    args.epsilon = spec.epsilon;
    if (args.rows != 0) step.kernels.run(step.kernels.table().connection_mix, args);
    return {};
  });
}

OperationPtr connection_collapse(std::string name, const ConnectionCollapseSpec& spec) {
  assert(spec.streams.cols == spec.num_streams * spec.out.cols && spec.base.size() == spec.mixes.cols);
  assert(spec.scale.size() == (spec.connection.empty() ? 1u : 3u));
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    ConnectionCollapseArgs args;
    args.streams = step.data<float>(spec.streams);
    args.mixes = step.data<float>(spec.mixes);
    args.base = spec.base.data();
    args.scale = spec.scale.data();
    args.x = step.data<float>(spec.out);
    args.connection = spec.connection.empty() ? nullptr : step.data<float>(spec.connection);
    args.rows = step.rows(spec.streams);
    args.hidden = spec.out.cols;
    args.num_streams = spec.num_streams;
    args.iterations = spec.iterations;
    args.epsilon = spec.epsilon;
    args.round_to_bf16 = spec.round_to_bf16;
    if (args.rows != 0) step.kernels.run(step.kernels.table().connection_collapse, args);
    return {};
  });
}

OperationPtr connection_expand(std::string name, const ConnectionExpandSpec& spec) {
  assert(spec.streams.cols == spec.num_streams * spec.first.cols);
  assert(spec.second.empty() || spec.second.dtype == spec.first.dtype);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    ConnectionExpandArgs args;
    args.streams = step.data<float>(spec.streams);
    args.connection = step.data<float>(spec.connection);
    args.dtype = spec.first.dtype;
    args.first = step.data<std::byte>(spec.first);
    args.second = spec.second.empty() ? nullptr : step.data<std::byte>(spec.second);
    args.rows = step.rows(spec.streams);
    args.hidden = spec.first.cols;
    args.num_streams = spec.num_streams;
    args.round_to_bf16 = spec.round_to_bf16;
    step.kernels.run(step.kernels.table().connection_expand, args);
    return {};
  });
}

OperationPtr stream_mean(std::string name, const StreamMeanSpec& spec) {
  assert(spec.out.dtype == DType::f32 || spec.out.dtype == DType::bf16);
  assert(spec.streams.cols % spec.num_streams == 0 &&
         spec.out_column + spec.streams.cols / spec.num_streams <= spec.out.cols);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    const uint32_t hidden = spec.streams.cols / spec.num_streams;
    step.kernels.pool().run(step.rows(spec.streams), [&](size_t row, int) {
      const float* streams = step.data<float>(spec.streams) + row * spec.streams.cols;
      const ActivationOut out = step.out(spec.out, spec.out_column);
      for (uint32_t i = 0; i < hidden; ++i) {
        float sum = 0;
        for (uint32_t stream = 0; stream < spec.num_streams; ++stream)
          sum += streams[size_t{stream} * hidden + i];
        const float mean = sum / static_cast<float>(spec.num_streams);
        if (out.dtype == DType::f32) {
          static_cast<float*>(out.data)[row * out.row_stride + i] = mean;
        } else {
          static_cast<bf16*>(out.data)[row * out.row_stride + i] = to_bf16(mean);
        }
      }
    });
    return {};
  });
}

}  // namespace tandem
