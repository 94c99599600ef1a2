// RoutingRecorder: a port in front of another that notes the routing of each request that carries one (gate
// on attention) and passes everything on. For parity: no hook in the engine.
#pragma once

#include <cstdint>
#include <map>
#include <variant>
#include <vector>

#include "moe/ffn_port.h"

namespace tandem {

struct RecordedRouting {
  std::vector<int32_t> ids;    // [rows, top_k], rows in the order of submission
  std::vector<float> weights;  // [rows, top_k]
};

class RoutingRecorder final : public FfnPort {
 public:
  explicit RoutingRecorder(FfnPort& inner) : inner_(inner) {}

  const std::map<LayerIndex, RecordedRouting>& routing() const { return routing_; }
  void clear() { routing_.clear(); }

  const FfnTraits& traits() const override { return inner_.traits(); }
  Result<Ticket> submit(const FfnRequest& request) override {
    Result<Ticket> ticket = inner_.submit(request);
    const auto* view = std::get_if<RoutingView>(&request.routing);
    if (ticket && view != nullptr) {
      RecordedRouting& record = routing_[request.layer];
      record.ids.insert(record.ids.end(), view->ids.begin(), view->ids.end());
      record.weights.insert(record.weights.end(), view->weights.begin(), view->weights.end());
    }
    return ticket;
  }
  size_t poll(std::span<Completion> out) override { return inner_.poll(out); }
  void cancel(Ticket ticket) override { inner_.cancel(ticket); }
  int wait_fd() const override { return inner_.wait_fd(); }
  Status health() const override { return inner_.health(); }

 private:
  FfnPort& inner_;
  std::map<LayerIndex, RecordedRouting> routing_;
};

}  // namespace tandem
