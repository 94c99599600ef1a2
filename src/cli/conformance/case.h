// Case: one thing that docs/protocol.md demands of an FFN rank, as a program that shows it; and what cases
// say. A case leaves the rank serving: whoever runs it checks that a session that did nothing wrong goes on.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/conformance/client.h"

namespace tandem::conformance {

struct Case {
  std::string name;     // "carrier.garbage": group and thing
  std::string expects;  // what the rank must do
  std::function<Status(Lab&)> run;
  // Why the rank under test cannot show it: a placement that has no such thing. Empty: it can.
  std::function<std::string(const RankFacts&)> skip = {};
};

// All cases, in the order in which they run. Some are one for each setting, hence the facts.
std::vector<Case> all_cases();
void add_carrier_cases(std::vector<Case>& cases);
void add_credit_cases(std::vector<Case>& cases);
void add_handshake_cases(std::vector<Case>& cases);
void add_setting_cases(std::vector<Case>& cases);
void add_frame_cases(std::vector<Case>& cases);
void add_rule_cases(std::vector<Case>& cases);
void add_request_cases(std::vector<Case>& cases);
void add_value_cases(std::vector<Case>& cases);
void add_session_cases(std::vector<Case>& cases);
void add_number_cases(std::vector<Case>& cases);
void add_key_cases(std::vector<Case>& cases);
void add_tls_cases(std::vector<Case>& cases);

// ---- what a case says ----

std::unexpected<Error> mismatch(const std::string& expected, const std::string& got);

// The reply to `request`: its header repeated, output of the agreed dtype and width, times.
Result<Received> expect_reply(Client& client, const RawFrame& request);
// The same with an error of a wrong request: invalid_argument, out_of_range or unsupported, and words.
Status expect_error_reply(Client& client, const RawFrame& request);
// `refuse` with a code and words; `word`: which they have.
Status expect_refuse(Client& client, std::string_view word = {});
// The connection ends without another message; `limit`: as of Client::frame.
Status expect_end(Client& client, Duration limit = Duration::zero());
// No message for a while: as long as a busy machine may need for an answer that should not come.
Status expect_quiet(Client& client);
// Sends a right request and awaits its reply.
Status expect_served(Client& client);

// A reply's rows as floats, for comparisons; its bytes tell more.
std::vector<double> output_values(const Received& reply, const RankFacts& facts);
std::vector<double> values_of(const Bytes& bytes, const RankFacts& facts);  // of the reply dtype
Bytes output_bytes(const Received& reply);

// ---- why a case is left out ----
std::string without_routing(const RankFacts& facts);    // the gate is on FFN
std::string without_token_ids(const RankFacts& facts);  // no token ids travel
std::string with_routing(const RankFacts& facts);       // the gate is on attention

}  // namespace tandem::conformance
