// UcxLibrary: libucp and libucs, loaded when the first ucx:// address is used, and the UCX contexts of the
// process: one for each path that its connections take. Loaded then and not linked: at load UCX installs
// signal handlers, reads its environment and starts bookkeeping, which a process that talks over shm or tcp
// must not pay for. Any thread.
//
// What this does so that UCX keeps to our rules, whatever the environment says less:
// - signals: the handlers that were there before UCX was loaded are put back;
// - logging: UCX's lines go to our log at level debug, because the endpoint says once, in its own words, what
//   became of a peer. A user who sets UCX_LOG_LEVEL gets UCX's lines from UCX;
// - liveness is ours, so UCX's keepalive is off; shared memory is allowed to report errors, without which UCX
//   would not use it for endpoints that must survive their peer. Each can be overridden by UCX's variable.
// - networks: UCX takes only those of the connection's path (ucx_path.h), and no shared memory when the path
//   has none. UCX_NET_DEVICES and UCX_TLS go before either.
// - fork: a process that was forked from one that uses UCX is refused: UCX's threads did not come along.
#pragma once

#include <ucp/api/ucp.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "transport/ucx_path.h"

namespace tandem {

class UcxLibrary {
 public:
  // unsupported: libucx is not installed, or this process was forked from one that had loaded it.
  // Also when UCX_TLS and UCX_NET_DEVICES leave UCX nothing to use.
  static Result<const UcxLibrary*> get();

  // The context for a path: that of the connections that use the path now, or a new one, which takes
  // milliseconds. It goes with its last holder, because UCX looks for devices when it is made, and a link may
  // come up later. Destroy it after its workers. unavailable: UCX takes no device of the path.
  Result<std::shared_ptr<ucp_context>> context(const UcxPath& path) const;
  // major << 16 | minor: peers must have the same, because UCX promises its wire format for one release only.
  uint32_t release() const { return release_; }

  // clang-format off: each of its runs breaks these lines elsewhere
#define TANDEM_UCP_FUNCTIONS(_) \
  _(get_version) _(config_read) _(config_modify) _(config_release) _(init_version) \
  _(cleanup) _(worker_create) _(worker_destroy) _(worker_get_address) _(worker_release_address) \
  _(worker_get_efd) _(worker_arm) _(worker_progress) _(worker_set_am_recv_handler) _(ep_create) \
  _(ep_close_nbx) _(am_send_nbx) _(am_recv_data_nbx) _(request_check_status) _(request_free)
// clang-format on
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member cannot stand in parentheses
#define TANDEM_UCP_DECLARE(name) decltype(&ucp_##name) name = nullptr;
  TANDEM_UCP_FUNCTIONS(TANDEM_UCP_DECLARE)
#undef TANDEM_UCP_DECLARE
  const char* (*status_string)(ucs_status_t) = nullptr;

 private:
  UcxLibrary() = default;
  static Result<const UcxLibrary*> load();
  Result<void> find_functions(void* ucp, void* ucs);
  Result<ucp_context_h> create_context(const UcxPath* path) const;

  mutable std::mutex mutex_;
  mutable std::map<UcxPath, std::weak_ptr<ucp_context>> contexts_;
  uint32_t release_ = 0;
  int process_ = 0;
};

}  // namespace tandem
