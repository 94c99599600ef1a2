#include "program/program.h"

#include <numeric>

#include "base/arena.h"

namespace tandem {

Result<ProgramBuilder> ProgramBuilder::create(const ProgramShape& shape, const FfnTraits& traits) {
  if (shape.capacity == 0) {
    return make_error(ErrorCode::invalid_argument,
                      "program capacity is 0: a step needs room for at least one row");
  }
  if (shape.logits_capacity == 0 || shape.logits_capacity > shape.capacity) {
    return make_error(ErrorCode::invalid_argument,
                      "program logits capacity is " + std::to_string(shape.logits_capacity) +
                          ": must be 1 to " + std::to_string(shape.capacity) + ", the capacity in rows");
  }
  ProgramBuilder builder;
  builder.program_.shape_ = shape;
  builder.program_.ffn_traits_ = traits;
  return builder;
}

Tensor ProgramBuilder::tensor(std::string name, DType dtype, uint32_t cols, TensorRows rows) {
  const Tensor tensor{program_.buffer_bytes_, cols, dtype, rows};
  const uint32_t capacity =
      rows == TensorRows::step ? program_.shape_.capacity : program_.shape_.logits_capacity;
  const size_t bytes = Arena::rounded(tensor.row_bytes() * capacity);
  program_.buffers_.push_back({std::move(name), tensor.offset, bytes});
  program_.buffer_bytes_ += bytes;
  return tensor;
}

size_t ProgramBuilder::workspace(std::string name, size_t bytes) {
  const size_t offset = program_.buffer_bytes_;
  program_.buffers_.push_back({std::move(name), offset, Arena::rounded(bytes)});
  program_.buffer_bytes_ += Arena::rounded(bytes);
  return offset;
}

Tensor ProgramBuilder::shared_tensor(const std::string& name, DType dtype, uint32_t cols, TensorRows rows) {
  const std::string key = name + (rows == TensorRows::step ? ".step." : ".logits.") + std::to_string(cols);
  const auto planned = shared_.find(key);
  if (planned != shared_.end()) return planned->second;
  return shared_[key] = tensor(name, dtype, cols, rows);
}

std::shared_ptr<const std::vector<uint32_t>> ProgramBuilder::identity_rows() {
  if (!identity_rows_) {
    auto rows = std::make_shared<std::vector<uint32_t>>(program_.shape_.capacity);
    std::iota(rows->begin(), rows->end(), 0u);
    identity_rows_ = std::move(rows);
  }
  return identity_rows_;
}

Result<std::shared_ptr<const Program>> ProgramBuilder::finish(Tensor logits) {
  if (logits.dtype != DType::f32 || logits.rows != TensorRows::logits || logits.cols == 0) {
    return make_error(ErrorCode::internal,
                      "program ends without float32 logits [logits capacity, vocabulary]");
  }
  // A reply is collected where it was submitted, one at a time: what Lane's single exchange can hold.
  bool submitted = false;
  for (const OperationPtr& operation : program_.operations_) {
    if (operation->kind() != OperationKind::submit && operation->kind() != OperationKind::collect) continue;
    if (submitted != (operation->kind() == OperationKind::collect)) {
      return make_error(ErrorCode::internal,
                        "program: " + operation->name() + " does not alternate submit and collect");
    }
    submitted = !submitted;
  }
  if (submitted) return make_error(ErrorCode::internal, "program ends with a request that nobody collects");
  program_.logits_ = logits;
  program_.vocab_size_ = logits.cols;
  return std::shared_ptr<const Program>(new Program(std::move(program_)));
}

}  // namespace tandem
