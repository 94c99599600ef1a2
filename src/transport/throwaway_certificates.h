// ThrowawayCertificates: a CA made anew, and a certificate that it has signed, as PEM files in a folder that
// goes with the object. For tests and benchmarks: nobody has the CA's key afterwards, and everybody is of one
// name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/tls_context.h"

namespace tandem {

class ThrowawayCertificates {
 public:
  // `valid_seconds`: from now on; negative: expired. unavailable: the temporary folder cannot be written.
  static Result<std::unique_ptr<ThrowawayCertificates>> create(long valid_seconds = 3600);
  ~ThrowawayCertificates();
  ThrowawayCertificates(const ThrowawayCertificates&) = delete;
  ThrowawayCertificates& operator=(const ThrowawayCertificates&) = delete;

  TlsFiles files() const { return {path("peer.pem"), path("peer.key"), path("ca.pem")}; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  explicit ThrowawayCertificates(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path folder_;
};

}  // namespace tandem
