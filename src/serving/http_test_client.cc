#include "serving/http_test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace tandem {

TestClient::TestClient(uint16_t port, int timeout_seconds) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return;
  const timeval timeout{timeout_seconds, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

TestClient::~TestClient() {
  close();
}

void TestClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool TestClient::fill() {
  char chunk[4096];
  const ssize_t got = recv(fd_, chunk, sizeof chunk, 0);
  if (got <= 0) return false;
  in_.append(chunk, static_cast<size_t>(got));
  return true;
}

TestReply TestClient::receive(bool head_only) {
  TestReply reply;
  size_t end;
  while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return reply;
  }
  const std::string head = in_.substr(0, end + 2);
  in_.erase(0, end + 4);
  reply.status = std::stoi(head.substr(std::string_view("HTTP/1.1 ").size()));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t colon = head.find(": ", at), stop = head.find("\r\n", at);
    reply.headers[head.substr(at, colon - at)] = head.substr(colon + 2, stop - colon - 2);
    at = stop + 2;
  }
  if (reply.status == 100) return receive(head_only);
  if (head_only) {
    reply.complete = true;
    return reply;
  }
  if (reply.headers.contains("content-length")) {
    const size_t size = std::stoul(reply.headers["content-length"]);
    while (in_.size() < size) {
      if (!fill()) return reply;
    }
    reply.body = in_.substr(0, size);
    in_.erase(0, size);
    reply.complete = true;
    return reply;
  }
  if (!reply.headers.contains("transfer-encoding")) {  // until the close
    while (fill()) {
    }
    reply.body = std::move(in_);
    in_.clear();
    reply.complete = true;
    return reply;
  }
  for (;;) {
    size_t line;
    while ((line = in_.find("\r\n")) == std::string::npos) {
      if (!fill()) return reply;
    }
    const size_t size = std::stoul(in_.substr(0, line), nullptr, 16);
    while (in_.size() < line + 2 + size + 2) {
      if (!fill()) return reply;
    }
    reply.body += in_.substr(line + 2, size);
    in_.erase(0, line + 2 + size + 2);
    if (size == 0) break;
  }
  reply.complete = true;
  return reply;
}

std::string TestClient::receive_until(std::string_view text) {
  while (in_.find(text) == std::string::npos && fill()) {
  }
  return in_;
}

bool TestClient::closed_by_server() {
  char byte;
  return in_.empty() && recv(fd_, &byte, 1, 0) == 0;
}

std::string test_request(const std::string& method, const std::string& path, const std::string& body,
                         const std::string& headers) {
  return method + " " + path +
         " HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

TestReply TestClient::get(const std::string& path, const std::string& headers) {
  send("GET " + path + " HTTP/1.1\r\nhost: test\r\n" + headers + "\r\n");
  return receive();
}

TestReply TestClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(test_request("POST", path, body, headers));
  return receive();
}

}  // namespace tandem
