// HttpResponseParser: an HTTP/1.1 response from bytes as they come, with Content-Length, chunked, or up to
// the end of the connection. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "serving/http_types.h"

namespace tandem {

class HttpResponseParser {
 public:
  // `on_head` once, then `on_body` for each piece, empty ones left out.
  HttpResponseParser(std::function<void(int status, const HttpHeaders&)> on_head,
                     std::function<void(std::string_view)> on_body);
  ~HttpResponseParser();

  // Takes bytes; gives back how many (fewer than all: the rest belongs to what comes next). data_loss: this
  // is not HTTP.
  Result<size_t> put(std::string_view bytes);
  // The connection has ended: true when that completes the response.
  bool put_end();

  bool got_some() const;  // at least a byte of the response
  bool is_done() const;
  bool keeps_alive() const;  // once done: the connection may carry another request

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Server-sent events from the pieces of a stream: the data of each event, its lines joined (the HTML
// standard, 9.2). Names and ids of events are dropped. One thread.
class EventReader {
 public:
  explicit EventReader(std::function<void(std::string_view data)> on_data) : on_data_(std::move(on_data)) {}
  void put(std::string_view piece);

 private:
  void take_line(std::string_view line);

  std::function<void(std::string_view)> on_data_;
  std::string line_, data_;
  bool has_data_ = false;
};

}  // namespace tandem
