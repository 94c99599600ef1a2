// TlsStranger: somebody who is no peer before the door of a rank that speaks TLS. He believes whatever
// certificate the rank shows; what the rank makes of his is the question. One thread.
#pragma once

#include "cli/conformance/client.h"

namespace tandem::conformance {

enum class TlsStranger {
  no_certificate,       // shows none
  foreign_certificate,  // shows one that it has signed itself
  old_version,          // shows the right one, and speaks TLS 1.2
};

// The rank ends the connection before a byte of its own came through TLS, although the stranger says the
// carrier's hello as soon as he can. An error says what was expected and what came.
Status expect_refused(Lab& lab, TlsStranger stranger);

}  // namespace tandem::conformance
