#include "cli/rank_setup.h"

#include "base/log.h"
#include "cli/rank_addresses.h"
#include "cli/rank_environment.h"

namespace tandem {

Result<std::string> settle_rank(Settings& settings, const std::string& role) {
  AfdSettings& afd = settings.afd;
  RankQuestion question;
  question.role = role;
  question.attention_ranks = settings.attention_ranks();
  question.ffn_ranks = std::max(afd.num_ffn_ranks, static_cast<int64_t>(afd.ffn.size()));
  question.given = role == "ffn" ? afd.ffn_rank : role == "attention" ? afd.attention_rank : -1;
  const Environment environment = process_environment();
  TANDEM_ASSIGN(const RankAnswer answer, find_rank(question, environment));
  afd.num_attention_ranks = question.attention_ranks;
  afd.num_ffn_ranks = question.ffn_ranks;
  const auto index = static_cast<size_t>(answer.rank);
  std::optional<RankAddresses> derived;
  if (afd.ffn.empty()) {
    const AddressQuestion asked{question.attention_ranks, question.ffn_ranks, afd.ffn_address_pattern,
                                answer.note.empty()};
    TANDEM_ASSIGN(derived, find_addresses(asked, environment));
  }
  if (derived) {
    afd.ffn = derived->ffn;
    if (answer.role == "ffn" && afd.listen.empty()) afd.listen = derived->listen[index];
  }
  if (answer.role == "ffn") {
    afd.ffn_rank = answer.rank;
    if (afd.listen.empty()) afd.listen = afd.ffn.empty() ? kDefaultFfnAddress : afd.ffn[index];
  } else {
    afd.attention_rank = answer.rank;
    if (afd.attention_listen.empty() && !afd.attention.empty()) afd.attention_listen = afd.attention[index];
  }
  set_log_name(answer.role + std::to_string(answer.rank));
  if (answer.source.find(' ') != std::string::npos && answer.source != "the default")
    log_info(answer.role + " rank " + std::to_string(answer.rank) + ", by " + answer.source);
  if (!answer.note.empty()) log_warning(answer.note);
  if (derived) {
    std::string all;
    for (const std::string& address : derived->ffn) all += (all.empty() ? "" : ",") + address;
    log_info("afd.ffn: " + all + ", by " + derived->source);
  }
  return answer.role;
}

}  // namespace tandem
