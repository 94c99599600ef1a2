// TimeProfile: where the time of a step goes, as a tree of named scopes. Off unless somebody asks: whoever
// may be asked holds a pointer, and a Scope over a null pointer does nothing. One thread: the one that
// computes the steps. Names are copied at their first use, which allocates; later ones do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tandem {

class TimeProfile {
 public:
  struct Node {
    std::string name;
    size_t parent = 0;
    Duration self{};  // without the scopes inside
    uint64_t count = 0;
  };

  TimeProfile() : nodes_(1) {}

  // All scopes so far; node 0 is the root: time outside of every scope is not counted.
  std::span<const Node> nodes() const { return nodes_; }

  // While it lives, time counts for `name` inside the innermost open scope.
  class Scope {
   public:
    Scope(TimeProfile* profile, std::string_view name) : profile_(profile) {
      if (profile_ != nullptr) profile_->enter(name);
    }
    ~Scope() {
      if (profile_ != nullptr) profile_->leave();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    TimeProfile* profile_;
  };

 private:
  void enter(std::string_view name) {
    charge();
    size_t node = 1;
    while (node < nodes_.size() && (nodes_[node].parent != open_ || nodes_[node].name != name)) ++node;
    if (node == nodes_.size()) nodes_.push_back({std::string(name), open_, {}, 0});
    ++nodes_[node].count;
    open_ = node;
  }
  void leave() {
    charge();
    open_ = nodes_[open_].parent;
  }
  // What has passed since the last border belongs to the open scope.
  void charge() {
    const Instant at = now();
    if (open_ != 0) nodes_[open_].self += at - last_;
    last_ = at;
  }

  std::vector<Node> nodes_;
  size_t open_ = 0;
  Instant last_;
};

}  // namespace tandem
