// For tests: certificates that are there, or the test ends.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "transport/throwaway_certificates.h"

namespace tandem {

class TestCertificates {
 public:
  // `valid_seconds`: from now on; negative: expired.
  explicit TestCertificates(long valid_seconds = 3600) {
    auto made = ThrowawayCertificates::create(valid_seconds);
    if (!made) throw std::runtime_error(made.error().message);
    made_ = std::move(*made);
  }

  TlsFiles files() const { return made_->files(); }
  std::string path(const std::string& name) const { return made_->path(name); }

 private:
  std::unique_ptr<ThrowawayCertificates> made_;
};

}  // namespace tandem
