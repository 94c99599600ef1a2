#include "program/operations_basic.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/bf16.h"

namespace tandem {

OperationPtr embedding(std::string name, const EmbeddingSpec& spec) {
  assert(spec.dtype == DType::bf16 || spec.dtype == DType::f32);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    const size_t hidden = spec.out.cols / spec.copies;
    step.kernels.pool().run(step.rows(), [&](size_t row, int) {
      float* out = step.data<float>(spec.out) + row * spec.out.cols;
      const size_t token = static_cast<size_t>(step.batch.token_ids[row]);
      if (spec.dtype == DType::bf16) {
        const bf16* in = static_cast<const bf16*>(spec.table) + token * hidden;
        for (size_t i = 0; i < hidden; ++i) out[i] = to_float(in[i]) * spec.multiplier;
      } else {
        const float* in = static_cast<const float*>(spec.table) + token * hidden;
        for (size_t i = 0; i < hidden; ++i) out[i] = in[i] * spec.multiplier;
      }
      for (uint32_t copy = 1; copy < spec.copies; ++copy)
        std::memcpy(out + copy * hidden, out, hidden * sizeof(float));
    });
    return {};
  });
}

OperationPtr rms_norm(std::string name, const RmsNormSpec& spec) {
  assert((spec.weight.empty() || spec.weight.size() == spec.cols) && spec.in.dtype == DType::f32);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    RmsNormArgs args;
    args.in = step.data<float>(spec.in, spec.in_column);
    args.in_outer_stride = spec.in.cols;
    args.in_inner_stride = spec.cols;
    args.out = step.out(spec.out, spec.out_column);
    args.out_inner_stride = spec.cols;
    args.weight = spec.weight.empty() ? nullptr : spec.weight.data();
    args.outer = step.rows(spec.in);
    args.inner = spec.heads;
    args.cols = spec.cols;
    args.epsilon = spec.epsilon;
    if (args.outer != 0) step.kernels.run(step.kernels.table().rms_norm, args);
    return {};
  });
}

OperationPtr matmul(std::string name, const MatmulSpec& spec) {
  assert(!spec.weights.empty());
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    MatmulArgs args;
    args.weights = spec.weights;
    args.in = step.view(spec.in, spec.in_column, spec.in_scales);
    args.in_batch_stride = spec.in_batch_stride;
    args.out = step.out(spec.out);
    args.out_batch_stride = spec.out_batch_stride;
    args.rows = step.rows(spec.in);
    if (args.rows != 0) step.kernels.run(step.kernels.table().matmul, args);
    return {};
  });
}

OperationPtr convert(std::string name, const Tensor& in, const Tensor& out) {
  assert(in.cols == out.cols && in.rows == out.rows);
  return make_compute(std::move(name), [in, out](StepContext& step) -> Status {
    ConvertArgs args;
    args.in = step.data<float>(in);
    args.in_stride = in.cols;
    args.out = step.out(out);
    args.rows = step.rows(in);
    args.cols = in.cols;
    if (args.rows != 0) step.kernels.run(step.kernels.table().convert, args);
    return {};
  });
}

OperationPtr residual_add(std::string name, const ResidualAddSpec& spec) {
  assert(spec.residual.cols == spec.first.cols);
  assert(spec.second.empty() || spec.second.dtype == spec.first.dtype);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    ResidualAddArgs args;
    args.x = step.data<float>(spec.residual);
    args.rows = step.rows(spec.residual);
    args.cols = spec.residual.cols;
    args.dtype = spec.first.dtype;
    args.first = step.data<std::byte>(spec.first);
    args.second = spec.second.empty() ? nullptr : step.data<std::byte>(spec.second);
    args.multiplier = spec.multiplier;
    step.kernels.run(step.kernels.table().residual_add, args);
    return {};
  });
}

