#include "cli/peer_settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "transport/address.h"

namespace tandem {
namespace {

bool has_tls(const AfdSettings& afd) {
  return !afd.peer_tls_certificate.empty() || !afd.peer_tls_key.empty() || !afd.peer_tls_ca.empty();
}

std::unexpected<Error> refuse(const std::string& what, const std::string& remedy) {
  return make_error(ErrorCode::unsupported, what + " is not supported; use " + remedy);
}

}  // namespace

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

void declare_peer_settings(OptionSet& set, AfdSettings& afd) {
  set.boolean("afd.insecure", afd.insecure,
              "Let a rank listen on an address that other hosts reach although peers need not show who they "
              "are: for networks that nobody else is in.");
  set.text("afd.peer_key_file", afd.peer_key_file,
           "File with the secret of the deployment, 32 bytes or more (openssl rand -hex 32), mode 600, the "
           "same for all ranks: over tcp and ucx each side proves that it has it before anything else is "
           "said. Nothing is encrypted (docs/security.md). Empty: none.");
  set.text(
      "afd.peer_tls_certificate", afd.peer_tls_certificate,
      "PEM file of this rank's certificate, with what is between it and its CA: connections between ranks "
      "over tcp are inside TLS 1.3, and both sides show one. Needs afd.peer_tls_key and afd.peer_tls_ca. "
      "Empty: no TLS.");
  set.text("afd.peer_tls_key", afd.peer_tls_key,
           "PEM file of that certificate's private key, without a password, mode 600.");
  set.text("afd.peer_tls_ca", afd.peer_tls_ca,
           "PEM file of the CA that must have signed the certificate of a peer. Names are not compared: a CA "
           "of the deployment alone.");
}

Result<void> validate_peer_settings(const Settings& settings) {
  const AfdSettings& afd = settings.afd;
  if (!has_tls(afd)) return {};
  for (const auto& [key, file] :
       {std::pair("afd.peer_tls_certificate", afd.peer_tls_certificate),
        std::pair("afd.peer_tls_key", afd.peer_tls_key), std::pair("afd.peer_tls_ca", afd.peer_tls_ca)}) {
    if (file.empty())
      return refuse("TLS between ranks without " + std::string(key), "all three files, or none of them");
  }
  if (!afd.peer_key_file.empty())
    return refuse("afd.peer_key_file with afd.peer_tls_certificate",
                  "one of the two: TLS already shows who a peer is");
  std::vector<std::string> addresses = afd.ffn;
  addresses.insert(addresses.end(), afd.attention.begin(), afd.attention.end());
  addresses.insert(addresses.end(), {afd.listen, afd.attention_listen, settings.up.transport + "://"});
  for (const std::string& address : addresses) {
    if (address.starts_with("ucx://"))
      return refuse("afd.peer_tls_certificate with ucx", "tcp, or afd.peer_key_file: ucx encrypts nothing");
  }
  return {};
}

Result<std::shared_ptr<const PeerSecurity>> peer_security(const AfdSettings& afd) {
  if (has_tls(afd)) {
    auto security = PeerSecurity::with_tls({afd.peer_tls_certificate, afd.peer_tls_key, afd.peer_tls_ca});
    if (!security) return make_error(security.error().code, "TLS between ranks: " + security.error().message);
    return security;
  }
  if (afd.peer_key_file.empty()) return nullptr;
  auto security = PeerSecurity::with_key_file(afd.peer_key_file);
  if (!security) return make_error(security.error().code, "afd.peer_key_file: " + security.error().message);
  return security;
}

std::vector<std::string> peer_arguments(const AfdSettings& afd) {
  std::vector<std::string> arguments;
  if (!afd.peer_key_file.empty()) arguments.push_back("--peer-key-file=" + afd.peer_key_file);
  if (has_tls(afd)) {
    arguments.insert(arguments.end(),
                     {"--peer-tls-certificate=" + afd.peer_tls_certificate,
                      "--peer-tls-key=" + afd.peer_tls_key, "--peer-tls-ca=" + afd.peer_tls_ca});
  }
  return arguments;
}

Status check_listen_address(const AfdSettings& afd, const std::string& key, const std::string& address) {
  if (afd.insecure || !afd.peer_key_file.empty() || has_tls(afd)) return {};
  TANDEM_ASSIGN(const Address parsed, parse_address(address));
  if (parsed.scheme != "tcp" && parsed.scheme != "ucx") return {};
  TANDEM_ASSIGN(const HostPort host_port, parse_host_port(parsed.rest, address));
  if (is_loopback(host_port.host)) return {};
  return make_error(
      ErrorCode::invalid_argument,
      key + ": other hosts reach " + address +
          " and nothing says who may use it; give all ranks the same --peer-key-file, or "
          "certificates (--peer-tls-certificate), or say --insecure on a network that nobody else is in");
}

}  // namespace tandem
