#include "transport/peer_proof.h"

#include <cstring>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

// Says what the digest is for: no other use of the key gives a proof.
constexpr std::string_view kPurpose = "tandem peer 1";

PeerProof::Frame frame_of(TcpFrameKind kind, std::span<const std::byte, PeerProof::kValueBytes> value) {
  PeerProof::Frame frame;
  const auto head = TcpFrameLayout::encode({kind, Channel::control, PeerProof::kValueBytes});
  std::memcpy(frame.data(), head.data(), head.size());
  std::memcpy(frame.data() + head.size(), value.data(), value.size());
  return frame;
}

}  // namespace

PeerProof::PeerProof(std::shared_ptr<const PeerSecurity> security, ConnectionSide side, HelloBytes own_hello,
                     HelloBytes peer_hello)
    : security_(std::move(security)), side_(side) {
  std::memcpy(own_hello_.data(), own_hello.data(), own_hello.size());
  std::memcpy(peer_hello_.data(), peer_hello.data(), peer_hello.size());
}

Result<PeerProof::Frame> PeerProof::nonce() {
  TANDEM_TRY(fill_with_randomness(own_nonce_));
  return frame_of(TcpFrameKind::nonce, own_nonce_);
}

Result<PeerProof::Frame> PeerProof::proof_of(ConnectionSide side) const {
  const bool connects = side_ == ConnectionSide::connecting;
  std::vector<std::byte> text;
  text.reserve(kPurpose.size() + 1 + 2 * kValueBytes + 2 * HelloLayout::kBytes);
  const auto append = [&](std::span<const std::byte> bytes) {
    text.insert(text.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(kPurpose)));
  text.push_back(static_cast<std::byte>(side));
  append(connects ? own_nonce_ : peer_nonce_);
  append(connects ? peer_nonce_ : own_nonce_);
  append(connects ? own_hello_ : peer_hello_);
  append(connects ? peer_hello_ : own_hello_);
  TANDEM_ASSIGN(const PeerSecurity::Digest digest, security_->authenticate(text));
  return frame_of(TcpFrameKind::proof, digest);
}

Result<void> PeerProof::check_head(std::span<const std::byte, TcpFrameLayout::kHeaderBytes> head) const {
  TANDEM_ASSIGN(const TcpFrame frame, TcpFrameLayout::decode(head));
  if (frame.kind == TcpFrameKind::bye && side_ == ConnectionSide::connecting && expects_ == Expects::proof) {
    return make_error(ErrorCode::invalid_argument,
                      "it refuses our key: it has another one; give both sides the same --peer-key-file");
  }
  const auto wanted = expects_ == Expects::nonce ? TcpFrameKind::nonce : TcpFrameKind::proof;
  if (frame.kind == wanted && frame.value == kValueBytes) return {};
  return make_error(ErrorCode::data_loss, std::string("no ") +
                                              (wanted == TcpFrameKind::nonce ? "nonce" : "proof of the key") +
                                              " came behind the hello, but a frame of kind " +
                                              std::to_string(static_cast<int>(frame.kind)));
}

Result<PeerProof::Step> PeerProof::take(std::span<const std::byte, kFrameBytes> frame) {
  TANDEM_TRY(check_head(frame.first<TcpFrameLayout::kHeaderBytes>()));
  const auto value = frame.last<kValueBytes>();
  const bool connects = side_ == ConnectionSide::connecting;
  Step step;
  if (expects_ == Expects::nonce) {
    std::memcpy(peer_nonce_.data(), value.data(), value.size());
    expects_ = Expects::proof;
    step.send = connects;
  } else {
    const auto peer_side = connects ? ConnectionSide::listening : ConnectionSide::connecting;
    TANDEM_ASSIGN(const Frame expected, proof_of(peer_side));
    if (!equal_in_constant_time(value, std::span(expected).last<kValueBytes>())) {
      return make_error(ErrorCode::invalid_argument,
                        connects ? "it takes our key and cannot prove that it has it: it is not who it "
                                   "should be; check the address"
                                 : "its key is not ours; give both sides the same --peer-key-file");
    }
    expects_ = Expects::nothing;
    step.send = !connects;
  }
  if (step.send) {
    TANDEM_ASSIGN(step.answer, proof_of(side_));
  }
  return step;
}

}  // namespace tandem
