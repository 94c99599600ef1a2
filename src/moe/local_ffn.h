// LocalFfn: the FfnPort of a colocated run: `submit` computes in place with this process's MoeBlock, `poll`
// reports. One thread. The block outlives it.
#pragma once

#include <vector>

#include "moe/ffn_port.h"
#include "moe/moe_block.h"

namespace tandem {

class LocalFfn final : public FfnPort {
 public:
  explicit LocalFfn(MoeBlock& block);
  const FfnTraits& traits() const override { return traits_; }
  Result<Ticket> submit(const FfnRequest& request) override;
  size_t poll(std::span<Completion> out) override;
  void cancel(Ticket ticket) override;
  int wait_fd() const override { return -1; }
  Status health() const override { return {}; }

 private:
  MoeBlock& block_;
  FfnTraits traits_;
  Ticket next_ticket_ = 1;
  std::vector<Completion> finished_;
};

}  // namespace tandem
