// TransportCarrier: one transport under measurement: an endpoint of this process and an echo behind it, a
// thread for inproc, a process for the others. Both sides wait as ranks do: poll, spin for a bounded time
// where the CPUs allow it, arm, epoll.
//
// A message is either raw bytes, which come back as they are, or a tile: a request frame of attention, which
// the echo checks and answers with a reply frame whose output has the same bytes (activation and reply are
// both bf16), as an FFN rank does. One thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "afd/tile_frame.h"
#include "bench/two_cpus.h"
#include "transport/endpoint.h"

namespace tandem {

// What a round trip carries: `messages` messages there and as many back.
struct TransportCase {
  std::string name;
  size_t messages = 1;
  size_t bytes = 0;        // of each: of the rows, for a tile
  uint32_t tile_rows = 0;  // 0: raw bytes
};

class TransportCarrier {
 public:
  // `transport`: a scheme, with "+key" or "+tls" where options.security says so. `settings`: of the tiles;
  // the echo stays on the second CPU. Forks, so before UCX is used and before this process has other threads;
  // the connection is made by `connect`, in the same order for all.
  static Result<std::unique_ptr<TransportCarrier>> create(const std::string& transport,
                                                          const EndpointOptions& options,
                                                          const SplitSettings& settings, const TwoCpus& cpus);
  ~TransportCarrier();

  Result<void> connect();
  // Each message is source, the last answer ends up in target.
  Result<void> round_trip(const TransportCase& item, std::span<const std::byte> source,
                          std::span<std::byte> target);
  const std::string& name() const;

 private:
  struct Impl;
  explicit TransportCarrier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
