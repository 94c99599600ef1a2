// Device: the seam between a program and what it runs on. A program names no memory and no thread; the device
// gives the memory and runs the operations. Today there is the CPU; a GPU is a second implementation with its
// own operations. One thread calls.
#pragma once

#include "base/buffer.h"
#include "kernels/kernel_table.h"
#include "program/operation.h"

namespace tandem {

class Device {
 public:
  virtual ~Device() = default;
  virtual MemorySpace memory_space() const = 0;
  virtual KernelRunner& kernels() const = 0;
  // Zeroed bytes in the device's memory, kBufferAlignment aligned.
  virtual Result<OwnedBuffer> allocate(size_t bytes) = 0;
  virtual Status run(const Operation& operation, StepContext& step) = 0;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(KernelRunner& kernels) : kernels_(kernels) {}
  MemorySpace memory_space() const override { return MemorySpace::host; }
  KernelRunner& kernels() const override { return kernels_; }
  Result<OwnedBuffer> allocate(size_t bytes) override { return OwnedBuffer::allocate(bytes); }
  Status run(const Operation& operation, StepContext& step) override { return operation.run(step); }

 private:
  KernelRunner& kernels_;
};

}  // namespace tandem
