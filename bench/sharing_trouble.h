// Trouble: clients of an FFN rank that behave badly for as long as this lives, from a thread of their own.
//   flood        one client with requests of 64 rows, as many as it has credits, at any layers
//   connections  `flood_rate` connections a second that say nothing, or half of what they should, and stay
//   open
//                until 64 of them are; tcp only
//   stall        a client that asks with all its credits and never reads an answer, and comes again when it
//   is
//                thrown out
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "bench/sharing_bench.h"
#include "bench/sharing_pool.h"

namespace tandem::bench {

class Trouble {
 public:
  static bool is_known(std::string_view kind) {
    return kind == "flood" || kind == "connections" || kind == "stall";
  }
  Trouble(const std::string& kind, const SharingOptions& options, const SplitSettings& settings,
          const std::string& address);
  ~Trouble();
  uint64_t done() const { return done_.load(); }  // requests, connections, or visits

 private:
  void flood(const SharingOptions& options, const SplitSettings& settings, const std::string& address);
  void connections(const SharingOptions& options, const SplitSettings& settings, const std::string& address);
  void stall(const SharingOptions& options, const SplitSettings& settings, const std::string& address);

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> done_{0};
  std::thread thread_;
};

}  // namespace tandem::bench
