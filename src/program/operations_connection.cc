#include "program/operations_connection.h"

#include <cassert>
#include <utility>

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

}  // namespace tandem
