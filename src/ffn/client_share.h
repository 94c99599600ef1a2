// ClientShare: the compute time that one client of an FFN rank has used, by class, and ShareClock, which
// keeps the accounts of all clients comparable. Start-time fair queueing with costs that are measured
// afterwards: the client with the smallest account is the one that was served least while it had something
// waiting.
//
// Nobody saves up: a client that comes with nothing waiting begins near the smallest account of those that
// waited last. It keeps a small credit, so that a client that asks for little goes before one that asks for
// all it can. Pure; the caller's lock.
#pragma once

#include <algorithm>
#include <array>

namespace tandem {

struct ClientShare {
  std::array<double, 2> used_us{};  // of decode, of prefill
};

class ShareClock {
 public:
  // Before a tile of the client is added to those that wait.
  void arrive(ClientShare& client, bool prefill, double credit_us) const {
    double& used = client.used_us[prefill ? 1 : 0];
    used = std::max(used, floor_us_[prefill ? 1 : 0] - credit_us);
  }
  // When a group is chosen: `least_us`, the smallest account among the class's clients that wait.
  void advance(bool prefill, double least_us) {
    double& floor = floor_us_[prefill ? 1 : 0];
    floor = std::max(floor, least_us);
  }
  // When a group has been computed: the client's part of its time.
  static void charge(ClientShare& client, bool prefill, double microseconds) {
    client.used_us[prefill ? 1 : 0] += microseconds;
  }

 private:
  std::array<double, 2> floor_us_{};  // never goes back
};

}  // namespace tandem
