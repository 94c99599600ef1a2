// Greeting: the hello inside a frame, with which each side of a tcp connection begins, under tcp and under
// ucx alike, so that either can name the other. Pure, any thread.
#pragma once

#include <array>
#include <cstring>
#include <span>
#include <string_view>

#include "transport/hello.h"
#include "transport/tcp_frame.h"

namespace tandem {

inline constexpr size_t kGreetingBytes = TcpFrameLayout::kHeaderBytes + HelloLayout::kBytes;

inline std::array<std::byte, kGreetingBytes> make_greeting(const EndpointOptions& options,
                                                           Carrier carrier = Carrier::messages) {
  std::array<std::byte, kGreetingBytes> bytes;
  const auto header = TcpFrameLayout::encode({TcpFrameKind::hello, Channel::control, HelloLayout::kBytes});
  const auto hello = HelloLayout::encode(options, carrier);
  std::memcpy(bytes.data(), header.data(), header.size());
  std::memcpy(bytes.data() + header.size(), hello.data(), hello.size());
  return bytes;
}

// As match_hello.
inline Result<void> match_greeting(std::span<const std::byte, kGreetingBytes> bytes,
                                   const EndpointOptions& options, std::string_view local,
                                   std::string_view remote, Carrier carrier = Carrier::messages,
                                   Unstated unstated = Unstated::refused) {
  const auto frame = TcpFrameLayout::decode(bytes.first<TcpFrameLayout::kHeaderBytes>());
  const bool is_hello = frame && frame->kind == TcpFrameKind::hello && frame->value == HelloLayout::kBytes;
  return match_hello(options, local,
                     is_hello ? bytes.subspan(TcpFrameLayout::kHeaderBytes) : std::span<const std::byte>(),
                     remote, carrier, unstated);
}

}  // namespace tandem
