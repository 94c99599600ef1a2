#include "serving/http_reply.h"

#include <charconv>
#include <ctime>
#include <utility>

#include "base/log.h"

namespace tandem {

namespace {

std::string http_date() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

}  // namespace

HttpReply::~HttpReply() {
  Phase phase;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->gone) return;
    phase = phase_;
  }
  if (phase == Phase::complete) return;
  log_error("request " + state_->request_id +
            " was dropped without a complete reply: this is a defect of the server");
  if (phase == Phase::nothing) {
    respond(HttpResponse{.status = 500, .content_type = "text/plain", .body = "no reply was made\n"});
    return;
  }
  const std::lock_guard lock(state_->mutex);
  // A chunked stream without its last chunk is how HTTP says that a body is incomplete.
  state_->keep_alive = false;
  state_->complete = true;
  state_->on_disconnect = nullptr;
  if (!state_->gone) connection_->post_deliver(state_, "", 0, true);
}

std::string HttpReply::head(const HttpResponse& response, bool is_stream) const {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " ";
  text += http_reason(response.status);
  text += "\r\ndate: " + http_date() + "\r\nserver: tandem\r\n";
  if (!response.content_type.empty()) text += "content-type: " + response.content_type + "\r\n";
  if (is_stream) {
    text += "cache-control: no-cache\r\n";
    if (state_->chunked) text += "transfer-encoding: chunked\r\n";
  } else if (response.status != 204) {  // which has no body, and says nothing of one (RFC 9110)
    text += "content-length: " + std::to_string(response.body.size()) + "\r\n";
  }
  text += state_->keep_alive ? "connection: keep-alive\r\n" : "connection: close\r\n";
  text += "x-request-id: " + state_->request_id + "\r\n";
  for (const HttpHeaders& headers : {response.headers, state_->more_headers}) {
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  }
  return text + "\r\n";
}

std::string HttpReply::framed(std::string data) const {
  if (data.empty() || state_->head_only) return {};
  if (!state_->chunked) return data;
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, data.size(), 16);
  std::string text(size, end.ptr);
  text.reserve(text.size() + data.size() + 4);
  return text.append("\r\n").append(data).append("\r\n");
}

// Posting under the mutex: once `gone` is set nothing is posted, so the I/O thread can end.
void HttpReply::post(std::string bytes, int status, bool last) {
  if (last) {
    state_->complete = true;
    state_->on_disconnect = nullptr;
    phase_ = Phase::complete;
  }
  if (!state_->gone) connection_->post_deliver(state_, std::move(bytes), status, last);
}

void HttpReply::respond(HttpResponse response) {
  std::string bytes = head(response, false);
  if (!state_->head_only) bytes += response.body;
  const std::lock_guard lock(state_->mutex);
  if (phase_ == Phase::nothing) post(std::move(bytes), response.status, true);
}

void HttpReply::start_stream(HttpResponse response) {
  const std::lock_guard lock(state_->mutex);
  if (phase_ != Phase::nothing) return;
  phase_ = Phase::streaming;
  // To HTTP/1.0 the end of the connection is the end of the stream.
  if (!state_->chunked) state_->keep_alive = false;
  std::string bytes = head(response, true) + framed(std::move(response.body));
  post(std::move(bytes), response.status, false);
}

void HttpReply::write(std::string data) {
  std::string bytes = framed(std::move(data));
  if (bytes.empty()) return;
  const std::lock_guard lock(state_->mutex);
  if (phase_ == Phase::streaming) post(std::move(bytes), 0, false);
}

void HttpReply::finish() {
  const std::lock_guard lock(state_->mutex);
  if (phase_ == Phase::streaming) post(state_->chunked && !state_->head_only ? "0\r\n\r\n" : "", 0, true);
}

void HttpReply::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->complete) return;
    if (!state_->gone) {
      state_->on_disconnect = std::move(callback);
      return;
    }
  }
  callback();
}

}  // namespace tandem
