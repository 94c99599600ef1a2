// ScriptedPort: an FfnPort for tests that is harder to please than a real one: few credits, replies that come
// late and in another order, requests that fail. It replies with the activation times a factor, written only
// when the reply comes, and fills `out` with garbage at submit, so that a lane that reads early is seen.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "moe/ffn_port.h"

namespace tandem {

class ScriptedPort final : public FfnPort {
 public:
  struct Script {
    uint32_t credits = UINT32_MAX;   // requests in flight at most
    uint32_t polls_until_reply = 0;  // polls that find nothing after a submit
    bool newest_first = false;       // the order of replies that are due at once
    float factor = 1.0f;
    int fail_at_submit = -1;  // number of the submit that is refused
    int fail_at_reply = -1;   // number of the request that completes with an error
  };

  ScriptedPort(FfnTraits traits, Script script) : traits_(traits), script_(script) {}

  struct InFlight {
    Ticket ticket = 0;
    int number = 0;
    uint32_t polls_left = 0;
    FfnRequest request;
  };

  const FfnTraits& traits() const override { return traits_; }

  Result<Ticket> submit(const FfnRequest& request) override {
    if (in_flight_.size() >= script_.credits) {
      ++refused_;
      return make_error(ErrorCode::would_block, {});
    }
    const int number = submits_++;
    if (number == script_.fail_at_submit) return make_error(ErrorCode::unavailable, "peer ffn-0 is lost");
    std::memset(request.out.data, 0xff, request.out.bytes);
    in_flight_.push_back({next_ticket_++, number, script_.polls_until_reply, request});
    return in_flight_.back().ticket;
  }

  size_t poll(std::span<Completion> out) override {
    ++polls_;
    size_t count = 0;
    for (InFlight& entry : in_flight_) {
      if (entry.polls_left > 0) --entry.polls_left;
    }
    for (size_t i = 0; i < in_flight_.size() && count < out.size();) {
      const size_t index = script_.newest_first ? in_flight_.size() - 1 - i : i;
      InFlight& entry = in_flight_[index];
      if (entry.polls_left > 0 || held_) {
        ++i;
        continue;
      }
      Completion& completion = out[count++];
      completion = {};
      completion.ticket = entry.ticket;
      completion.times.compute_us = 7;
      if (entry.number == script_.fail_at_reply) {
        completion.status = make_error(ErrorCode::deadline_exceeded, "ffn-0 did not answer");
      } else {
        reply(entry.request);
      }
      in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    return count;
  }

  void cancel(Ticket ticket) override {
    std::erase_if(in_flight_, [ticket](const InFlight& entry) { return entry.ticket == ticket; });
    ++cancels_;
  }
  int wait_fd() const override { return -1; }
  Status health() const override { return {}; }

  void hold(bool held) { held_ = held; }  // no replies while held
  const std::vector<InFlight>& in_flight() const { return in_flight_; }
  int submits() const { return submits_; }
  int refused() const { return refused_; }
  int cancels() const { return cancels_; }
  int polls() const { return polls_; }

 private:
  // f32 activations, f32 replies.
  void reply(const FfnRequest& request) const {
    const size_t hidden = request.in.row_stride;
    const float* in = static_cast<const float*>(request.in.data);
    float* out = request.out.as<float>();
    for (size_t i = 0; i < request.rows * hidden; ++i) out[i] = script_.factor * in[i];
  }

  FfnTraits traits_;
  Script script_;
  std::vector<InFlight> in_flight_;
  Ticket next_ticket_ = 100;
  int submits_ = 0, refused_ = 0, cancels_ = 0, polls_ = 0;
  bool held_ = false;
};

}  // namespace tandem
