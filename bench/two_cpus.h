// TwoCpus: a CPU for each side of a round trip. Without it a busy machine now and then puts both sides on one
// CPU, and then the scheduler is measured. Any thread.
#pragma once

namespace tandem {

struct TwoCpus {
  int first = -1, second = -1;  // -1: this process has one CPU only

  // The first two of the calling thread's affinity mask.
  static TwoCpus detect();
  bool are_two() const { return second >= 0; }
};

// Binds the calling thread, and what it forks or starts later, to this CPU; -1 does nothing.
void stay_on_cpu(int cpu);

// Gives the calling thread the affinity back that it had.
class KeptAffinity {
 public:
  KeptAffinity();
  ~KeptAffinity();
  KeptAffinity(const KeptAffinity&) = delete;
  KeptAffinity& operator=(const KeptAffinity&) = delete;

 private:
  unsigned long mask_[16] = {};  // 1024 CPUs, as the system's own set
  bool known_ = false;
};

}  // namespace tandem
