// Operation: one entry of a program. Built once, then only run: it holds weights and places in the lane's
// buffers, never a row count. An operation computes the rows of the step and no spare row of the capacity.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "program/step.h"

namespace tandem {

enum class OperationKind : uint8_t {
  compute,
  attend,   // computes, and reads the cached keys of earlier rows: where a step is split over lanes it waits
            // until the lane with the rows before has written its keys of the same layer
  submit,   // hands rows to the experts; waits for a credit
  collect,  // waits for the reply
};

class Operation {
 public:
  Operation(OperationKind kind, std::string name) : kind_(kind), name_(std::move(name)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  OperationKind kind() const { return kind_; }
  // "layers.3.attention.qkv": for traces and messages.
  const std::string& name() const { return name_; }

  // would_block: the lane must wait, the operation has changed nothing and will be run again. Only submit and
  // collect may say so. Any other error ends the step. Called by the executor's thread; allocates nothing.
  virtual Status run(StepContext& step) const = 0;

 private:
  OperationKind kind_;
  std::string name_;
};

using OperationPtr = std::unique_ptr<Operation>;

// An operation that computes, from a callable `Status(StepContext&) const`.
template <class Body>
OperationPtr make_compute(std::string name, Body body, OperationKind kind = OperationKind::compute) {
  class Compute final : public Operation {
   public:
    Compute(OperationKind operation_kind, std::string operation_name, Body operation_body)
        : Operation(operation_kind, std::move(operation_name)), body_(std::move(operation_body)) {}
    Status run(StepContext& step) const override { return body_(step); }

   private:
    Body body_;
  };
  return std::make_unique<Compute>(kind, std::move(name), std::move(body));
}

}  // namespace tandem
