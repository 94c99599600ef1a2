#include "cli/rank_addresses.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "cli/node_list.h"
#include "transport/address.h"

namespace tandem {
namespace {

constexpr const char* kSetting = "afd.ffn_address_pattern";
constexpr const char* kThisHost = "127.0.0.1";

// The host of every rank, in order of number.
struct Hosts {
  std::vector<std::string> names;
  std::string source;
};

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

const std::string* find(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? nullptr : &it->second;
}

// A number that a launcher gives in passing; -1: none, or no number.
int64_t number_in(const Environment& environment, const char* name) {
  const std::string* text = find(environment, name);
  int64_t value = -1;
  if (text == nullptr) return -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  return error == std::errc() && end == text->data() + text->size() ? value : -1;
}

// The node of each task, over nodes with so many tasks each.
std::vector<size_t> nodes_of_tasks(const std::vector<int64_t>& counts, bool cyclic) {
  std::vector<size_t> nodes;
  if (!cyclic) {
    for (size_t node = 0; node < counts.size(); ++node)
      nodes.insert(nodes.end(), static_cast<size_t>(counts[node]), node);
    return nodes;
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  for (int64_t round = 0; round < most; ++round) {
    for (size_t node = 0; node < counts.size(); ++node) {
      if (round < counts[node]) nodes.push_back(node);
    }
  }
  return nodes;
}

// In turn over the nodes, or in blocks, as SLURM does by itself.
Result<bool> is_cyclic(const Environment& environment) {
  const std::string* text = find(environment, "SLURM_DISTRIBUTION");
  if (text == nullptr) return false;
  // Behind the first colon or comma: how tasks lie on a node's sockets and cores.
  std::string word = text->substr(0, text->find_first_of(":,"));
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "cyclic") return true;
  if (word.empty() || word == "block" || word == "*") return false;
  return invalid(
      "SLURM_DISTRIBUTION: " + *text +
      " says no order of nodes that is known here; start with --distribution=block or cyclic, or list "
      "the addresses in afd.ffn");
}

Result<std::optional<Hosts>> slurm_hosts(const LauncherPlace& place, int64_t size,
                                         const Environment& environment) {
  const char* list_name = "SLURM_STEP_NODELIST";
  const char* counts_name = "SLURM_STEP_TASKS_PER_NODE";
  const std::string* list = find(environment, list_name);
  if (list == nullptr) {
    counts_name = "SLURM_TASKS_PER_NODE";
    for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      list_name = name;
      list = find(environment, name);
      if (list != nullptr) break;
    }
  }
  if (list == nullptr) return std::nullopt;
  TANDEM_ASSIGN(const auto nodes, expand_node_list(*list, list_name));
  std::vector<int64_t> counts;
  if (const std::string* text = find(environment, counts_name)) {
    TANDEM_ASSIGN(counts, expand_task_counts(*text, nodes.size(), counts_name));
  } else if (nodes.size() == 1) {
    counts = {size};
  } else if (static_cast<int64_t>(nodes.size()) == size) {
    counts.assign(nodes.size(), 1);
  } else {
    return invalid(std::string(counts_name) + ": not set, and " + list_name + " has " +
                   std::to_string(nodes.size()) + " nodes for " + std::to_string(size) +
                   " tasks; list the addresses in afd.ffn");
  }
  TANDEM_ASSIGN(const bool cyclic, is_cyclic(environment));
  // Each count can be as large as a number: add up no further than needed to see that they are too many.
  int64_t tasks = 0;
  for (const int64_t count : counts) tasks = std::min(tasks + std::min(count, size + 1), size + 1);
  if (tasks != size) {
    return invalid(std::string(counts_name) + ": " + environment.at(counts_name) + " does not count the " +
                   std::to_string(size) + " tasks of " + place.text + "; list the addresses in afd.ffn");
  }
  const std::vector<size_t> node_of = nodes_of_tasks(counts, cyclic);
  const auto own = static_cast<int64_t>(node_of[static_cast<size_t>(place.number)]);
  if (const int64_t said = number_in(environment, "SLURM_NODEID"); said >= 0 && said != own) {
    return invalid("SLURM_NODEID: " + std::to_string(said) + ", and " + (cyclic ? "in turn" : "in blocks") +
                   " over " + list_name + " " + *list + " task " + std::to_string(place.number) +
                   " is on node " + std::to_string(own) +
                   "; start with --distribution=block or cyclic, or list the addresses in afd.ffn");
  }
  Hosts hosts;
  hosts.source = std::string(list_name) + " " + *list;
  for (const size_t node : node_of) hosts.names.push_back(nodes[node]);
  return hosts;
}

Result<std::optional<Hosts>> worker_set_hosts(int64_t size, const Environment& environment) {
  const std::string* leader = find(environment, "LWS_LEADER_ADDRESS");
  if (leader == nullptr) return std::nullopt;
  const size_t dot = leader->find('.');
  if (dot == 0 || dot == std::string::npos) {
    return invalid("LWS_LEADER_ADDRESS: '" + *leader +
                   "' is not pod.service, by which workers could be named; list the addresses in afd.ffn");
  }
  Hosts hosts;
  hosts.source = "LWS_LEADER_ADDRESS " + *leader;
  hosts.names.push_back(*leader);
  for (int64_t worker = 1; worker < size; ++worker)
    hosts.names.push_back(leader->substr(0, dot) + "-" + std::to_string(worker) + leader->substr(dot));
  return hosts;
}

Result<std::optional<Hosts>> find_hosts(int64_t all, const Environment& environment) {
  TANDEM_ASSIGN(const auto place, find_place(environment));
  if (!place) return std::nullopt;
  const int64_t slurm_size = find(environment, "SLURM_STEP_NUM_TASKS") != nullptr
                                 ? number_in(environment, "SLURM_STEP_NUM_TASKS")
                                 : number_in(environment, "SLURM_NTASKS");
  const int64_t size = place->size < 0 && place->launcher == "PMIx" ? slurm_size : place->size;
  if (size != all || place->number >= size) return std::nullopt;
  const bool by_srun = number_in(environment, "SLURM_PROCID") == place->number && slurm_size == size &&
                       (place->launcher == "SLURM" || place->launcher == "PMI" || place->launcher == "PMIx");
  if (by_srun) return slurm_hosts(*place, size, environment);
  if (place->launcher == "LeaderWorkerSet") return worker_set_hosts(size, environment);
  // Open MPI and MPICH's mpiexec: as many on this host as there are.
  for (const char* local : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const bool known = place->launcher == (std::string(local).starts_with("OMPI") ? "Open MPI" : "PMI");
    if (known && number_in(environment, local) == size) {
      const std::vector<std::string> here(static_cast<size_t>(size), kThisHost);
      return Hosts{here, std::string(local) + " " + std::to_string(size)};
    }
  }
  return std::nullopt;
}

struct Pattern {
  std::string scheme, host;
  int64_t port = 0;
  bool has_node = false;
};

Result<Pattern> parse_pattern(const AddressQuestion& question) {
  const auto refuse = [&](const std::string& what) {
    return invalid(std::string(kSetting) + ": '" + question.pattern + "' " + what +
                   "; use tcp://{node}:7000 or its like");
  };
  std::string plain;  // with a word for each placeholder
  Pattern pattern;
  bool counts = false;
  for (size_t at = 0; at < question.pattern.size();) {
    if (question.pattern[at] == '}') return refuse("has a '}' that closes nothing");
    if (question.pattern[at] != '{') {
      plain += question.pattern[at++];
      continue;
    }
    const size_t close = question.pattern.find('}', at);
    if (close == std::string::npos) return refuse("has a '{' that is not closed");
    const std::string word = question.pattern.substr(at + 1, close - at - 1);
    if (word != "node" && word != "rank" && word != "number")
      return refuse("has {" + word + "}; known are {node}, {rank} and {number}");
    (word == "node" ? pattern.has_node : counts) = true;
    plain += 'x';
    at = close + 1;
  }
  const auto address = parse_address(plain);
  if (!address) return refuse("is no address");
  if (address->scheme != "tcp" && address->scheme != "ucx") return refuse("is not of tcp or ucx");
  const auto host_port = parse_host_port(address->rest, question.pattern);
  if (!host_port || host_port->host.empty() || host_port->port == 0) return refuse("needs a host and a port");
  if (!pattern.has_node && !counts && question.ffn_ranks > 1)
    return refuse("names one host for " + std::to_string(question.ffn_ranks) + " FFN ranks");
  const size_t colon = question.pattern.rfind(':');
  if (question.pattern.find('{', colon) != std::string::npos) return refuse("has a placeholder in its port");
  pattern.scheme = address->scheme;
  pattern.port = host_port->port;
  const size_t begin = question.pattern.find("://");
  const size_t host = begin == std::string::npos ? 0 : begin + 3;
  pattern.host = question.pattern.substr(host, colon - host);
  return pattern;
}

std::string filled(std::string text, const std::string& placeholder, const std::string& value) {
  for (size_t at = 0; (at = text.find(placeholder, at)) != std::string::npos; at += value.size())
    text.replace(at, placeholder.size(), value);
  return text;
}

}  // namespace

