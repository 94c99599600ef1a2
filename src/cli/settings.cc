#include "cli/settings.h"

#include <algorithm>
#include <charconv>

#include "afd/connector.h"
#include "attention/speculation.h"
#include "cli/load_profile.h"
#include "cli/peer_settings.h"
#include "cli/settings_measures.h"
#include "cli/support.h"

namespace tandem {
namespace {

constexpr uint32_t kMaxCaptureSize = 4096;  // as SplitSettings::validate has it

}  // namespace

OptionSet Settings::declare() {
  OptionSet set;
  set.text("model", model,
           "Folder of the model: config.json, *.safetensors, tokenizer.json as Hugging Face lays them out.");
  set.text("config", config, "YAML file with any of these keys; flags and TANDEM_* variables go before it.");
  set.boolean("json", json, "Print one JSON document instead of text.");

  set.choice("engine.compute_dtype", engine.compute_dtype, {"bf16", "float32"},
             "Arithmetic of weights and activations; float32 is the reference mode.");
  set.choice("engine.weights", engine.weights, {"auto", "dequantized", "int8", "fp8", "mxfp8", "mxfp4"},
             "auto: as the files have them, fp8 and fp4 codes too where the compute dtype is bf16; "
             "dequantized: codes "
             "to the compute dtype; a format: experts, projections and dense layers of bf16 files are "
             "quantised to it "
             "while they are loaded.");
  set.text(
      "engine.weights_report", engine.weights_report,
      "JSON file for what quantising lost, tensor by tensor; an FFN rank that `up` starts adds .ffnN, an "
      "attention rank .attentionN.");
  set.text(
      "engine.weights_cache", engine.weights_cache,
      "Folder that keeps each rank's packed weights, as large as the weights themselves, so that the next "
      "start maps them instead of packing; a file that is damaged or was made from another checkpoint is "
      "refused and made again. off: nothing is kept.");
  set.choice(
      "engine.huge_pages", engine.huge_pages, {"auto", "off", "on"},
      "2 MiB pages for weights and KV pools. auto: transparent ones where the kernel has them; on: those "
      "that the administrator has reserved (vm.nr_hugepages), then transparent ones, and a kernel that "
      "gives none is refused; off: none.");
  set.choice(
      "engine.numa", engine.numa, {"auto", "off"},
      "auto: on a machine with several memory nodes weights are bound to nodes, and threads compute those "
      "of their own node first; off: the kernel decides.");
  set.boolean("engine.deterministic", engine.deterministic,
              "Exact sums: every placement gives bit-identical logits.");
  set.boolean(
      "engine.balanced_routing", engine.balanced_routing,
      "For benchmarks only: rows take experts in turn, whatever their gate says; the answers mean nothing.");
  set.boolean(
      "engine.synthetic_kv", engine.synthetic_kv,
      "For benchmarks only: of each prompt the last token alone is computed; keys and values of the others "
      "are "
      "synthetic (random, of the size of normed keys), so that decode at a long context begins at once. The "
      "answers mean nothing. No drafts, no prefix cache.");
  set.boolean(
      "engine.qat_simulation", engine.qat_simulation,
      "DeepSeek-V4: round keys, entries and the indexer's vectors to fp8 and fp4 as in its training.");
  set.choice(
      "engine.kv_cache_dtype", engine.kv_cache_dtype, {"auto", "bf16", "fp8", "fp8_e4m3"},
      "Keys and values in the cache; auto: the compute dtype. fp8 (fp8_e4m3 is the same): e4m3 codes with a "
      "power of two for each head's key and value of a token, which take half of the memory; no "
      "calibration.");
  set.choice(
      "engine.speculative", engine.speculative, {"off", "auto", "on"},
      "Tokens that the model's own drafter (multi-token prediction, DSpark) proposes and the model verifies, "
      "several in a step; answers stay the same. auto: where the files have one, as long as measured steps "
      "say that "
      "it pays; off: its layers are not loaded.");
  set.integer(
      "engine.num_speculative_tokens", engine.num_speculative_tokens, 0, kMaxDraftTokens,
      "Most drafts of a sequence in a step; 0: as many as the drafter was trained for. Of a block (DSpark) "
      "the first ones, at most all.");
  set.integer(
      "engine.threads", engine.threads, 0, 1024,
      "Compute threads of this process; 0: the CPU budget, shared out by `up`. Where a CPU is left for each "
      "connection, its thread looks for messages for a bounded time before it sleeps.");
  set.choice("engine.log_level", engine.log_level, {"debug", "info", "warning", "error"},
             "Least severity that is logged.");
  set.text(
      "engine.trace", engine.trace,
      "File for what the lanes of this attention rank did, and how long wire and experts took, written when "
      "it ends: Chrome trace JSON for ui.perfetto.dev (tandem trace --read prints its summary). Of several "
      "attention ranks that one command starts each adds .attentionN. Empty: nothing is recorded, but what "
      "serving.trace_requests lets somebody ask for.");
  set.integer("engine.trace_events", engine.trace_events, 1024, 1 << 26,
              "Events that are kept for traces, of 64 bytes each; the oldest go first, and are counted.");

  set.choice("afd.role", afd.role, {"none", "attention", "ffn"},
             "This process's role; none: both halves in one process.");
  set.choice(
      "afd.connector", afd.connector, connector_names(),
      "How attention reaches the experts: p2p, FFN ranks take turns and exchange rows; m2n, straight to the "
      "owners, with the gate on attention; auto, decode by m2n and prefill by p2p.");
  set.list("afd.ffn", afd.ffn,
           "Addresses of the FFN ranks, in order of rank: tcp://host:port, ucx://host:port, shm://path, "
           "inproc://name. FFN ranks need it as well where they exchange rows (p2p and auto).");
  set.text(
      "afd.ffn_address_pattern", afd.ffn_address_pattern,
      "Where afd.ffn is empty: addresses of the FFN ranks, made from the hosts that the launcher of all "
      "ranks names (SLURM's node list, a LeaderWorkerSet, or one host alone). {node}: the rank's host; the "
      "port counts up where a host has several. {rank}, {number}: of the FFN rank and among all ranks, for "
      "names that count, as the pods of a StatefulSet do.");
  set.list(
      "afd.attention", afd.attention,
      "Addresses at which fronts reach the attention ranks, in order of rank. With them `serve` is a front: "
      "it holds no weights.");
  set.text("afd.listen", afd.listen,
           "Address on which an FFN rank listens; port 0: chosen by the system. Empty: the rank's entry of "
           "afd.ffn, all networks at its port where that was derived, or tcp://127.0.0.1:7000.");
  set.text("afd.attention_listen", afd.attention_listen,
           "Address on which an attention rank serves fronts, instead of HTTP. Empty: the rank's entry of "
           "afd.attention, or HTTP.");
  set.integer("afd.num_attention_ranks", afd.num_attention_ranks, 1, 1024,
              "Attention ranks; where afd.attention lists them, the addresses count.");
  set.integer("afd.num_ffn_ranks", afd.num_ffn_ranks, 1, 1024,
              "FFN ranks, each with its share of the experts; on attention the addresses count.");
  set.number_or_auto(
      "afd.attention_rank", afd.attention_rank, 1023,
      "Which of the attention ranks this process is; auto: what SLURM, mpirun or Kubernetes say, or 0.");
  set.number_or_auto(
      "afd.ffn_rank", afd.ffn_rank, 1023,
      "Which of the FFN ranks this process is, which decides its share of the experts; auto: what "
      "SLURM, mpirun or Kubernetes say, or 0.");
  set.boolean("afd.compute_gate_on_attention", afd.compute_gate_on_attention,
              "Attention routes; the routing travels beside the activation.");
  set.choice("afd.compute_shared_experts_on_attention", afd.compute_shared_experts_on_attention,
             {"auto", "true", "false"},
             "Attention runs the shared experts while it waits; auto: where the gate is.");
  set.boolean(
      "afd.send_token_ids", afd.send_token_ids,
      "Token ids travel beside the activation (gate on FFN only). Models that take experts by token id "
      "send them anyway.");
  set.choice(
      "afd.exchange", afd.exchange, {"auto", "allgather", "alltoall"},
      "How FFN ranks exchange rows: alltoall, each owner gets its own; allgather, every rank gets all; auto, "
      "by how many rows alltoall would send.");
  set.choice("afd.placement", afd.placement, {"expert", "slice", "hybrid"},
             "What FFN ranks hold: whole experts each, a slice of every expert each, or in groups of ranks a "
             "slice each of the group's experts.");
  set.integer("afd.expert_slices", afd.expert_slices, 0, 1024,
              "Ranks of a group, with placement hybrid: slices that an expert is cut into; 0: 2, or 1 with "
              "one FFN rank.");
  set.integer("afd.expert_replicas", afd.expert_replicas, 1, 1024,
              "FFN ranks, or groups of them, that hold each expert; a row goes to one of them.");
  set.choice("afd.replica_choice", afd.replica_choice, {"auto", "row", "experts"},
             "Which replica computes a row's expert: row, a hash of the row's routing, so that no bit "
             "depends on batching; "
             "experts, where rows are few, such that no rank reads many more experts than another; auto: "
             "experts with "
             "engine.deterministic, where no bit depends on it either.");
  set.choice(
      "afd.activation_dtype", afd.activation_dtype, {"auto", "bf16", "f32", "fp8", "mxfp8", "int8"},
      "How rows are given to the experts, on the wire and colocated; auto: the compute dtype. fp8: e4m3, "
      "a power of two for each 128 values; mxfp8: for each 32; int8: a scale a row.");
  set.choice("afd.micro_batches", afd.micro_batches, {"auto", "1", "2", "3", "4", "5", "6", "7", "8"},
             "Decode lanes that step independently; auto: one, or two when measured steps say that it pays.");
  set.choice(
      "afd.micro_batch_split", afd.micro_batch_split, {"request", "token"},
      "Prefill over lanes: request, one lane; token, each step's rows in even shares over as many lanes.");
  set.choice("afd.execution", afd.execution, {"eager", "graph"},
             "How decode steps run: graph replays programs that both roles prepared at start.");
  set.choice(
      "afd.ffn_scheduler", afd.ffn_scheduler, {"grouped", "oldest", "fifo"},
      "Which waiting tiles an FFN rank computes next: decode first, fair between clients, the largest group; "
      "or for comparison the oldest tile's layer, or the oldest tile alone.");
  set.integer("afd.max_clients", afd.max_clients, 1, 4096,
              "Attention ranks that may be connected to an FFN rank at once; one more is refused. Other FFN "
              "ranks have places of their own.");
  set.integer("afd.client_waiting_tiles", afd.client_waiting_tiles, 1, 65536,
              "Tiles of at most 64 rows that one client may have waiting on an FFN rank; requests beyond are "
              "answered with an error. Credits bound them to 8 anyway.");
  set.integer(
      "afd.client_waiting_rows", afd.client_waiting_rows, 64, 16777216,
      "Rows that one client may have waiting on an FFN rank; requests beyond are answered with an error.");
  set.choice(
      "afd.client_unit", afd.client_unit, {"connection", "host"},
      "Who is one client for an FFN rank's shares of time and quotas: each connection, or all "
      "connections of one address over tcp and ucx (of one process over shm). host: who opens many has "
      "no more than who opens one.");
  set.text("afd.metrics_listen", afd.metrics_listen,
           "HOST:PORT at which an FFN rank, or an attention rank behind fronts, answers GET /metrics; port "
           "0: chosen by "
           "the system. Empty: nowhere.");
  set.list("afd.capture_sizes", afd.capture_sizes,
           "Rows of the decode programs of graph mode, ascending; a step with more rows runs eager.");
  set.integer("afd.connect_timeout_s", afd.connect_timeout_s, 1, 86400,
              "How long attention waits for its FFN ranks at start, in seconds.");
  declare_peer_settings(set, afd);
  set.boolean(
      "afd.keep_serving", afd.keep_serving,
      "An FFN rank goes on although its first client has other settings; else both end with status 2.");

  set.text("serving.host", serving.host, "Address on which the HTTP server listens.");
  set.integer("serving.port", serving.port, 0, 65535, "Port of the HTTP server; 0: chosen by the system.");
  set.text("serving.served_model_name", serving.served_model_name,
           "Name of the model in the API; empty: the folder's name.");
  set.integer("serving.max_num_seqs", serving.max_num_seqs, 1, 4096, "Sequences that decode at once.");
  set.integer("serving.max_num_batched_tokens", serving.max_num_batched_tokens, 1, 65536,
              "Rows of one prefill step.");
  set.integer("serving.max_context_tokens", serving.max_context_tokens, 0, 16777216,
              "Prompt and answer together; 0: the model's limit, at most 32768.");
  set.integer(
      "serving.kv_cache_tokens", serving.kv_cache_tokens, 0, 1099511627776,
      "Tokens that the KV pool holds; 0: max_num_seqs full contexts, within a quarter of the free memory.");
  set.integer("serving.max_queue", serving.max_queue, 1, 1048576,
              "Requests that may wait; one more is answered with 429.");
  set.real(
      "serving.prefill_share", serving.prefill_share, 0, 0.95,
      "Share of attention's time that prompts get at least while answers are decoded; more where there are "
      "more of them.");
  set.boolean(
      "serving.enable_prefix_caching", serving.enable_prefix_caching,
      "Prompts go on from what earlier sequences with the same beginning have computed; changes no bit.");
  set.text(
      "serving.prefix_cache_dir", serving.prefix_cache_dir,
      "Folder in which the prefix cache outlives the server: written now and then and when it stops, read "
      "when it starts, a file for each attention rank; empty: none.");
  set.integer("serving.prefix_cache_dir_mib", serving.prefix_cache_dir_mib, 1, 1073741824,
              "Most MiB of such a file; what was used last is kept.");
  set.integer("serving.prefix_cache_save_interval_s", serving.prefix_cache_save_interval_s, 0, 86400,
              "Seconds between two such files while the server runs, if there is anything new: what a crash "
              "can lose; 0: only when it stops.");
  set.choice("serving.reasoning_parser", serving.reasoning_parser,
             {"auto", "none", "deepseek_v4", "deepseek_r1", "qwen3", "glm45", "gpt_oss"},
             "How answers mark their reasoning; auto: as the model's chat format says.");
  set.choice("serving.tool_call_parser", serving.tool_call_parser,
             {"auto", "none", "deepseek_v4", "hermes", "glm45", "glm47", "gpt_oss"},
             "How answers write tool calls; auto: as the chat format says; none: calls stay text.");
  set.list(
      "serving.api_key", serving.api_key,
      "Keys, one of which each request must send (Authorization: Bearer, or x-api-key); empty: none is "
      "asked for. /health, /ready and /metrics answer without. Flags are seen by all users of a machine: "
      "the file or TANDEM_API_KEY is better.");
  set.text("serving.api_key_file", serving.api_key_file,
           "File with more such keys, one a line; # begins a comment.");
  set.text("serving.ssl_certfile", serving.ssl_certfile,
           "PEM file of the certificate, with the chain above it: the server speaks TLS. Empty: plain HTTP.");
  set.text("serving.ssl_keyfile", serving.ssl_keyfile, "PEM file of the certificate's key.");
  set.list("serving.allowed_origins", serving.allowed_origins,
           "Origins of web pages whose scripts may use the API (CORS), such as https://chat.example.org; *: "
           "all of them.");
  set.integer("serving.max_body_bytes", serving.max_body_bytes, 1024, 1073741824,
              "Largest body of a request; more is answered with 413.");
  set.real(
      "serving.request_timeout_s", serving.request_timeout_s, 0, 86400,
      "Seconds from a request's arrival to its end, at most; requests may ask for less (timeout). Then it "
      "is answered with 504. 0: any time.");
  set.real("serving.queue_timeout_s", serving.queue_timeout_s, 0, 86400,
           "Seconds that a request waits for its first step, at most; then it is answered with 429. 0: any "
           "time.");
  set.integer("serving.drain_s", serving.drain_s, 0, 3600,
              "How long open replies may go on when the server is asked to stop, in seconds.");

  set.boolean("serving.trace_requests", serving.trace_requests,
              "Answer GET /debug/trace (tandem trace --url): what this process does (of a rank without the "
              "API: at afd.metrics_listen) in the next seconds; with engine.trace also in the last ones. Who "
              "may use the "
              "API may ask. Memory for engine.trace_events is taken once somebody does.");

  set.integer("up.attention", up.attention, 1, 1024, "Attention ranks to start.");
  set.integer("up.ffn", up.ffn, 0, 1024, "FFN ranks to start; 0: colocated.");
  set.choice("up.transport", up.transport, {"shm", "tcp", "ucx", "inproc"},
             "What connects the ranks; inproc: threads of one process.");
  set.boolean("up.once", up.once, "Answer one sample question and end.");
  set.text("up.question", up.question, "The sample question; empty: the first of the model's own.");

  set.text("generate.prompt", generate.prompt, "Text to continue; - reads standard input.");
  set.text(
      "generate.prompts_file", generate.prompts_file,
      "JSONL file, one object a line with prompt (text) or prompt_ids (token ids), and max_tokens where it "
      "is another; or a list of such objects. -: lines of standard input, each (a list: as one batch) "
      "answered before the next is read, the model loaded once.");
  set.integer("generate.max_tokens", generate.max_tokens, 1, 16777216, "Tokens to generate.");
  set.real("generate.temperature", generate.temperature, 0, 100, "0: greedy.");
  set.integer("generate.seed", generate.seed, 0, INT64_MAX, "Seed of the random stream.");
  set.boolean("generate.chat", generate.chat,
              "Put the prompt into the model's chat template as a user message.");
  set.boolean("generate.ignore_eos", generate.ignore_eos, "Go on behind the end of sequence.");
  set.boolean("generate.one_by_one", generate.one_by_one,
              "Run the prompts of a file one after another instead of batched.");

  set.text("eval.data", eval.data, "JSONL file with question and answer.");
  set.integer("eval.limit", eval.limit, 0, INT64_MAX, "Questions to ask; 0: all.");
  set.integer("eval.concurrency", eval.concurrency, 1, 4096, "Questions in flight at once.");
  set.integer("eval.max_tokens", eval.max_tokens, 1, 16777216, "Tokens of an answer.");
  set.text("eval.output", eval.output, "File for one JSON line a question, or a cell of the matrix.");
  set.boolean("eval.resume", eval.resume,
              "Keep the answers that eval.output has, and ask for those that failed or are missing.");
  set.text(
      "eval.base_url", eval.base_url,
      "Server of OpenAI's API that answers, with or without /v1; empty: ranks that this command starts.");
  set.text("eval.api_key", eval.api_key, "Bearer token for that server; empty: OPENAI_API_KEY, or none.");
  set.integer("eval.num_fewshot", eval.num_fewshot, 0, 1000,
              "Examples before each question, as earlier turns of the chat.");
  set.text("eval.fewshot_data", eval.fewshot_data,
           "File whose first questions and answers are the examples.");
  set.list("eval.files", eval.files, "Two outputs of eval gsm8k.");
  set.text("eval.text", eval.text, "Text file, scored as one text.");
  set.integer("eval.window", eval.window, 0, 16777216,
              "Tokens that are computed at once; 0: the context, at most 2048.");
  set.integer("eval.stride", eval.stride, 0, 16777216,
              "Tokens from one window to the next; the others are context. 0: half of the window.");
  set.boolean("eval.full", eval.full,
              "Run every supported cell of the matrix; with --output it can be taken up again.");
  set.choice("eval.cover", eval.cover, {"pairs", "values", "triples"},
             "What the cells of a pruned matrix cover: each pair of values that goes together, each value, "
             "or each triple.");

  set.text("vllm.additional_config", vllm.additional_config,
           "JSON of vLLM's AFD plugin, {\"afd\": {...}}: its keys are translated (docs/afd-plugin.md).");
  set.boolean("vllm.enforce_eager", vllm.enforce_eager, "The same as afd.execution: eager.");
  set.text("vllm.compilation_config", vllm.compilation_config,
           "JSON with cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size "
           "(docs/afd-plugin.md).");

  set.list("bench.arms", bench.arms,
           "What is compared: ffn and attention, where the gate runs; base=BINARY, another tandem.");
  set.integer("bench.runs", bench.runs, 1, 1000, "Runs of each arm.");
  set.choice("bench.profile", bench.profile, load_profile_names(), "The load.");
  set.real("bench.scale", bench.scale, 0.001, 1, "Multiplies the load's lengths, concurrency and limits.");
  set.integer("bench.requests", bench.requests, 0, INT64_MAX,
              "Requests of a run; 0: twice as many as run at once.");
  set.integer("bench.seed", bench.seed, 0, INT64_MAX, "Seed of the prompts' token ids.");
  set.text("bench.output", bench.output, "The report is written beside this name, as .md, .json and .svg.");

  declare_load(set, load);
  declare_sharing(set, sharing);

  set.text("measure.shape", measure.shape,
           "Sizes of a released model by short name; its files are not needed. --list-shapes prints them.");
  set.integer(
      "measure.layers", measure.layers, 0, 1024,
      "Layers that the model is cut to; 0: all of them, or for bench moe as many as a gigabyte holds.");
  set.text(
      "measure.weights", measure.weights,
      "Format of the matrices: bf16, fp8_block, mxfp4, ... (a wrong name lists all); released: as the "
      "model's files have them. Routers and absorbed projections stay bf16, heads but in int8 and mxfp8.");
  set.text("measure.expert_weights", measure.expert_weights,
           "Format of the routed experts; empty: that of measure.weights.");
  set.list("measure.batch", measure.batch,
           "Rows of a step, several for several cases: sequences of a decode step, rows of a prefill step.");
  set.list("measure.context", measure.context,
           "Tokens of each sequence, the new one included; prefill: tokens before the step's rows.");
  set.integer("measure.chunk", measure.chunk, 0, 4096,
              "Rows of the prompt chunk that ends at the context; 0: decode only.");
  set.boolean("measure.profile", measure.profile, "Where the time of a step goes, by kind of operation.");
  set.boolean("measure.list_shapes", measure.list_shapes, "Print the shapes and end.");
  set.text("measure.filter", measure.filter, "Only cases whose name contains this.");
  set.integer("measure.runs", measure.runs, 1, 1000,
              "Measurements of each kind, in turn; their median is reported.");
  set.text("measure.transport", measure.transport, "Only this transport (and the floor); empty: all.");
  set.list(
      "measure.security", measure.security,
      "Measure tcp once more with peers that prove a key (key), and inside TLS 1.3 with certificates made "
      "for the run (tls).");
  set.boolean("measure.all", measure.all,
              "Every kernel table that this CPU can run, not only the one in use.");

  set.text("conformance.rank", conformance.rank,
           "Address of the FFN rank to test, tcp://HOST:PORT or HOST:PORT.");
  set.list("conformance.only", conformance.only,
           "Names of cases, with * for anything: carrier.*, value.expert_high.");
  set.boolean("conformance.list", conformance.list, "Name the cases, and run none.");
  set.real("conformance.patience_s", conformance.patience_s, 0.1, 3600,
           "Seconds that an answer may take which comes at once on an idle machine.");
  declare_trace(set, trace);

  set.boolean("configuration.matrix", configuration.matrix,
              "Print the support matrix (in docs/features.md) instead.");
  set.boolean("configuration.plugin", configuration.plugin,
              "Print how the AFD plugin's keys are translated (in docs/afd-plugin.md) instead.");
  return set;
}

bool Settings::shared_experts_on_attention() const {
  const std::string& choice = afd.compute_shared_experts_on_attention;
  return choice == "auto" ? afd.compute_gate_on_attention : choice == "true";
}

bool Settings::chooses_replicas_by_experts() const {
  return afd.replica_choice == "auto" ? engine.deterministic : afd.replica_choice == "experts";
}

Result<std::vector<uint32_t>> Settings::capture_sizes() const {
  std::vector<uint32_t> sizes;
  if (afd.execution != "graph") return sizes;
  bool good = !afd.capture_sizes.empty();
  std::string all;
  for (const std::string& text : afd.capture_sizes) {
    uint32_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    good = good && error == std::errc() && end == text.data() + text.size() && size <= kMaxCaptureSize &&
           size > (sizes.empty() ? 0 : sizes.back());
    sizes.push_back(size);
    all += (all.empty() ? "" : ",") + text;
  }
  if (good) return sizes;
  return make_error(ErrorCode::invalid_argument,
                    "afd.capture_sizes: '" + all + "' is not an ascending list of numbers in 1.." +
                        std::to_string(kMaxCaptureSize) + "; use 8,16,32,64,128");
}

int64_t Settings::ffn_ranks() const {
  return std::max({up.ffn, afd.num_ffn_ranks, static_cast<int64_t>(afd.ffn.size()),
                   static_cast<int64_t>(trace.ffn_addresses.size())});
}

int64_t Settings::attention_ranks() const {
  return std::max(afd.num_attention_ranks, static_cast<int64_t>(afd.attention.size()));
}

Result<void> validate(const Settings& settings) {
  const auto refuse = [](const std::string& key, const std::string& value, const std::string& remedy) {
    return make_error(ErrorCode::unsupported, key + ": " + value + " is not supported; use " + remedy);
  };
  TANDEM_TRY(check_support(settings));
  const AfdSettings& afd = settings.afd;
  const auto listed = [](const std::vector<std::string>& addresses, int64_t ranks) {
    return std::max(ranks, static_cast<int64_t>(addresses.size()));
  };
  if (const int64_t ranks = listed(afd.ffn, afd.num_ffn_ranks); afd.ffn_rank >= ranks) {
    return refuse("afd.ffn_rank",
                  std::to_string(afd.ffn_rank) + " of afd.num_ffn_ranks " + std::to_string(ranks),
                  "0.." + std::to_string(ranks - 1));
  }
  if (const int64_t ranks = listed(afd.attention, afd.num_attention_ranks); afd.attention_rank >= ranks) {
    return refuse("afd.attention_rank",
                  std::to_string(afd.attention_rank) + " of afd.num_attention_ranks " + std::to_string(ranks),
                  "0.." + std::to_string(ranks - 1));
  }
  if (!afd.attention.empty() && afd.num_attention_ranks > 1 &&
      afd.num_attention_ranks != static_cast<int64_t>(afd.attention.size())) {
    return refuse("afd.num_attention_ranks",
                  std::to_string(afd.num_attention_ranks) + " with " + std::to_string(afd.attention.size()) +
                      " addresses in afd.attention",
                  "one address for each rank");
  }
  if (!settings.trace.ffn_addresses.empty() && settings.up.ffn > 0) {
    return refuse("trace.ffn_addresses",
                  std::to_string(settings.trace.ffn_addresses.size()) + " with up.ffn " +
                      std::to_string(settings.up.ffn),
                  "one of them: ranks that run already, or ranks to start");
  }
  if (settings.up.attention > 1 && settings.up.ffn == 0 && settings.trace.ffn_addresses.empty()) {
    return refuse("up.attention", std::to_string(settings.up.attention) + " with up.ffn 0",
                  "at least one FFN rank: colocated is one process");
  }
  if (!afd.ffn.empty() && afd.num_ffn_ranks > 1 &&
      afd.num_ffn_ranks != static_cast<int64_t>(afd.ffn.size())) {
    return refuse("afd.num_ffn_ranks",
                  std::to_string(afd.num_ffn_ranks) + " with " + std::to_string(afd.ffn.size()) +
                      " addresses in afd.ffn",
                  "one address for each rank");
  }
  if (afd.expert_slices != 0 && afd.placement != "hybrid") {
    return refuse("afd.expert_slices",
                  std::to_string(afd.expert_slices) + " with afd.placement " + afd.placement,
                  "0, or afd.placement: hybrid");
  }
  TANDEM_TRY(validate_peer_settings(settings));
  if (settings.engine.synthetic_kv && settings.engine.speculative == "on")
    return refuse("engine.synthetic_kv", "true with engine.speculative on", "engine.speculative: off");
  TANDEM_TRY(settings.capture_sizes());
  const ServingSettings& serving = settings.serving;
  if (serving.ssl_certfile.empty() != serving.ssl_keyfile.empty()) {
    const bool key_alone = serving.ssl_certfile.empty();
    return refuse(
        key_alone ? "serving.ssl_keyfile" : "serving.ssl_certfile",
        std::string("one file without ") + (key_alone ? "serving.ssl_certfile" : "serving.ssl_keyfile"),
        "both, or neither");
  }
  return {};
}

}  // namespace tandem
