#include "afd/connector.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

Error refusal(const ConnectorOptions& options) {
  auto port = make_connector(options);
  return port ? Error{ErrorCode::internal, "accepted"} : port.error();
}

RemoteFfnOptions remote_options(size_t ranks) {
  RemoteFfnOptions options;
  for (size_t i = 0; i < ranks; ++i)
    options.addresses.push_back("tcp://127.0.0.1:" + std::to_string(7000 + i));
  options.settings.hidden_size = 8;
  options.settings.num_layers = 2;
  options.settings.num_experts = 2;
  options.settings.top_k = 1;
  options.settings.moe_layers = {1};
  return options;
}

TEST(Connector, UnknownNamesAreRefused) {
  ConnectorOptions options;
  options.name = "p3p";
  EXPECT_EQ(refusal(options).code, ErrorCode::invalid_argument);
  EXPECT_NE(refusal(options).message.find("known are local, p2p, m2n, auto"), std::string::npos);
  options.name = "local";
  EXPECT_NE(refusal(options).message.find("holds no experts"), std::string::npos);
}

TEST(Connector, ADeploymentWithoutFfnRanksIsRefused) {
  for (const char* name : {"p2p", "m2n", "auto"}) {
    ConnectorOptions options;
    options.name = name;
    options.remote = remote_options(0);
    options.remote.settings.gate_on_attention = true;
    EXPECT_EQ(refusal(options).code, ErrorCode::invalid_argument);
    EXPECT_NE(refusal(options).message.find("0 FFN addresses"), std::string::npos)
        << refusal(options).message;
  }
}

TEST(Connector, M2nNeedsTheGateOnAttention) {
  ConnectorOptions options;
  options.name = "m2n";
  options.remote = remote_options(2);
  EXPECT_EQ(refusal(options).code, ErrorCode::unsupported);
  EXPECT_NE(refusal(options).message.find("set compute_gate_on_attention, or use connector p2p"),
            std::string::npos);
}

TEST(Connector, AnAddressThatIsNoneFailsAtOnce) {
  ConnectorOptions options;
  options.remote = remote_options(1);
  options.remote.addresses = {"carrier-pigeon://roof"};
  EXPECT_NE(refusal(options).message.find("carrier-pigeon"), std::string::npos);
  EXPECT_EQ(refusal(options).code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace tandem
