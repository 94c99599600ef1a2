// The memory of a shm connection: a memfd that is wholly allocated before anybody uses it and cannot shrink
// afterwards, so that no access to it can raise SIGBUS. A memfd does not live in /dev/shm and leaves nothing
// behind, whoever dies how; it counts as shared memory of the process (its cgroup) that made it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "transport/ring.h"
#include "transport/unique_fd.h"

namespace tandem {

// Whether `need` bytes may be taken of `have`: a tenth stays for everything else that lives on the machine.
bool leaves_room(uint64_t need, uint64_t have);

// resource_exhausted saying how much is needed and how much there is; nothing is taken then.
Result<UniqueFd> create_shared_memory(size_t bytes);

// Maps the memory of a connection, ours or received. data_loss: not of this size, not wholly allocated, or
// not sealed against shrinking: a peer could take it away under us.
Result<std::shared_ptr<RingMemory>> map_shared_memory(const UniqueFd& memory, const RingLayout& layout,
                                                      UniqueFd doorbell0, UniqueFd doorbell1);

}  // namespace tandem
