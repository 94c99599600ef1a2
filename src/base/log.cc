#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

namespace tandem {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto created =
        std::make_shared<spdlog::logger>("tandem", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    created->flush_on(spdlog::level::info);
    const char* wanted = std::getenv("TANDEM_LOG");
    const std::string name = wanted != nullptr ? wanted : "info";
    created->set_level(name == "debug"     ? spdlog::level::debug
                       : name == "warning" ? spdlog::level::warn
                       : name == "error"   ? spdlog::level::err
                                           : spdlog::level::info);
    return created;
  }();
  return instance;
}

void write(LogLevel level, std::string_view message) {
  logger()->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

void set_log_level(LogLevel level) {
  logger()->set_level(to_spdlog(level));
}

void set_log_name(std::string_view name) {
  logger()->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ " + std::string(name) + ": %v");
}

void log_debug(std::string_view message) {
  write(LogLevel::debug, message);
}
void log_info(std::string_view message) {
  write(LogLevel::info, message);
}
void log_warning(std::string_view message) {
  write(LogLevel::warning, message);
}
void log_error(std::string_view message) {
  write(LogLevel::error, message);
}

}  // namespace tandem
