#include "serving/http_access.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

bool passes(const HttpAccess& access, const std::string& name, const std::string& value) {
  HttpRequest request;
  request.headers = {{name, value}};
  return access.has_key(request);
}

TEST(HttpAccess, Keys) {
  const HttpAccess access{.api_keys = {"one", "another-key"}, .allowed_origins = {}};
  for (const char* good : {"Bearer one", "bearer another-key", "BEARER one"}) {
    EXPECT_TRUE(passes(access, "authorization", good)) << good;
  }
  for (const char* bad : {"Bearer on", "Bearer onee", "Bearer oneone", "Bearer ", "Bearer", "one",
                          "Basic one", "Bearer one,another-key", "Bearer  one", ""}) {
    EXPECT_FALSE(passes(access, "authorization", bad)) << bad;
  }
  EXPECT_TRUE(passes(access, "x-api-key", "one"));
  EXPECT_FALSE(passes(access, "x-api-key", "Bearer one"));
  EXPECT_FALSE(passes(access, "cookie", "one"));
  EXPECT_TRUE(passes(HttpAccess{}, "cookie", "one")) << "no keys: none is asked for";
  EXPECT_TRUE(HttpAccess::is_open("/health"));
  EXPECT_FALSE(HttpAccess::is_open("/health/"));
  EXPECT_FALSE(HttpAccess::is_open("/v1/models"));
}

std::string allowed(const HttpAccess& access, std::string_view origin) {
  for (const auto& [name, value] : access.cors_headers(origin)) {
    if (name == "access-control-allow-origin") return value;
  }
  return "";
}

TEST(HttpAccess, Origins) {
  const HttpAccess some{.api_keys = {}, .allowed_origins = {"https://a.example", "http://localhost:3000"}};
  EXPECT_EQ(allowed(some, "https://a.example"), "https://a.example");
  for (const char* other : {"", "null", "https://a.example.org", "http://a.example", "https://b.example"}) {
    EXPECT_EQ(allowed(some, other), "") << other;
  }
  const HttpHeaders headers = some.cors_headers("https://a.example");
  EXPECT_NE(std::ranges::find(headers, std::pair<std::string, std::string>("vary", "origin")), headers.end());
  EXPECT_EQ(allowed({.api_keys = {}, .allowed_origins = {"*"}}, "https://b.example"), "*");
  EXPECT_EQ(allowed({}, "https://a.example"), "");
}

TEST(HttpAccess, KeyFiles) {
  const auto path = std::filesystem::temp_directory_path() / ("tandem_keys_" + std::to_string(getpid()));
  std::ofstream(path) << "# keys\none\r\n\n  two words \nlast";
  const auto keys = read_api_keys(path.string());
  ASSERT_TRUE(keys) << keys.error().message;
  EXPECT_EQ(*keys, (std::vector<std::string>{"one", "  two words", "last"}));
  std::ofstream(path) << "# none\n";
  const auto none = read_api_keys(path.string());
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("has no API key"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_FALSE(read_api_keys(path.string()));
}

}  // namespace
}  // namespace tandem
