// A raw HTTP client for tests: one socket, blocking, with a receive timeout, so that a hang is a failed
// expectation.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tandem {

struct TestReply {
  int status = 0;                              // 0: the connection ended or timed out before a whole reply
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int timeout_seconds = 30);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);
  // One reply; `head_only` after HEAD.
  TestReply receive(bool head_only = false);
  // Reads until the text has come (or the end): what has come so far. For streams.
  std::string receive_until(std::string_view text);
  // True when the server closes within the timeout and nothing comes before.
  bool closed_by_server();
  void close();

  TestReply get(const std::string& path, const std::string& headers = "");
  TestReply post(const std::string& path, const std::string& body, const std::string& headers = "");

 private:
  bool fill();  // more bytes into in_; false at the end

  int fd_ = -1;
  std::string in_;
};

// A request with a body, as text.
std::string test_request(const std::string& method, const std::string& path, const std::string& body,
                         const std::string& headers = "");

}  // namespace tandem
