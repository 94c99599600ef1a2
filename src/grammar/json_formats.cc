#include "grammar/json_formats.h"

#include <array>

namespace tandem {
namespace {

// RFC 3339 for dates and times, and for durations (appendix A), RFC 1123 for host names (labels of at most
// 63), RFC 4122 for UUIDs, RFC 4291 (all eight groups) for IPv6; the e-mail address is RFC 5321's without
// quoted local parts. Months of 31 days, of 30, February, and its last day in a leap year.
#define TANDEM_DATE                                                                              \
  R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30))" \
  R"(|02-(?:0[1-9]|1\d|2[0-8]))|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))"
#define TANDEM_TIME R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
// Of a duration; each unit with the next smaller one behind it.
#define TANDEM_COUNT R"(\d{1,4})"
#define TANDEM_MONTHS TANDEM_COUNT "M(?:" TANDEM_COUNT "D)?"
#define TANDEM_MINUTES TANDEM_COUNT "M(?:" TANDEM_COUNT "S)?"
#define TANDEM_HOURS "T(?:" TANDEM_COUNT "H(?:" TANDEM_MINUTES ")?|" TANDEM_MINUTES "|" TANDEM_COUNT "S)"
#define TANDEM_LABEL R"([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
#define TANDEM_BYTE R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"

struct Format {
  std::string_view name, pattern;
};
constexpr std::array kFormats = {
    Format{"date", TANDEM_DATE},
    Format{"time", TANDEM_TIME},
    Format{"date-time", TANDEM_DATE "T" TANDEM_TIME},
    Format{"duration", "P(?:" TANDEM_COUNT "W|(?:" TANDEM_COUNT "D|" TANDEM_MONTHS "|" TANDEM_COUNT
                       "Y(?:" TANDEM_MONTHS ")?)(?:" TANDEM_HOURS ")?|" TANDEM_HOURS ")"},
    Format{"email",
           R"([A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,31})?@(?:)" TANDEM_LABEL R"(\.){1,4}[A-Za-z]{2,24})"},
    Format{"hostname", TANDEM_LABEL R"((?:\.)" TANDEM_LABEL R"(){0,4})"},
    Format{"ipv4", TANDEM_BYTE R"((?:\.)" TANDEM_BYTE R"(){3})"},
    Format{"ipv6", R"([0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7})"},
    Format{"uuid", R"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})"},
};

#undef TANDEM_DATE
#undef TANDEM_TIME
#undef TANDEM_COUNT
#undef TANDEM_MONTHS
#undef TANDEM_MINUTES
#undef TANDEM_HOURS
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
