#include "serving/ffn_metrics.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(FfnMetrics, CountersClientsAndTheHistogramAreThere) {
  FfnStats stats;
  stats.groups = 7;
  stats.clients_in_groups = 21;
  stats.groups_of_clients = {2, 1, 3, 0, 0, 0, 1};
  stats.bytes_read = 5000000;
  stats.decode_us = 1500000;
  stats.tiles_failed = 2;
  stats.exchange.failed_tiles = 3;
  const std::vector<FfnClientReport> clients = {{.peer = "attention rank 0 (a \"b\":1)",
                                                 .transport = "tcp",
                                                 .session = 0x10,
                                                 .rows = 12,
                                                 .waiting_rows = 64}};
  const std::string text = ffn_metrics_text(stats, clients);
  for (const char* line :
       {"tandem_ffn_rank_calls_total 7\n", "tandem_ffn_rank_read_bytes_total 5000000\n",
        "tandem_ffn_rank_decode_seconds_total 1.5\n", "tandem_ffn_rank_tiles_failed_total 5\n",
        "tandem_ffn_rank_clients_per_call_bucket{le=\"1\"} 2\n",
        "tandem_ffn_rank_clients_per_call_bucket{le=\"2\"} 3\n",
        "tandem_ffn_rank_clients_per_call_bucket{le=\"32\"} 6\n",
        "tandem_ffn_rank_clients_per_call_bucket{le=\"+Inf\"} 7\n",
        "tandem_ffn_rank_clients_per_call_sum 21\n", "tandem_ffn_rank_clients_per_call_count 7\n",
        // What a client calls itself cannot end its label.
        "tandem_ffn_rank_client_rows_total{client=\"attention rank 0 (a \\\"b\\\":1)\",session=\"0x10\"} "
        "12\n",
        "tandem_ffn_rank_client_waiting_rows{client=\"attention rank 0 (a \\\"b\\\":1)\",session=\"0x10\"} "
        "64\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(ffn_metrics_text({}, {}).find("{client="), std::string::npos);
}

}  // namespace
}  // namespace tandem
