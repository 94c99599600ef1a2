#include "transport/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"

namespace tandem {
namespace {

constexpr const char* kUcp = "libucp.so.0";  // the name that fixes the ABI of UCX 1.x
constexpr const char* kUcs = "libucs.so.0";

// UCX's own log lines: see the contract above.
ucs_log_func_rc_t log_line(const char*, unsigned, const char*, ucs_log_level_t level,
                           const ucs_log_component_config_t*, const char* format, va_list arguments) {
  std::array<char, 512> text;
  std::vsnprintf(text.data(), text.size(), format, arguments);
  const std::string line = std::string("ucx: ") + text.data();
  level == UCS_LOG_LEVEL_FATAL ? log_error(line) : log_debug(line);
  return UCS_LOG_FUNC_RC_STOP;
}

// Puts back at the end of its life what every signal did at the begin of it.
class KeptSignals {
 public:
  KeptSignals() {
    for (int number = 1; number <= kSignals; ++number)
      known_[number] = sigaction(number, nullptr, &kept_[number]) == 0;
  }
  ~KeptSignals() {
    for (int number = 1; number <= kSignals; ++number) {
      if (known_[number]) sigaction(number, &kept_[number], nullptr);
    }
  }

 private:
  static constexpr int kSignals = 31;  // the classic ones; UCX takes some of them only
  struct sigaction kept_[kSignals + 1];
  bool known_[kSignals + 1] = {};
};

std::unexpected<Error> refuse(const std::string& why) {
  return make_error(ErrorCode::unsupported, "transport ucx: " + why);
}

}  // namespace

Result<void> UcxLibrary::find_functions(void* ucp, void* ucs) {
  const char* missing = nullptr;
  const auto find = [&missing](void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr && missing == nullptr) missing = name;
    return found;
  };
#define TANDEM_UCP_FIND(name) name = reinterpret_cast<decltype(name)>(find(ucp, "ucp_" #name));
  TANDEM_UCP_FUNCTIONS(TANDEM_UCP_FIND)
#undef TANDEM_UCP_FIND
  status_string = reinterpret_cast<decltype(status_string)>(find(ucs, "ucs_status_string"));
  if (missing == nullptr) return {};
  return refuse(std::string(kUcp) + " has no " + missing + "; install UCX 1.13 or newer (Debian: libucx0)");
}

// No path: what the environment leaves.
Result<ucp_context_h> UcxLibrary::create_context(const UcxPath* path) const {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return refuse(std::string("its configuration cannot be read: ") + status_string(status) +
                  "; look at the variables UCX_*");
  }
  const auto set = [&](const char* name, const char* value) {
    if (std::getenv((std::string("UCX_") + name).c_str()) != nullptr) return;  // the user knows better
    if (config_modify(config, name, value) != UCS_OK) log_debug(std::string("ucx: no option ") + name);
  };
  set("MM_ERROR_HANDLING", "y");
  set("KEEPALIVE_INTERVAL", "inf");
  if (path != nullptr) {
    if (!path->devices.empty()) set("NET_DEVICES", path->devices.c_str());
    if (!path->shared_memory) set("TLS", "^sm");
  }
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.mt_workers_shared = 1;  // workers of several threads, each under its own lock
  ucp_context_h context = nullptr;
  const ucs_status_t status = init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context);
  config_release(config);
  if (status == UCS_OK) return context;
  std::string why = std::string("it does not start: ") + status_string(status);
  for (const char* name : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (const char* chosen = std::getenv(name)) why += std::string("; ") + name + " is " + chosen;
  }
  if (path == nullptr) return refuse(why);
  // A link that has just come up: UCX may take it at the next try.
  return make_error(ErrorCode::unavailable,
                    "transport ucx: " + why + "; the connection is over " + path->text());
}

Result<std::shared_ptr<ucp_context>> UcxLibrary::context(const UcxPath& path) const {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<ucp_context>& known = contexts_[path];
  if (auto context = known.lock()) return context;
  TANDEM_ASSIGN(const ucp_context_h created, create_context(&path));
  std::shared_ptr<ucp_context> context(created, [this](ucp_context_h last) {
    const std::lock_guard ending(mutex_);
    cleanup(last);
  });
  known = context;
  return context;
}

Result<const UcxLibrary*> UcxLibrary::load() {
  const KeptSignals kept;
  // Never unloaded: UCX keeps a thread and handlers of its own.
  void* ucp = dlopen(kUcp, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* ucs = ucp != nullptr ? dlopen(kUcs, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : nullptr;
  if (ucs == nullptr) {
    const char* why = dlerror();
    return refuse(std::string(why != nullptr ? why : "UCX cannot be loaded") +
                  "; install UCX (Debian: libucx0), or use tcp://");
  }
  auto* library = new UcxLibrary();  // for the life of the process
  library->process_ = getpid();
  TANDEM_TRY(library->find_functions(ucp, ucs));
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) {
    using Push = void (*)(ucs_log_func_t);
    if (const auto push = reinterpret_cast<Push>(dlsym(ucs, "ucs_log_push_handler"))) push(log_line);
  }
  unsigned major = 0, minor = 0, patch = 0;
  library->get_version(&major, &minor, &patch);
  library->release_ = major << 16 | (minor & 0xffff);
  // Refuses at the start what no connection could ever use; gone again, as each path has its own.
  TANDEM_ASSIGN(const ucp_context_h probed, library->create_context(nullptr));
  library->cleanup(probed);
  return library;
}

Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<const UcxLibrary*> loaded = load();
  if (loaded && (*loaded)->process_ != getpid()) {
    return refuse("this process was forked from one that uses UCX; start it as a new program");
  }
  return loaded;
}

}  // namespace tandem
