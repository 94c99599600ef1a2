// ChildProcess: another process of this binary that ends with its parent, and whose standard output is read
// line by line.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tandem {

class ChildProcess {
 public:
  // Runs `binary` with `arguments`; "/proc/self/exe" is this one. The child is killed when the parent dies,
  // however it dies.
  static Result<ChildProcess> start(const std::vector<std::string>& arguments,
                                    const std::string& binary = "/proc/self/exe");
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  // Ends the child as `end` does, within a second.
  ~ChildProcess();
  // Asks the child to end (SIGTERM), kills it when it has not within `limit`, and waits for it. Its output is
  // not read any more.
  void end(Duration limit);

  pid_t pid() const { return pid_; }
  // The next line of its standard output. unavailable, with the exit status, when it has ended;
  // deadline_exceeded.
  Result<std::string> read_line(Duration limit);
  // Whether it still runs.
  bool alive();

 private:
  pid_t pid_ = -1;
  int out_fd_ = -1;
  int exit_status_ = -1;
  std::string pending_;
};

}  // namespace tandem
