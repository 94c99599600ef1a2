// Prefill and decode with own prompts through the library of llama.cpp or of ik_llama.cpp, whichever it is
// built against (outside this tree; README.md has the commands): the batched benchmark of one of them gives
// every sequence the same tokens, which then take the same experts. Holds the model and answers each line of
// standard input, "prepare CELL" or "measure CELL", with a line of JSON; CELL is "prefill LENGTH" or "decode
// CONTEXT GENERATED BATCH".
//   gguf_bench MODEL.gguf THREADS REPACK(0|1)
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

// Of one sequence, from `position` on.
template <class Context>
void forget_tokens(Context* context, int sequence, int position) {
  bool done = false;
  if constexpr (requires { llama_get_memory(context); }) {
    done = llama_memory_seq_rm(llama_get_memory(context), sequence, position, -1);
  } else {
    done = llama_kv_cache_seq_rm(context, sequence, position, -1);  // ik_llama.cpp
  }
  if (!done) fail("cannot forget the tokens of a sequence");
}

void prepared(const char* cell) {
  std::printf("{\"prepared\": \"%s\"}\n", cell);
}

constexpr int kWarmUp = 2;  // decode steps that are not counted: the first one plans its graph

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

  // Buffers of a prompt, touched by a step of full size.
  void prepare_prefill(int length) {
    open(length, 1);
    prompt(length < 512 ? length : 512);
  }

  // Tokens a second of one prompt by itself.
  double prefill(int length) {
    forget_tokens(context, 0, 0);
    const double start = seconds();
    prompt(length);
    return length / (seconds() - start);
  }

  void decode_step(int position, int sequences) {
    for (int s = 0; s < sequences; ++s) add(position, s, true);
    run();
  }

  void prepare_decode(int length, int generated, int sequences) {
    open(sequences * (length + generated + kWarmUp), sequences);
    for (int s = 0; s < sequences; ++s) {
      for (int i = 0; i < length; ++i) add(i, s, i + 1 == length);
      run();
    }
  }

  // Tokens a second of all sequences behind their prompts; what they generated is forgotten.
  double decode(int length, int generated, int sequences) {
    for (int i = 0; i < kWarmUp; ++i) decode_step(length + i, sequences);
    const double start = seconds();
    for (int i = 0; i < generated; ++i) decode_step(length + kWarmUp + i, sequences);
    const double rate = sequences * generated / (seconds() - start);
    for (int s = 0; s < sequences; ++s) forget_tokens(context, s, length);
    return rate;
  }
};

// One line of standard input.
void answer(Bench& bench, const char* line) {
  char verb[16] = "";
  int length = 0, generated = 0, sequences = 0;
  double rate = 0;
  char cell[32];
  if (std::sscanf(line, "%15s decode %d %d %d", verb, &length, &generated, &sequences) == 4) {
    std::snprintf(cell, sizeof cell, "decode b%d", sequences);
    if (std::strcmp(verb, "prepare") == 0)
      return bench.prepare_decode(length, generated, sequences), prepared(cell);
    rate = bench.decode(length, generated, sequences);
  } else if (std::sscanf(line, "%15s prefill %d", verb, &length) == 2) {
    std::snprintf(cell, sizeof cell, "prefill %d", length);
    if (std::strcmp(verb, "prepare") == 0) return bench.prepare_prefill(length), prepared(cell);
    rate = bench.prefill(length);
  } else {
    fail("a line that is neither prepare nor measure of a prefill or decode");
  }
  std::printf("{\"cell\": \"%s\", \"tokens_per_second\": %.3f}\n", cell, rate);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(
        stderr,
        "usage: gguf_bench MODEL.gguf THREADS REPACK; lines on standard input say what is measured\n");
    return 2;
  }
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  choose_loading(params, std::atoi(argv[3]) != 0);
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (model == nullptr) fail("cannot load the model");
  Bench bench{model, std::atoi(argv[2])};
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    answer(bench, line);
    std::fflush(stdout);
  }
  return 0;
}
