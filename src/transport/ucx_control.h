// UcxControl: the tcp connection beside UCX after the handshake. It carries heartbeats and the goodbye, and
// its end is the death event: when the peer's process ends, however it ends, the system closes it at once.
// Poller thread only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/endpoint.h"
#include "transport/tcp_frame.h"
#include "transport/unique_fd.h"

namespace tandem {

class UcxControl {
 public:
  using Totals = std::array<uint32_t, kNumChannels>;
  struct News {
    bool heard = false;    // bytes came
    bool ended = false;    // no more will: `reason` says how the peer left
    bool orderly = false;  // it said goodbye, and how many messages of each channel it had sent
    Totals totals{};
    std::string reason;
  };

  explicit UcxControl(UniqueFd socket) : socket_(std::move(socket)) {}

  // data_loss naming what the peer did wrong. After an end: the same end again.
  Result<News> look();
  void beat();
  // Twice does nothing.
  void close(const Totals* totals_for_goodbye);
  int socket() const { return socket_.get(); }

 private:
  void flush();

  UniqueFd socket_;
  std::vector<std::byte> unsent_;
  std::array<std::byte, TcpFrameLayout::kHeaderBytes> partial_{};
  size_t received_ = 0;
  News end_;
};

}  // namespace tandem
