// Program: the list of operations of one step and the plan of the buffers that they use, built once for a
// capacity and immutable from then on. Lanes share a program; each has buffers of its own. A family builds
// one with ProgramBuilder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moe/ffn_port.h"
#include "program/operation.h"

namespace tandem {

struct ProgramShape {
  uint32_t capacity = 0;         // most rows of a step
  uint32_t logits_capacity = 0;  // most rows of a step whose logits are wanted
};

// One planned buffer, for reports of where a lane's memory goes.
struct PlannedBuffer {
  std::string name;
  size_t offset = 0, bytes = 0;
};

class Program {
 public:
  const ProgramShape& shape() const { return shape_; }
  // The side of the experts that this program was built for; the port it runs against has the same.
  const FfnTraits& ffn_traits() const { return ffn_traits_; }
  std::span<const OperationPtr> operations() const { return operations_; }
  std::span<const PlannedBuffer> buffers() const { return buffers_; }
  size_t buffer_bytes() const { return buffer_bytes_; }            // of one lane
  uint32_t vocab_size() const { return vocab_size_; }              // token ids are below
  uint32_t num_state_groups() const { return num_state_groups_; }  // that a batch has rows of
  uint32_t num_layers() const { return num_layers_; }              // for figures a layer
  // The operations from here on look at the step through the rows whose logits are wanted: they can run
  // again for other rows of the same step (Executor::start_head).
  size_t head_begin() const { return head_begin_; }
  const Tensor& logits() const { return logits_; }  // float32 [logits_capacity, vocab_size]
  // What a drafter reads of this program's rows: float32, of all rows or of those whose logits are wanted.
  // Empty when nobody does.
  const Tensor& hidden() const { return hidden_; }
  // A drafter's program: its steps have StepBatch::hidden.
  bool reads_hidden() const { return reads_hidden_; }
  // Its steps have StepBatch::key_ranges.
  bool reads_key_ranges() const { return reads_key_ranges_; }

 private:
  friend class ProgramBuilder;
  Program() = default;

  ProgramShape shape_;
  FfnTraits ffn_traits_;
  std::vector<OperationPtr> operations_;
  std::vector<PlannedBuffer> buffers_;
  size_t buffer_bytes_ = 0;
  uint32_t vocab_size_ = 0;
  uint32_t num_state_groups_ = 1;
  uint32_t num_layers_ = 0;
  size_t head_begin_ = 0;
  Tensor logits_;
  Tensor hidden_;
  bool reads_hidden_ = false, reads_key_ranges_ = false;
};

class ProgramBuilder {
 public:
  // invalid_argument: a capacity of 0, or more logits than rows.
  static Result<ProgramBuilder> create(const ProgramShape& shape, const FfnTraits& traits);

  const ProgramShape& shape() const { return program_.shape_; }
  const FfnTraits& ffn_traits() const { return program_.ffn_traits_; }

  // A buffer of [capacity, cols] (or [logits_capacity, cols]). Layers share buffers: plan them before the
  // first layer.
  Tensor tensor(std::string name, DType dtype, uint32_t cols, TensorRows rows = TensorRows::step);
  // The buffer of this name that was planned before, or a new one: of operations that use it one after the
  // other.
  Tensor shared_tensor(const std::string& name, DType dtype, uint32_t cols, TensorRows rows);
  // `bytes` of each lane beside its rows, aligned as they are; where they begin. Memory that no step writes is
  // never taken from the system.
  size_t workspace(std::string name, size_t bytes);
  void append(OperationPtr operation) { program_.operations_.push_back(std::move(operation)); }

  // How many state groups the operations read and write; 1 when nobody says.
  void use_state_groups(uint32_t num_groups) { program_.num_state_groups_ = num_groups; }
  void count_layers(uint32_t num_layers) { program_.num_layers_ = num_layers; }
  // What is appended from now on reads what came before and writes tensors of the wanted logits alone.
  void begin_head() { program_.head_begin_ = program_.operations_.size(); }

  // 0, 1, 2, ... [capacity]: the row list of a product over all rows. Shared by all operations that need it.
  std::shared_ptr<const std::vector<uint32_t>> identity_rows();

  // The result beside the logits.
  void export_hidden(const Tensor& hidden) { program_.hidden_ = hidden; }
  void read_hidden() { program_.reads_hidden_ = true; }
  void read_key_ranges() { program_.reads_key_ranges_ = true; }

  // `logits`: float32 [logits_capacity, vocab_size].
  Result<std::shared_ptr<const Program>> finish(Tensor logits);

 private:
  ProgramBuilder() = default;

  Program program_;
  std::shared_ptr<const std::vector<uint32_t>> identity_rows_;
  std::map<std::string, Tensor> shared_;
};

}  // namespace tandem