Result<std::optional<RankAddresses>> find_addresses(const AddressQuestion& question,
                                                    const Environment& environment) {
  TANDEM_ASSIGN(const Pattern pattern, parse_pattern(question));
  Hosts hosts;
  hosts.source = std::string(kSetting) + " " + question.pattern;
  bool one_host = false;
  if (pattern.has_node) {
    if (!question.launcher_counts) return std::nullopt;
    TANDEM_ASSIGN(auto found, find_hosts(question.attention_ranks + question.ffn_ranks, environment));
    // With more around it than its name, this host's own address is none.
    if (!found || (found->names.front() == kThisHost && pattern.host != "{node}")) return std::nullopt;
    hosts = std::move(*found);
    one_host = pattern.host == "{node}" &&
               std::all_of(hosts.names.begin(), hosts.names.end(),
                           [&](const std::string& name) { return name == hosts.names.front(); });
  }
  RankAddresses addresses;
  addresses.source = hosts.source;
  std::map<std::string, int64_t> ranks_on;
  for (int64_t rank = 0; rank < question.ffn_ranks; ++rank) {
    const int64_t number = question.attention_ranks + rank;
    // Ranks of one host need no network, and ask nobody for its name.
    const std::string node = !pattern.has_node ? ""
                             : one_host        ? kThisHost
                                               : hosts.names[static_cast<size_t>(number)];
    std::string host = filled(pattern.host, "{node}", node);
    host = filled(host, "{rank}", std::to_string(rank));
    host = filled(host, "{number}", std::to_string(number));
    const int64_t port = pattern.port + (pattern.has_node ? ranks_on[node]++ : 0);
    if (port > UINT16_MAX) {
      return invalid(std::string(kSetting) + ": '" + question.pattern + "': FFN rank " +
                     std::to_string(rank) + " would listen at port " + std::to_string(port) +
                     "; begin at a lower one");
    }
    const std::string end = ":" + std::to_string(port);
    addresses.ffn.push_back(pattern.scheme + "://" + host + end);
    addresses.listen.push_back(one_host ? addresses.ffn.back() : pattern.scheme + "://0.0.0.0" + end);
  }
  return addresses;
}

}  // namespace tandem