OperationPtr gather_logit_rows(std::string name, const Tensor& in, const Tensor& out) {
  assert(in.cols == out.cols && out.rows == TensorRows::logits && in.dtype == DType::f32 &&
         out.dtype == DType::f32);
  return make_compute(std::move(name), [in, out](StepContext& step) -> Status {
    for (size_t i = 0; i < step.batch.logit_rows.size(); ++i) {
      std::memcpy(step.data<float>(out) + i * out.cols,
                  step.data<float>(in) + size_t{step.batch.logit_rows[i]} * in.cols, in.row_bytes());
    }
    return {};
  });
}

OperationPtr load_hidden(std::string name, const Tensor& out) {
  assert(out.dtype == DType::f32 && out.rows == TensorRows::step);
  return make_compute(std::move(name), [out](StepContext& step) -> Status {
    for (size_t row = 0; row < step.batch.hidden.size(); ++row) {
      std::memcpy(step.data<float>(out) + row * out.cols, step.batch.hidden[row], out.row_bytes());
    }
    return {};
  });
}

OperationPtr add_to_streams(std::string name, const Tensor& streams, const Tensor& row) {
  assert(streams.cols % row.cols == 0 && streams.dtype == DType::f32 && row.dtype == DType::f32);
  return make_compute(std::move(name), [streams, row](StepContext& step) -> Status {
    step.kernels.pool().run(step.rows(streams), [&](size_t r, int) {
      float* out = step.data<float>(streams) + r * streams.cols;
      const float* in = step.data<float>(row) + r * row.cols;
      for (uint32_t i = 0; i < streams.cols; ++i) out[i] += in[i % row.cols];
    });
    return {};
  });
}

OperationPtr row_dot(std::string name, const Tensor& in, std::span<const float> weights, const Tensor& out) {
  assert(in.cols == weights.size() && in.dtype == DType::f32 && out.dtype == DType::f32 && out.cols == 1);
  return make_compute(std::move(name), [in, weights, out](StepContext& step) -> Status {
    for (uint32_t row = 0; row < step.rows(in); ++row) {
      const float* values = step.data<float>(in) + size_t{row} * in.cols;
      double sum = 0;
      for (size_t i = 0; i < weights.size(); ++i) sum += double{values[i]} * double{weights[i]};
      step.data<float>(out)[row] = static_cast<float>(sum);
    }
    return {};
  });
}

OperationPtr add_bias(std::string name, const Tensor& x, std::vector<std::span<const float>> parts) {
  assert(x.dtype == DType::f32);
  return make_compute(std::move(name), [x, parts = std::move(parts)](StepContext& step) -> Status {
    step.kernels.pool().run(step.rows(x), [&](size_t row, int) {
      float* values = step.data<float>(x) + row * x.cols;
      for (const std::span<const float> part : parts) {
        for (size_t i = 0; i < part.size(); ++i) values[i] += part[i];
        values += part.size();
      }
    });
    return {};
  });
}

OperationPtr clamp(std::string name, const Tensor& x, uint32_t column, uint32_t cols, float bound) {
  assert(x.dtype == DType::f32 && column + cols <= x.cols && bound > 0);
  return make_compute(std::move(name), [x, column, cols, bound](StepContext& step) -> Status {
    step.kernels.pool().run(step.rows(x), [&](size_t row, int) {
      float* values = step.data<float>(x, column) + row * x.cols;
      for (uint32_t i = 0; i < cols; ++i) values[i] = std::clamp(values[i], -bound, bound);
    });
    return {};
  });
}

OperationPtr divide(std::string name, const Tensor& x, float divisor) {
  return make_compute(std::move(name), [x, divisor](StepContext& step) -> Status {
    step.kernels.pool().run(step.rows(x), [&](size_t row, int) {
      float* values = step.data<float>(x) + row * x.cols;
      for (uint32_t i = 0; i < x.cols; ++i) values[i] /= divisor;
    });
    return {};
  });
}

}  // namespace tandem
