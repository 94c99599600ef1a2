#include "transport/shm_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "base/memory_budget.h"
#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;  // little enough to stop in time, enough to cost nothing

std::unexpected<Error> too_little(uint64_t need, const std::string& have) {
  return make_error(ErrorCode::resource_exhausted,
                    "a shm connection needs " + bytes_text(need) + " of shared memory, " + have +
                        "; lower slots_per_channel or slot_bytes, raise the memory limit, or use tcp://");
}

}  // namespace

bool leaves_room(uint64_t need, uint64_t have) {
  return need <= have - have / 10;
}

Result<UniqueFd> create_shared_memory(size_t bytes) {
  UniqueFd memory(memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return make_error(ErrorCode::resource_exhausted, "memfd_create: " + system_message(errno));
  // Asked before each chunk: when memory is short the system does not refuse, it kills, and several
  // connections may be taking theirs at once. What was taken is given back with the descriptor.
  for (size_t done = 0; done < bytes;) {
    const uint64_t have = MemoryBudget::detect().available();
    if (!leaves_room(bytes - done, have)) {
      return too_little(bytes, bytes_text(done + have) + " are available, of which a tenth stays free");
    }
    const size_t chunk = std::min(bytes - done, kChunkBytes);
    if (fallocate(memory.get(), 0, static_cast<off_t>(done), static_cast<off_t>(chunk)) == 0) {
      done += chunk;
    } else if (errno != EINTR) {
      return too_little(bytes, "the system refuses it (" + system_message(errno) + ")");
    }
  }
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return make_error(ErrorCode::unsupported,
                      "shared memory cannot be sealed: " + system_message(errno) + "; use tcp://");
  }
  return memory;
}

Result<std::shared_ptr<RingMemory>> map_shared_memory(const UniqueFd& memory, const RingLayout& layout,
                                                      UniqueFd doorbell0, UniqueFd doorbell1) {
  struct stat info{};
  const size_t bytes = layout.total_bytes();
  if (fstat(memory.get(), &info) != 0 || static_cast<size_t>(info.st_size) != bytes ||
      static_cast<size_t>(info.st_blocks) * 512 < bytes) {
    return make_error(ErrorCode::data_loss, "shared memory of " + std::to_string(info.st_size) + " bytes (" +
                                                std::to_string(info.st_blocks * 512) +
                                                " allocated), expected " + std::to_string(bytes) +
                                                "; install the same release on both sides");
  }
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return make_error(
        ErrorCode::data_loss,
        "shared memory is not sealed against shrinking; install the same release on both sides");
  }
  // Populated: the pages exist, and the first message of each slot shall not pay for finding them.
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory.get(), 0);
  if (base == MAP_FAILED) return too_little(bytes, "mapping it failed (" + system_message(errno) + ")");
  return std::make_shared<RingMemory>(static_cast<std::byte*>(base), layout, std::move(doorbell0),
                                      std::move(doorbell1));
}

}  // namespace tandem
