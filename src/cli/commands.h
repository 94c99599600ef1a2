// What runs behind each command. Each returns the exit status, or the error that is printed as one line.
#pragma once

#include "cli/settings.h"

namespace tandem {

Result<int> run_serve(Settings& settings);
Result<int> run_attention(Settings& settings);
Result<int> run_ffn(Settings& settings);
Result<int> run_rank(Settings& settings);
Result<int> run_up(Settings& settings);
Result<int> run_generate(Settings& settings);
Result<int> run_eval_gsm8k(Settings& settings);
Result<int> run_eval_compare(Settings& settings);
Result<int> run_eval_matrix(Settings& settings);
Result<int> run_eval_parity(Settings& settings);
Result<int> run_eval_perplexity(Settings& settings);
Result<int> run_bench_host(Settings& settings);
Result<int> run_bench_kernels(Settings& settings);
Result<int> run_bench_moe(Settings& settings);
Result<int> run_bench_attention(Settings& settings);
Result<int> run_bench_decode(Settings& settings);
Result<int> run_bench_prefill(Settings& settings);
Result<int> run_bench_roofs(Settings& settings);
Result<int> run_bench_placement(Settings& settings);
Result<int> run_bench_serving(Settings& settings);
Result<int> run_bench_sharing(Settings& settings);
Result<int> run_bench_transport(Settings& settings);
Result<int> run_conformance(Settings& settings);
Result<int> run_trace(Settings& settings);
Result<int> run_inspect(Settings& settings);
Result<int> run_doctor(Settings& settings);
Result<int> run_configuration(Settings& settings);

// The roles once settle_rank has said which rank this is: what run_attention, run_ffn and run_rank come to.
Result<int> run_settled_attention(Settings& settings);
Result<int> run_settled_ffn(Settings& settings);

}  // namespace tandem
