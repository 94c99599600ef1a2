// UcxLibrary: libucp and libucs, loaded when the first ucx:// address is used, and the one UCX context of the
// process. Loaded then and not linked: at load UCX installs signal handlers, reads its environment and starts
// bookkeeping, which a process that talks over shm or tcp must not pay for. Any thread.
//
// What this does so that UCX keeps to our rules, whatever the environment says less:
// - signals: the handlers that were there before UCX was loaded are put back;
// - logging: UCX's lines go to our log at level debug, because the endpoint says once, in its own words, what
//   became of a peer. A user who sets UCX_LOG_LEVEL gets UCX's lines from UCX;
// - liveness is ours, so UCX's keepalive is off; shared memory is allowed to report errors, without which UCX
//   would not use it for endpoints that must survive their peer. Each can be overridden by UCX's variable.
// - fork: a process that was forked from one that uses UCX is refused: UCX's threads did not come along.
#pragma once

#include <ucp/api/ucp.h>

#include "base/result.h"

namespace tandem {

class UcxLibrary {
 public:
  // unsupported: libucx is not installed, or this process was forked from one that had loaded it.
  static Result<const UcxLibrary*> get();

  ucp_context_h context() const { return context_; }
  // major << 16 | minor: peers must have the same, because UCX promises its wire format for one release only.
  uint32_t release() const { return release_; }

#define TANDEM_UCP_FUNCTIONS(_)                                                                          \
  _(get_version)                                                                                         \
  _(config_read)                                                                                         \
  _(config_modify) _(config_release) _(init_version) _(worker_create) _(worker_destroy)                  \
      _(worker_get_address) _(worker_release_address) _(worker_get_efd) _(worker_arm) _(worker_progress) \
          _(worker_set_am_recv_handler) _(ep_create) _(ep_close_nbx) _(am_send_nbx) _(am_recv_data_nbx)  \
              _(request_check_status) _(request_free)
#define TANDEM_UCP_DECLARE(name) decltype(&ucp_##name) name = nullptr;
  TANDEM_UCP_FUNCTIONS(TANDEM_UCP_DECLARE)
#undef TANDEM_UCP_DECLARE
  const char* (*status_string)(ucs_status_t) = nullptr;

 private:
  UcxLibrary() = default;
  static Result<const UcxLibrary*> load();
  Result<void> find_functions(void* ucp, void* ucs);
  Result<void> create_context();

  ucp_context_h context_ = nullptr;  // for the life of the process
  uint32_t release_ = 0;
  int process_ = 0;
};

}  // namespace tandem
