// Accepting: a connection that was accepted and shakes hands, as a machine that never waits: what Connecting
// is to the side that connects. AcceptingListener: the Listener over such machines that tcp, ucx and shm
// share. It holds so many of them at once, makes room for later ones, and goes on whatever becomes of one.
// One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/acceptor.h"
#include "transport/endpoint.h"
#include "transport/refusal_log.h"

namespace tandem {

class Accepting {
 public:
  virtual ~Accepting() = default;
  // Goes as far as it can without waiting. Null: not there yet. An error ends it and says what the peer did,
  // for a line that names it; cancelled: there is nothing to be said.
  virtual Result<std::unique_ptr<Endpoint>> advance() = 0;
  // What to wait for before the next `advance`.
  virtual int socket() const = 0;
  // And another one, once there is one; -1 before. From then on nothing is read from the socket: what comes
  // is for the endpoint, and only an end matters.
  virtual int second_descriptor() const { return -1; }
  virtual const std::string& peer() const = 0;
};

class AcceptingListener : public Listener {
 public:
  int fd() const final { return acceptor_.fd(); }
  const std::string& address() const final { return acceptor_.address(); }
  std::optional<Error> take_mismatch() final;
  Result<std::unique_ptr<Endpoint>> accept() final;

 protected:
  AcceptingListener(Acceptor acceptor, const EndpointOptions& options)
      : options_(options), acceptor_(std::move(acceptor)) {}
  // The machine of a connection; an error when its peer may not even begin.
  virtual Result<std::unique_ptr<Accepting>> begin(Accepted taken) = 0;
  const EndpointOptions& options() const { return options_; }

 private:
  struct Handshake {
    std::unique_ptr<Accepting> machine;
    uint64_t host = 0;  // host_number
    // As they are watched: a machine that is done has given them away.
    int socket = -1, second = -1;
  };
  Status take_connections();
  void make_room();
  std::unique_ptr<Accepting> take(size_t index);

  const EndpointOptions options_;
  Acceptor acceptor_;
  std::vector<Handshake> handshakes_;  // the oldest first
  RefusalLog refusals_;
  std::optional<Error> mismatch_;
};

}  // namespace tandem
