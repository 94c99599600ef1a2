// Liveness: when a side must say that it lives, and when it may say that the other one does not. Poller
// thread only.
#pragma once

#include "base/clock.h"
#include "transport/endpoint.h"

namespace tandem {

class Liveness {
 public:
  Liveness(const EndpointOptions& options, Instant start)
      : interval_(options.heartbeat_interval),
        limit_(options.silence_limit),
        polled_(start),
        heard_(start),
        beat_(start) {}

  // Call first in every poll. A side that did not listen for a while (it was stopped, or starved of CPU)
  // cannot say that its peer was silent meanwhile: it starts to count anew.
  void on_poll(Instant at) {
    if (at - polled_ > limit_ / 2) heard_ = at;
    polled_ = at;
  }
  void heard(Instant at) { heard_ = at; }
  Duration silence(Instant at) const { return at - heard_; }
  bool is_silent(Instant at) const { return at - heard_ > limit_; }

  // True when a heartbeat is due, and then counts it as sent. Due after half an interval: a poller that wakes
  // once an interval would else skip every second beat.
  bool take_beat(Instant at) {
    if (at - beat_ < interval_ / 2) return false;
    beat_ = at;
    return true;
  }

 private:
  Duration interval_;
  Duration limit_;
  Instant polled_;
  Instant heard_;
  Instant beat_;
};

}  // namespace tandem
