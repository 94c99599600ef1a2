// TLS with certificates on both sides (docs/protocol.md, section 13): nothing is said outside
// of it, and inside of it nothing to whom the rank's CA has not signed.
#include <fmt/format.h>

#include "cli/conformance/case.h"
#include "cli/conformance/tls_stranger.h"

namespace tandem::conformance {
namespace {

std::string without_tls(const RankFacts& facts) {
  return facts.carrier.security == static_cast<uint32_t>(SecurityMode::tls)
             ? ""
             : "the rank does not speak TLS (--peer-tls-certificate)";
}

// A record of TLS that says why there is none: what may come back to bytes that are no TLS.
constexpr std::byte kAlert{21};

// `bytes` outside of TLS: the connection ends, without a word of this protocol.
Status expect_no_answer(Lab& lab, const Bytes& bytes) {
  TANDEM_ASSIGN(const auto wire, Connection::open(lab.peer, lab.connections, Wrap::none));
  TANDEM_TRY(wire->send(bytes));
  const Instant deadline = now() + lab.patience();
  while (true) {
    const auto said = wire->next_bytes(deadline - now());
    if (!said) return {};
    if (said->empty()) return mismatch("the end of the connection", "an open one");
    if (said->front() != kAlert)
      return mismatch("no word outside of TLS but an alert", fmt::format("{} bytes", said->size()));
  }
}

Case stranger_case(const std::string& name, const std::string& expects, TlsStranger stranger) {
  return {"security." + name, expects, [stranger](Lab& lab) { return expect_refused(lab, stranger); },
          without_tls};
}

}  // namespace

void add_tls_cases(std::vector<Case>& cases) {
  cases.push_back({"security.tls_plain_hello", "a hello outside of TLS gets no hello and no byte of a result",
                   [](Lab& lab) { return expect_no_answer(lab, carrier_greeting(lab.facts.carrier)); },
                   without_tls});
  cases.push_back({"security.tls_plain_hello_none", "neither does one that says that it has no security",
                   [](Lab& lab) {
                     CarrierNumbers numbers = lab.facts.carrier;
                     numbers.security = 0;
                     return expect_no_answer(lab, carrier_greeting(numbers));
                   },
                   without_tls});
  cases.push_back(stranger_case("tls_no_certificate", "TLS without a certificate gets no byte",
                                TlsStranger::no_certificate));
  cases.push_back(stranger_case("tls_foreign_certificate", "a certificate of another CA gets no byte",
                                TlsStranger::foreign_certificate));
  cases.push_back(
      stranger_case("tls_old_version", "TLS 1.2 gets no byte, whatever it shows", TlsStranger::old_version));
}

}  // namespace tandem::conformance
