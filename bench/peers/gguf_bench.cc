// Prefill and decode with own prompts through the library of llama.cpp or of ik_llama.cpp, whichever it is
// built against (outside this tree; README.md has the commands): the batched benchmark of one of them gives
// every sequence the same tokens, which then take the same experts, and both prefill inside the process that
// is timed. Prepares (loads, warms up; for decode also prefills), prints "ready", waits for a line, measures,
// and prints a line of JSON.
//   gguf_bench MODEL.gguf THREADS REPACK(0|1) prefill LENGTH...
//   gguf_bench MODEL.gguf THREADS REPACK(0|1) decode CONTEXT GENERATED BATCH
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "gguf_bench: %s\n", what);
  std::exit(1);
}

void wait_until_told() {
  std::puts("ready");
  std::fflush(stdout);
  char line[16];
  if (std::fgets(line, sizeof line, stdin) == nullptr) fail("standard input ended before a line came");
}

// The engines name some options differently; each gets what it has.
template <class Params>
void choose_loading(Params& params, bool repack) {
  params.n_gpu_layers = 0;
  if constexpr (requires { params.repack_tensors; }) {  // ik_llama.cpp
    params.repack_tensors = repack;
    params.use_mmap = !repack;  // repacked weights are written
  }
}

template <class Params>
void choose_attention(Params& params) {
  if constexpr (requires { params.flash_attn_type; })
    params.flash_attn_type = decltype(params.flash_attn_type)(1);
  if constexpr (requires { params.flash_attn; }) params.flash_attn = true;
  if constexpr (requires { params.fused_moe_up_gate; }) params.fused_moe_up_gate = true;
}

template <class Context>
void forget_tokens(Context* context) {
  if constexpr (requires { llama_get_memory(context); }) {
    llama_memory_clear(llama_get_memory(context), false);
  } else {
    llama_kv_cache_clear(context);  // ik_llama.cpp
  }
}

struct Bench {
  llama_model* model;
  int threads;
  std::mt19937 random{20261130};
  llama_context* context = nullptr;
  llama_batch batch = llama_batch_init(4096, 0, 1);

  void open(int tokens, int sequences) {
    if (context != nullptr) llama_free(context);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(tokens);
    params.n_batch = 2048;
    params.n_ubatch = 512;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = threads;
    choose_attention(params);
    context = llama_init_from_model(model, params);
    if (context == nullptr) fail("no context");
  }

  void add(int position, int sequence, bool logits) {
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int i = batch.n_tokens++;
    batch.token[i] = std::uniform_int_distribution<llama_token>(1, vocab - 1)(random);
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = logits;
  }

  void run() {
    if (llama_decode(context, batch) != 0) fail("llama_decode failed");
    llama_synchronize(context);
    batch.n_tokens = 0;
  }

  void prompt(int length) {
    for (int first = 0; first < length; first += 2048) {
      for (int i = first; i < length && i < first + 2048; ++i) add(i, 0, i + 1 == length);
      run();
    }
  }

  // Tokens a second of one prompt, by itself in a context of its own, whose buffers a step of full size has
  // touched before.
  double prefill(int length) {
    open(length, 1);
    prompt(length < 512 ? length : 512);
    forget_tokens(context);
    const double start = seconds();
    prompt(length);
    return length / (seconds() - start);
  }

  void decode_step(int position, int sequences) {
    for (int s = 0; s < sequences; ++s) add(position, s, true);
    run();
  }
};

int measure_prefill(Bench& bench, const std::vector<int>& lengths) {
  bench.prefill(64);
  wait_until_told();
  for (const int length : lengths) {
    std::printf("{\"cell\": \"prefill %d\", \"tokens_per_second\": %.3f}\n", length, bench.prefill(length));
  }
  return 0;
}

int measure_decode(Bench& bench, int context, int generated, int batch) {
  constexpr int kWarmUp = 2;  // steps that are not counted: the first one plans its graph
  bench.open(batch * (context + generated + kWarmUp), batch);
  for (int s = 0; s < batch; ++s) {
    for (int i = 0; i < context; ++i) bench.add(i, s, i + 1 == context);
    bench.run();
  }
  wait_until_told();
  for (int i = 0; i < kWarmUp; ++i) bench.decode_step(context + i, batch);
  const double start = seconds();
  for (int i = 0; i < generated; ++i) bench.decode_step(context + kWarmUp + i, batch);
  std::printf("{\"cell\": \"decode b%d\", \"tokens_per_second\": %.3f}\n", batch,
              batch * generated / (seconds() - start));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool decode = argc == 8 && std::strcmp(argv[4], "decode") == 0;
  if (!decode && (argc < 6 || std::strcmp(argv[4], "prefill") != 0)) {
    std::fprintf(
        stderr,
        "usage: gguf_bench MODEL.gguf THREADS REPACK prefill LENGTH... | decode CONTEXT GENERATED BATCH\n");
    return 2;
  }
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  choose_loading(params, std::atoi(argv[3]) != 0);
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (model == nullptr) fail("cannot load the model");
  Bench bench{model, std::atoi(argv[2])};
  if (decode) return measure_decode(bench, std::atoi(argv[5]), std::atoi(argv[6]), std::atoi(argv[7]));
  std::vector<int> lengths;
  for (int i = 5; i < argc; ++i) lengths.push_back(std::atoi(argv[i]));
  return measure_prefill(bench, lengths);
}
