// Settings by which ranks know each other: a key or certificates, and what may listen without either.
// Any thread.
#pragma once

#include <memory>
#include <string>

#include "cli/settings.h"
#include "transport/peer_security.h"

namespace tandem {

// A host that is written as a name or an address which no other host reaches; what else a name may mean is
// the resolver's word of today.
bool is_loopback(const std::string& host);

void declare_peer_settings(OptionSet& set, AfdSettings& afd);

// Files that do not go together, or not with an address, are refused by name.
Result<void> validate_peer_settings(const Settings& settings);

// Of all connections between ranks of this process; null where nothing is set. Reads the files:
// invalid_argument names the setting, the file and what would do.
Result<std::shared_ptr<const PeerSecurity>> peer_security(const AfdSettings& afd);

// The same settings as flags of a rank that this process starts. Empty where nothing is set.
std::vector<std::string> peer_arguments(const AfdSettings& afd);

// An address of tcp or ucx that other hosts reach is refused where nobody must show who he is, unless
// afd.insecure. `key`: the setting that has the address.
Status check_listen_address(const AfdSettings& afd, const std::string& key, const std::string& address);

}  // namespace tandem
