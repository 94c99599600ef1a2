// HttpReply: the ResponseWriter that a handler holds: formats heads and chunks on the caller's thread and
// posts them to the connection. Internal to the HTTP server.
#pragma once

#include <memory>
#include <string>

#include "serving/http_connection.h"

namespace tandem {

class HttpReply : public ResponseWriter {
 public:
  HttpReply(std::shared_ptr<HttpConnection> connection, std::shared_ptr<HttpReplyState> state)
      : connection_(std::move(connection)), state_(std::move(state)) {}
  ~HttpReply() override;

  void respond(HttpResponse response) override;
  void start_stream(HttpResponse head) override;
  void write(std::string data) override;
  void finish() override;
  void on_disconnect(std::function<void()> callback) override;

 private:
  enum class Phase { nothing, streaming, complete };

  std::string head(const HttpResponse& response, bool is_stream) const;
  std::string framed(std::string data) const;
  void post(std::string bytes, int status, bool last);

  std::shared_ptr<HttpConnection> connection_;
  std::shared_ptr<HttpReplyState> state_;
  Phase phase_ = Phase::nothing;  // under state_->mutex
};

}  // namespace tandem
