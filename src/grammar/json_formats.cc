#include "grammar/json_formats.h"

#include <array>

namespace tandem {
namespace {

// RFC 3339 for dates and times, ISO 8601 for durations, RFC 1123 for host names (labels of at most 63), RFC
// 4122 for UUIDs, RFC 4291 (all eight groups) for IPv6; the e-mail address is RFC 5321's without quoted local
// parts.
#define TANDEM_DATE R"(\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))"
#define TANDEM_TIME R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
#define TANDEM_LABEL R"([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
#define TANDEM_BYTE R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"

struct Format {
  std::string_view name, pattern;
};
constexpr std::array kFormats = {
    Format{"date", TANDEM_DATE},
    Format{"time", TANDEM_TIME},
    Format{"date-time", TANDEM_DATE "T" TANDEM_TIME},
    Format{"duration",
           R"(P(?:\d{1,4}W|(?:\d{1,4}Y)?(?:\d{1,4}M)?(?:\d{1,4}D|T\d{1,4}[HMS](?:\d{1,4}[MS]){0,2})))"},
    Format{"email",
           R"([A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,31})?@(?:)" TANDEM_LABEL R"(\.){1,4}[A-Za-z]{2,24})"},
    Format{"hostname", TANDEM_LABEL R"((?:\.)" TANDEM_LABEL R"(){0,4})"},
    Format{"ipv4", TANDEM_BYTE R"((?:\.)" TANDEM_BYTE R"(){3})"},
    Format{"ipv6", R"([0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7})"},
    Format{"uuid", R"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})"},
};

#undef TANDEM_DATE
#undef TANDEM_TIME
#undef TANDEM_LABEL
#undef TANDEM_BYTE

}  // namespace

std::optional<std::string_view> json_format_pattern(std::string_view format) {
  for (const Format& known : kFormats) {
    if (known.name == format) return known.pattern;
  }
  return std::nullopt;
}

std::string_view json_format_names() {
  return "date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid";
}

}  // namespace tandem
