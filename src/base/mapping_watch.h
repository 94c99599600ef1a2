// What a process says when a file that it has mapped is cut short, or its disk fails, under its hands: the
// system then answers a read with SIGBUS. The first mapping that is watched installs a handler, which names
// the file and the remedy on standard error and lets the signal do what it would have done without it. Other
// causes of SIGBUS are left to whoever handled them before.
//
// Any thread. A fixed number of mappings is watched (shards of the largest checkpoints and to spare); the
// others only go without the line.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

void watch_mapping(const std::byte* data, size_t bytes, const std::string& path);
void unwatch_mapping(const std::byte* data);

}  // namespace tandem
