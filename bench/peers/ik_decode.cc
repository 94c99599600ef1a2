// Decode with own prompts through ik_llama.cpp's library: its llama-batched-bench gives every sequence the
// same tokens, which then take the same experts. Prints one line of JSON for each batch size. Built against a
// checkout and a build of that engine, outside this tree; README.md has the command.
//   ik_decode MODEL.gguf THREADS REPACK(0|1) PROMPT GENERATED BATCH...
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "llama.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void quiet(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

struct Batch {
  llama_batch batch;
  explicit Batch(int tokens) : batch(llama_batch_init(tokens, 0, 1)) {}
  ~Batch() { llama_batch_free(batch); }
  void add(llama_token token, int position, int sequence, bool logits) {
    const int i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = logits;
  }
};

// One batch size: every sequence prefilled by itself, then all decoded together. Tokens a second; negative:
// failed.
double decode(llama_model* model, int threads, int prompt, int generated, int sequences) {
  constexpr int kWarmUp = 2;  // steps that are not counted: the first one plans its graph
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(sequences * (prompt + generated + kWarmUp));
  params.n_batch = 2048;
  params.n_ubatch = 512;
  params.n_seq_max = static_cast<uint32_t>(sequences);
  params.n_threads = params.n_threads_batch = static_cast<uint32_t>(threads);
  params.flash_attn = true;
  params.fused_moe_up_gate = true;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return -1;
  std::mt19937 random(20261130);
  std::uniform_int_distribution<llama_token> any_token(1, llama_n_vocab(model) - 1);
  const int capacity = prompt > sequences ? prompt : sequences;
  Batch tokens(capacity);
  bool ok = true;
  for (int s = 0; s < sequences && ok; ++s) {
    tokens.batch.n_tokens = 0;
    for (int i = 0; i < prompt; ++i) tokens.add(any_token(random), i, s, i + 1 == prompt);
    ok = llama_decode(context, tokens.batch) == 0;
  }
  double start = 0;
  for (int i = 0; i < kWarmUp + generated && ok; ++i) {
    if (i == kWarmUp) start = seconds();
    tokens.batch.n_tokens = 0;
    for (int s = 0; s < sequences; ++s) tokens.add(any_token(random), prompt + i, s, true);
    ok = llama_decode(context, tokens.batch) == 0;
    llama_synchronize(context);
  }
  const double elapsed = seconds() - start;
  llama_free(context);
  return ok ? sequences * generated / elapsed : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: ik_decode MODEL.gguf THREADS REPACK PROMPT GENERATED BATCH...\n");
    return 2;
  }
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.repack_tensors = std::atoi(argv[3]) != 0;
  params.use_mmap = !params.repack_tensors;  // repacked weights are written
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (model == nullptr) {
    std::fprintf(stderr, "ik_decode: cannot load %s\n", argv[1]);
    return 1;
  }
  for (int i = 6; i < argc; ++i) {
    const int batch = std::atoi(argv[i]);
    const double rate = decode(model, std::atoi(argv[2]), std::atoi(argv[4]), std::atoi(argv[5]), batch);
    if (rate < 0) {
      std::fprintf(stderr, "ik_decode: batch %d failed\n", batch);
      return 1;
    }
    std::printf("{\"batch\": %d, \"tokens_per_second\": %.3f}\n", batch, rate);
    std::fflush(stdout);
  }
  return 0;
}
