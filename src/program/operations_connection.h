// Operations of hyper-connections (kernels/hyper_connection_args.h): a residual of several streams a token.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "program/operation.h"
#include "program/step.h"

namespace tandem {

struct ConnectionMixSpec {
  Tensor streams;                  // float32 [rows, streams * hidden]
  std::span<const float> weights;  // [mixes, streams * hidden]
  float epsilon = 1e-6f;
  Tensor mixes;  // float32 [rows, mixes]
};
OperationPtr connection_mix(std::string name, const ConnectionMixSpec& spec);

struct ConnectionCollapseSpec {
  Tensor streams;  // float32 [rows, num_streams * hidden]
  Tensor mixes;    // float32 [rows, num_streams * (2 + num_streams)]; of the head: [rows, num_streams]
  std::span<const float> base, scale;
  uint32_t num_streams = 0, iterations = 0;
  float epsilon = 0.0f;
  bool round_to_bf16 = false;
  Tensor out;         // float32 [rows, hidden]
  Tensor connection;  // float32 [rows, num_streams * (1 + num_streams)], for connection_expand; head: empty
};
OperationPtr connection_collapse(std::string name, const ConnectionCollapseSpec& spec);

struct ConnectionExpandSpec {
  Tensor streams;  // float32 [rows, num_streams * hidden], in place
  Tensor connection;
  uint32_t num_streams = 0;
  Tensor first;   // [rows, hidden] of any one dtype
  Tensor second;  // of the same dtype, or empty
  bool round_to_bf16 = false;
};
OperationPtr connection_expand(std::string name, const ConnectionExpandSpec& spec);

struct StreamMeanSpec {
  Tensor streams;  // float32 [rows, num_streams * hidden]
  uint32_t num_streams = 0;
  Tensor out;  // float32 or bf16; [rows, hidden] from out_column on
  uint32_t out_column = 0;
};
// The mean of a row's streams, rounded once.
OperationPtr stream_mean(std::string name, const StreamMeanSpec& spec);

}  // namespace tandem
