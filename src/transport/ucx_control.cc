#include "transport/ucx_control.h"

#include <sys/socket.h>

#include <cerrno>

#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr int kFramesPerLook = 64;  // a peer that never stops sending must not hold the poller

void append(std::vector<std::byte>& bytes, const TcpFrame& frame) {
  const auto encoded = TcpFrameLayout::encode(frame);
  bytes.insert(bytes.end(), encoded.begin(), encoded.end());
}

}  // namespace

Result<UcxControl::News> UcxControl::look() {
  if (end_.ended || !socket_) return end_;
  News news;
  for (int i = 0; i < kFramesPerLook; ++i) {
    const ssize_t got =
        recv(socket_.get(), partial_.data() + received_, partial_.size() - received_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      end_.ended = true;
      end_.reason = got == 0 ? "its process ended or dropped the connection"
                             : "the connection was lost (" + system_message(errno) + ")";
      break;
    }
    news.heard = true;
    received_ += static_cast<size_t>(got);
    if (received_ < partial_.size()) continue;
    received_ = 0;
    TANDEM_ASSIGN(const TcpFrame frame, TcpFrameLayout::decode(partial_));
    if (frame.kind == TcpFrameKind::messages_sent) {
      end_.totals[static_cast<size_t>(frame.channel)] = frame.value;
    } else if (frame.kind == TcpFrameKind::bye) {
      end_.ended = end_.orderly = true;
      end_.reason = "it ended the connection";
      break;
    } else if (frame.kind != TcpFrameKind::heartbeat) {
      return make_error(
          ErrorCode::data_loss,
          "tcp frame: kind " + std::to_string(static_cast<int>(frame.kind)) + " does not belong beside ucx");
    }
  }
  if (!end_.ended) return news;
  end_.heard = news.heard;
  return end_;
}

void UcxControl::flush() {
  if (unsent_.empty()) return;
  const ssize_t sent = send(socket_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // An error shows at the next look, as the end of the connection.
  if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
}

void UcxControl::beat() {
  if (!socket_ || end_.ended) return;
  // A full socket means that the peer does not read; then its own silence tells.
  if (unsent_.empty()) append(unsent_, {TcpFrameKind::heartbeat, Channel::control, 0});
  flush();
}

void UcxControl::close(const Totals* totals_for_goodbye) {
  if (!socket_) return;
  if (totals_for_goodbye != nullptr && !end_.ended) {
    for (size_t i = 0; i < kNumChannels; ++i) {
      append(unsent_, {TcpFrameKind::messages_sent, static_cast<Channel>(i), (*totals_for_goodbye)[i]});
    }
    append(unsent_, {TcpFrameKind::bye, Channel::control, 0});
    flush();
  }
  // Unread bytes would turn the close into a reset, which throws away what is still on the way to the peer.
  std::array<std::byte, 1024> ignored;
  for (int i = 0; i < kFramesPerLook && recv(socket_.get(), ignored.data(), ignored.size(), MSG_DONTWAIT) > 0;
       ++i) {
  }
  socket_.reset();
}

}  // namespace tandem
