#include "cli/rank_environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>

namespace tandem {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* sizes[2];  // the first that is set
};
constexpr Launcher kLaunchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE", nullptr}},
    {"PMI", "PMI_RANK", {"PMI_SIZE", nullptr}},
    {"PMIx", "PMIX_RANK", {"PMIX_SIZE", nullptr}},
    {"SLURM", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
    {"LeaderWorkerSet", "LWS_WORKER_INDEX", {"LWS_GROUP_SIZE", nullptr}},
    {"Kubernetes", "JOB_COMPLETION_INDEX", {nullptr, nullptr}},
};
constexpr const char* kClusterVariable = "KUBERNETES_SERVICE_HOST";  // set in every pod
constexpr const char* kPodNames[] = {"POD_NAME", "HOSTNAME"};

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

std::optional<int64_t> parse(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

const std::string* find(const Environment& environment, const char* name) {
  const auto it = name == nullptr ? environment.end() : environment.find(name);
  return it == environment.end() ? nullptr : &it->second;
}

Result<int64_t> number_of(const char* name, const std::string& text) {
  if (const auto value = parse(text)) return *value;
  return invalid(std::string(name) + ": '" + text +
                 "' is not a number; unset it, or say the rank with a flag");
}

}  // namespace

Result<std::optional<LauncherPlace>> find_place(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const std::string* rank = find(environment, launcher.rank);
    if (rank == nullptr) continue;
    LauncherPlace place;
    place.launcher = launcher.name;
    TANDEM_ASSIGN(place.number, number_of(launcher.rank, *rank));
    place.text = std::string(launcher.rank) + " " + *rank;
    for (const char* name : launcher.sizes) {
      const std::string* size = find(environment, name);
      if (size == nullptr) continue;
      TANDEM_ASSIGN(place.size, number_of(name, *size));
      place.text += " of " + *size;
      if (place.number >= place.size)
        return make_error(ErrorCode::out_of_range,
                          std::string(launcher.rank) + ": " + *rank + " is not below " + name + " " + *size);
      break;
    }
    return place;
  }
  if (find(environment, kClusterVariable) == nullptr) return std::nullopt;
  for (const char* name : kPodNames) {
    const std::string* pod = find(environment, name);
    if (pod == nullptr) continue;
    const size_t dash = pod->rfind('-');
    // A Deployment's pods end in letters, and have no number.
    const auto ordinal = dash == std::string::npos ? std::nullopt : parse(pod->substr(dash + 1));
    if (ordinal) return LauncherPlace{"Kubernetes", *ordinal, -1, std::string(name) + " " + *pod};
  }
  return std::nullopt;
}

namespace {

std::string rank_text(const std::string& role, int64_t rank) {
  return (role == "ffn" ? "FFN rank " : "attention rank ") + std::to_string(rank);
}

struct Assigned {
  std::string role;
  int64_t rank = 0;
  std::string note;
};

// The rank of a process whose launcher counts `place`.
Result<Assigned> assign(const RankQuestion& question, const LauncherPlace& place) {
  const int64_t attention = question.attention_ranks;
  const int64_t all = attention + question.ffn_ranks;
  const std::string shape = std::to_string(attention) + "A" + std::to_string(question.ffn_ranks) + "F";
  const auto of_all = [&](int64_t number) {
    return number < attention ? Assigned{"attention", number, ""} : Assigned{"ffn", number - attention, ""};
  };
  if (question.role.empty()) {
    if (place.size >= 0 && place.size != all) {
      return make_error(
          ErrorCode::out_of_range,
          place.text + ": " + shape + " takes " + std::to_string(all) +
              " processes; start as many, or set afd.num_attention_ranks and afd.num_ffn_ranks");
    }
    if (place.number >= all)
      return make_error(ErrorCode::out_of_range,
                        place.text + ": " + shape + " has ranks 0.." + std::to_string(all - 1));
    return of_all(place.number);
  }
  const int64_t count = question.role == "ffn" ? question.ffn_ranks : attention;
  const std::string key = question.role == "ffn" ? "afd.ffn_rank" : "afd.attention_rank";
  if (place.size == all) {
    Assigned found = of_all(place.number);
    if (found.role == question.role) return found;
    return invalid(place.text + " is " + rank_text(found.role, found.rank) + " of " + shape +
                   ", and this is tandem " + question.role +
                   "; use tandem rank, which takes either role, or give " + key);
  }
  if (place.size < 0 ? place.number < count : place.size == count)
    return Assigned{question.role, place.number, ""};
  if (count == 1)  // a shell of a larger job, say: there is nothing to choose
    return Assigned{question.role, 0,
                    place.text + " is not used: " + shape + " has one " + question.role + " rank"};
  return make_error(ErrorCode::out_of_range, place.text + ": " + shape + " has " + std::to_string(count) +
                                                 " " + question.role + " ranks, " + std::to_string(all) +
                                                 " in all; start as many, or give " + key);
}

}  // namespace

Result<RankAnswer> find_rank(const RankQuestion& question, const Environment& environment) {
  auto place = find_place(environment);
  if (question.given >= 0) {
    const int64_t count = question.role == "ffn" ? question.ffn_ranks : question.attention_ranks;
    const std::string key = question.role == "ffn" ? "afd.ffn_rank" : "afd.attention_rank";
    if (question.given >= count) {
      return make_error(ErrorCode::out_of_range, key + ": " + std::to_string(question.given) +
                                                     " is not in 0.." + std::to_string(count - 1));
    }
    RankAnswer answer{question.role, question.given, key, ""};
    if (!place || !*place) return answer;
    const auto assigned = assign(question, **place);
    if (!assigned || assigned->rank != question.given)
      answer.note = key + " " + std::to_string(question.given) + " goes before " + (*place)->text;
    return answer;
  }
  if (!place) return std::unexpected(place.error());
  if (!*place) {
    if (question.role.empty()) {
      return invalid(
          "no launcher says which rank this is (SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, "
          "JOB_COMPLETION_INDEX); use tandem attention or tandem ffn, or give --role and a rank");
    }
    return RankAnswer{question.role, 0, "the default", ""};
  }
  TANDEM_ASSIGN(const Assigned assigned, assign(question, **place));
  return RankAnswer{assigned.role, assigned.rank, (*place)->text, assigned.note};
}

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t at = text.find('='); at != std::string::npos)
      environment[text.substr(0, at)] = text.substr(at + 1);
  }
  return environment;
}

}  // namespace tandem
