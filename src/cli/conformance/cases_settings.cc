// Each key of the settings: a difference is refused by name (docs/protocol.md, section 4), but for those that
// may differ.
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// Another value of the key's kind.
std::string other_value(const std::string& key, const std::string& value) {
  if (key == "gate" || key == "shared_experts") return value == "ffn" ? "attention" : "ffn";
  if (value == "yes" || value == "no") return value == "yes" ? "no" : "yes";
  if (key == "protocol") return "2.0";
  if (!value.empty() && value.back() >= '0' && value.back() <= '8') {
    std::string other = value;
    ++other.back();
    return other;
  }
  return value + "0";
}

std::string hello_with(const RankFacts& facts, const std::string& key, const std::string& value) {
  RankFacts other = facts;
  for (auto& [name, said] : other.settings) {
    if (name == key) said = value;
  }
  return other.hello_text();
}

Status difference(Lab& lab, const std::string& key) {
  const std::string value = other_value(key, lab.facts.value(key));
  TANDEM_ASSIGN(const auto client, Client::greeted(lab));
  TANDEM_TRY(client->say_hello(hello_with(lab.facts, key, value)));
  // Kernels of another kind change last bits: allowed where nobody promised equal ones.
  if (key == "numerics_id" && !lab.facts.deterministic) {
    TANDEM_ASSIGN([[maybe_unused]] const Received ack, client->hello_ack());
    return {};
  }
  return expect_refuse(*client, key);
}

}  // namespace

void add_setting_cases(std::vector<Case>& cases) {
  std::vector<const char*> compared = {"protocol"};
  compared.insert(compared.end(), std::begin(kSettingKeys), std::end(kSettingKeys));
  for (const char* key : compared) {
    const bool numerics = std::string_view(key) == "numerics_id";
    cases.push_back({fmt::format("setting.{}", key),
                     numerics ? "another numerics_id is refused where sums are deterministic, and only there"
                              : fmt::format("another {} is refused, naming the key", key),
                     [key](Lab& lab) { return difference(lab, key); }});
  }
  cases.push_back({"setting.minor", "another minor version of protocol is served", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::greeted(lab));
                     TANDEM_TRY(client->say_hello(hello_with(lab.facts, "protocol", "1.9")));
                     TANDEM_ASSIGN([[maybe_unused]] const Received ack, client->hello_ack());
                     return {};
                   }});
  cases.push_back(
      {"setting.several", "of several differences the first is named with both values",
       [](Lab& lab) -> Status {
         RankFacts other = lab.facts;
         for (auto& [key, value] : other.settings) {
           if (key == "hidden_size" || key == "num_experts" || key == "top_k")
             value = other_value(key, value);
         }
         TANDEM_ASSIGN(const auto client, Client::greeted(lab));
         TANDEM_TRY(client->say_hello(other.hello_text()));
         const auto refusal = client->frame();
         if (!refusal) return mismatch("refuse", refusal.error().message);
         for (const std::string& word :
              {std::string("hidden_size"), lab.facts.value("hidden_size"), other.value("hidden_size")}) {
           if (refusal->reason().find(word) == std::string::npos)
             return mismatch("refuse that names " + word, refusal->text());
         }
         return {};
       }});
}

}  // namespace tandem::conformance
