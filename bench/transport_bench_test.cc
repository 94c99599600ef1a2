#include "bench/transport_bench.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(TransportBench, EveryTransportMeasuresEveryCase) {
  TransportBenchOptions options;
  options.seconds = 0.001;
  options.hidden_size = 512;
  const auto report = run_transport_bench(options, true);
  ASSERT_TRUE(report) << report.error().message;
  for (const char* part :
       {"\"floor\"", "\"inproc\"", "\"shm\"", "\"tcp\"", "\"ucx\"",
        "\"case\": \"2 tiles of 64 x 512 bf16\", \"messages\": 2, \"message_bytes\": 65536",
        "\"case\": \"4 MiB\""}) {
    EXPECT_NE(report->find(part), std::string::npos) << part;
  }
}

TEST(TransportBench, TcpBesideItselfWithAKeyAndInsideTls) {
  TransportBenchOptions options;
  options.seconds = 0.001;
  options.hidden_size = 512;
  options.transport = "tcp";
  options.security = {"none", "key", "tls"};
  const auto table = run_transport_bench(options, false);
  ASSERT_TRUE(table) << table.error().message;
  for (const char* part : {"floor ", "tcp ", "tcp+key ", "tcp+tls ", "x tcp p50"})
    EXPECT_NE(table->find(part), std::string::npos) << part << *table;
  for (const char* part : {"shm", "tcp+none"}) EXPECT_EQ(table->find(part), std::string::npos) << part;
}

TEST(TransportBench, BadOptionsAreRefusedByName) {
  TransportBenchOptions options;
  options.transport = "pigeon";
  const auto unknown = run_transport_bench(options, false);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "transport \"pigeon\" is unknown; use one of: inproc, shm, tcp, ucx");
  options = {};
  options.security = {"tls", "quantum"};
  EXPECT_EQ(run_transport_bench(options, false).error().message,
            "security \"quantum\" is unknown; use one of: none, key, tls");
  options.security = {"tls"};
  options.transport = "shm";
  EXPECT_EQ(run_transport_bench(options, false).error().message,
            "security \"tls\" with transport \"shm\": it is measured over tcp");
  options = {};
  options.seconds = 0;
  EXPECT_EQ(run_transport_bench(options, false).error().code, ErrorCode::invalid_argument);
  options = {};
  options.rows = 0;
  EXPECT_EQ(run_transport_bench(options, false).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tandem
