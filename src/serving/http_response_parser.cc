#include "serving/http_response_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cctype>
#include <utility>

namespace tandem {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

namespace {

class Parser final : public http::basic_parser<false> {
 public:
  Parser(std::function<void(int, const HttpHeaders&)> on_head, std::function<void(std::string_view)> on_body)
      : on_head_(std::move(on_head)), on_body_(std::move(on_body)) {
    eager(true);
    // What is received is handed on piece by piece: its length is no danger here.
    body_limit(boost::none);
  }

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_response_impl(int status, string_view, int, error_code&) override {
    status_ = status;
    headers_.clear();
  }
  void on_field_impl(http::field, string_view name, string_view value, error_code&) override {
    std::string lower(name);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    headers_.emplace_back(std::move(lower), std::string(value));
  }
  void on_header_impl(error_code&) override { on_head_(status_, headers_); }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  size_t on_body_impl(string_view body, error_code&) override {
    if (!body.empty()) on_body_({body.data(), body.size()});
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code&) override {
    if (!body.empty()) on_body_({body.data(), body.size()});
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  std::function<void(int, const HttpHeaders&)> on_head_;
  std::function<void(std::string_view)> on_body_;
  int status_ = 0;
  HttpHeaders headers_;
};

}  // namespace

struct HttpResponseParser::Impl {
  Parser parser;
  std::string pending;  // bytes that the parser wants to see again with more behind them
  bool got_some = false;
};

HttpResponseParser::HttpResponseParser(std::function<void(int, const HttpHeaders&)> on_head,
                                       std::function<void(std::string_view)> on_body)
    : impl_(new Impl{{std::move(on_head), std::move(on_body)}, {}, false}) {}
HttpResponseParser::~HttpResponseParser() = default;

Result<size_t> HttpResponseParser::put(std::string_view bytes) {
  if (bytes.empty()) return 0;
  impl_->got_some = true;
  const size_t before = impl_->pending.size();
  impl_->pending.append(bytes);
  size_t used = 0;
  while (used < impl_->pending.size() && !impl_->parser.is_done()) {
    error_code ec;
    const size_t taken = impl_->parser.put(
        boost::asio::const_buffer(impl_->pending.data() + used, impl_->pending.size() - used), ec);
    used += taken;
    if (ec == http::error::need_more) break;
    if (ec) return make_error(ErrorCode::data_loss, "the reply is not HTTP/1.1: " + ec.message());
    if (taken == 0) break;
  }
  impl_->pending.erase(0, used);
  if (!impl_->parser.is_done()) return bytes.size();
  impl_->pending.clear();
  return used > before ? used - before : 0;
}

bool HttpResponseParser::put_end() {
  if (impl_->parser.is_done()) return true;
  error_code ec;
  if (impl_->got_some) impl_->parser.put_eof(ec);
  return !ec && impl_->parser.is_done();
}

bool HttpResponseParser::got_some() const {
  return impl_->got_some;
}
bool HttpResponseParser::is_done() const {
  return impl_->parser.is_done();
}
bool HttpResponseParser::keeps_alive() const {
  return impl_->parser.is_done() && impl_->parser.keep_alive();
}

void EventReader::put(std::string_view piece) {
  // CR LF is the usual end of a line beside LF; a CR alone, which the standard allows too, no server sends.
  for (size_t at; (at = piece.find('\n')) != std::string_view::npos; piece.remove_prefix(at + 1)) {
    line_.append(piece.substr(0, at));
    if (line_.ends_with('\r')) line_.pop_back();
    take_line(line_);
    line_.clear();
  }
  line_.append(piece);
}

void EventReader::take_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) on_data_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!line.starts_with("data:")) return;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_.append(line);
  has_data_ = true;
}

}  // namespace tandem
