#include "transport/ucx_worker.h"

namespace tandem {
namespace {

constexpr unsigned kMessageId = 1;  // of UCX's active messages; each worker has one handler

// A close that must not wait for the peer ends in the call, or after a few rounds of UCX's own queue.
constexpr int kCloseRounds = 1000;

}  // namespace

UcxWorker::UcxWorker(const UcxLibrary& library, Events& events, size_t operations, const UcxPath& path,
                     std::shared_ptr<ucp_context> context)
    : library_(library),
      events_(events),
      path_(path),
      context_(std::move(context)),
      operations_(new Operation[operations]) {
  for (size_t i = 0; i < operations; ++i) operations_[i] = {this, i};
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(Events& events, size_t operations, const UcxPath& path) {
  TANDEM_ASSIGN(const UcxLibrary* library, UcxLibrary::get());
  TANDEM_ASSIGN(auto context, library->context(path));
  std::unique_ptr<UcxWorker> worker(new UcxWorker(*library, events, operations, path, std::move(context)));
  TANDEM_TRY(worker->open());
  return worker;
}

Result<void> UcxWorker::open() {
  const auto failed = [&](const char* what, ucs_status_t status) {
    return make_error(ErrorCode::resource_exhausted,
                      std::string("UCX: ") + what + ": " + library_.status_string(status) +
                          "; it needs shared memory (/dev/shm) and descriptors, or use tcp://");
  };
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto status = library_.worker_create(context_.get(), &parameters, &worker_); status != UCS_OK) {
    worker_ = nullptr;
    return failed("no worker", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.cb = &UcxWorker::on_active_message;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  if (const auto status = library_.worker_set_am_recv_handler(worker_, &handler); status != UCS_OK) {
    return failed("no message handler", status);
  }
  if (const auto status = library_.worker_get_efd(worker_, &fd_); status != UCS_OK) {
    return failed("no event descriptor", status);
  }
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const auto status = library_.worker_get_address(worker_, &address, &bytes); status != UCS_OK) {
    return failed("no address", status);
  }
  address_ = {reinterpret_cast<const std::byte*>(address), bytes};
  return {};
}

UcxWorker::~UcxWorker() {
  if (worker_ == nullptr) return;
  if (endpoint_ != nullptr) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = library_.ep_close_nbx(endpoint_, &parameters);
    if (UCS_PTR_IS_PTR(request)) {
      for (int i = 0; i < kCloseRounds && library_.request_check_status(request) == UCS_INPROGRESS; ++i) {
        library_.worker_progress(worker_);
      }
      library_.request_free(request);
    }
  }
  if (!address_.empty()) {
    library_.worker_release_address(
        worker_, reinterpret_cast<ucp_address_t*>(const_cast<std::byte*>(address_.data())));
  }
  library_.worker_destroy(worker_);
}

Result<void> UcxWorker::connect(std::span<const std::byte> peer_address) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
  // Without it UCX ends this process when the other one ends.
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.arg = this;
  parameters.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    auto* worker = static_cast<UcxWorker*>(self);
    worker->events_.on_lost(std::string("UCX lost the path (") + worker->library_.status_string(status) +
                            ")");
  };
  const ucs_status_t status = library_.ep_create(worker_, &parameters, &endpoint_);
  if (status == UCS_OK) return {};
  endpoint_ = nullptr;
  return make_error(ErrorCode::unavailable,
                    "UCX knows no path to the peer over " + path_.text() + " (" +
                        library_.status_string(status) +
                        "); set UCX_TLS and UCX_NET_DEVICES alike on both sides, or use tcp://");
}

UcxWorker::Outcome UcxWorker::send(std::span<const std::byte> header, std::span<const std::byte> payload,
                                   size_t operation) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.user_data = &operations_[operation];
  parameters.cb.send = [](void* request, ucs_status_t status, void* data) {
    const auto* own = static_cast<Operation*>(data);
    own->worker->library_.request_free(request);
    own->worker->events_.on_sent(own->number, status == UCS_OK);
  };
  void* request = library_.am_send_nbx(endpoint_, kMessageId, header.data(), header.size(), payload.data(),
                                       payload.size(), &parameters);
  if (request == nullptr) return Outcome::done;
  return UCS_PTR_IS_ERR(request) ? Outcome::failed : Outcome::pending;
}

UcxWorker::Outcome UcxWorker::receive(void* ticket, std::span<std::byte> into, size_t operation) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.user_data = &operations_[operation];
  parameters.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* data) {
    const auto* own = static_cast<Operation*>(data);
    own->worker->library_.request_free(request);
    own->worker->events_.on_received(own->number, status == UCS_OK);
  };
  void* request = library_.am_recv_data_nbx(worker_, ticket, into.data(), into.size(), &parameters);
  if (request == nullptr) return Outcome::done;
  return UCS_PTR_IS_ERR(request) ? Outcome::failed : Outcome::pending;
}

bool UcxWorker::progress() {
  return library_.worker_progress(worker_) != 0;
}

bool UcxWorker::arm() {
  return library_.worker_arm(worker_) == UCS_OK;
}

ucs_status_t UcxWorker::on_active_message(void* self, const void* header, size_t header_bytes, void* data,
                                          size_t bytes, const ucp_am_recv_param_t* parameters) {
  const bool rendezvous = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool taken = static_cast<UcxWorker*>(self)->events_.on_message(
      {static_cast<const std::byte*>(header), header_bytes}, data, bytes, rendezvous);
  return rendezvous && taken ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace tandem
