#include "cli/command.h"
#include "cli/commands.h"

namespace tandem {
namespace {

void colocated_by_default(Settings& settings) {
  settings.up.ffn = 0;
}

// Nobody waits for the next token of one set of prompts: full decode steps sooner end the set sooner (32
// prompts of 256 tokens and 49 more each, Qwen3-30B's shape in int8: 10.2 s instead of 12.2).
void offline_defaults(Settings& settings) {
  colocated_by_default(settings);
  settings.serving.prefill_share = 0.95;
}

// Small enough that a cell takes about a second, and that the prompts need several steps: decode batches that
// are not full, a prompt in two prefill steps.
void matrix_defaults(Settings& settings) {
  settings.engine.deterministic = true;
  settings.engine.log_level = "error";
  settings.serving.max_num_seqs = 8;
  settings.serving.max_num_batched_tokens = 96;
  settings.serving.max_context_tokens = 256;
}

std::vector<Command> make_commands() {
  const std::vector<std::string> base = {"model", "config", "json", "engine."};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> keys = base;
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  };
  // What both roles must agree on; `up` and its like pass it to the ranks that they start.
  const std::vector<std::string> split_only_addresses = {
      "afd.attention",     "afd.attention_listen",    "afd.attention_rank", "afd.listen",
      "afd.ffn",           "afd.ffn_address_pattern", "afd.role",           "afd.ffn_rank",
      "afd.num_ffn_ranks", "afd.num_attention_ranks", "afd.keep_serving",   "afd.metrics_listen"};

  // What a command that answers one set of prompts and ends has no use for.
  std::vector<std::string> of_a_server = split_only_addresses;
  of_a_server.insert(
      of_a_server.end(),
      {"serving.host", "serving.port", "serving.reasoning_parser", "serving.tool_call_parser",
       "serving.api_key", "serving.api_key_file", "serving.ssl_certfile", "serving.ssl_keyfile",
       "serving.allowed_origins", "serving.max_body_bytes", "serving.request_timeout_s",
       "serving.queue_timeout_s", "serving.drain_s", "serving.trace_requests", "up.once", "up.question"});

  std::vector<Command> table;
  table.push_back(
      {"up",
       "start attention and FFN ranks on this host and serve the OpenAI API",
       "Starts the FFN processes, loads attention here, prints the ranks and one answered question, then "
       "serves\n"
       "until Ctrl-C.  Example: tandem up --model models/arith --attention 1 --ffn 1 --transport shm",
       with({"afd.", "serving.", "up.", "vllm.enforce_eager", "vllm.compilation_config"}),
       split_only_addresses,
       "model",
       {},
       run_up});
  table.push_back({"serve",
                   "serve the OpenAI API: colocated, or as the front of attention ranks (--attention)",
                   "With afd.role attention or ffn (in a file, or in --additional-config): that half.\n"
                   "Example: tandem serve --model models/arith --port 8000\n"
                   "In front of ranks: tandem serve --model models/arith --attention "
                   "tcp://10.0.0.2:7100,tcp://10.0.0.3:7100",
                   with({"afd.", "serving.", "vllm."}),
                   {"afd.listen", "afd.keep_serving"},
                   "model",
                   {},
                   run_serve});
  table.push_back({"attention",
                   "the attention role: serves the OpenAI API or fronts, with the experts on FFN ranks",
                   "Waits for its FFN ranks, whichever starts first.\n"
                   "Example: tandem attention --model models/arith --ffn tcp://10.0.0.2:7000\n"
                   "Several ranks: --ffn "
                   "tcp://10.0.0.2:7000,tcp://10.0.0.3:7000\n"
                   "For a front: --attention-listen tcp://127.0.0.1:7100 (tandem serve --attention ...)",
                   with({"afd.", "serving.", "vllm."}),
                   {"afd.attention", "afd.listen", "afd.role", "afd.ffn_rank", "afd.keep_serving"},
                   "model",
                   {},
                   run_attention});
  table.push_back(
      {"ffn",
       "the FFN role: holds the experts and computes for attention ranks",
       "Prints `ready ADDRESS` when it listens and its weights are loaded.\n"
       "Example: tandem ffn --model models/arith --listen tcp://127.0.0.1:7000\n"
       "One of several: --ffn tcp://10.0.0.2:7000,tcp://10.0.0.3:7000 --ffn-rank 1\n"
       "With --connector m2n --compute-gate-on-attention: --num-ffn-ranks 2 --ffn-rank 1 would do",
       with({"afd.", "vllm.", "serving.trace_requests", "serving.api_key", "serving.api_key_file"}),
       {"afd.attention", "afd.attention_listen", "afd.attention_rank", "afd.role", "afd.connect_timeout_s",
        "engine.trace"},
       "model",
       {},
       run_ffn});
  table.push_back({"rank",
                   "the role and rank that SLURM, mpirun or Kubernetes give this process",
                   "Global ranks 0..x-1 are attention, x..x+y-1 FFN; x and y are the numbers of addresses in "
                   "afd.attention and\n"
                   "afd.ffn, and a rank listens at its own. The front is tandem serve with the same file.\n"
                   "Example: srun -n 4 tandem rank --config cluster.yaml",
                   with({"afd.", "serving.", "vllm.enforce_eager", "vllm.compilation_config"}),
                   {"afd.attention_rank", "afd.ffn_rank", "afd.listen", "afd.attention_listen"},
                   "model",
                   {},
                   run_rank});
  table.push_back(
      {"generate", "continue one prompt, or a file of prompts, and end",
       "With --json: the tokens and a hash of the logits' bits, equal for equal runs.\n"
       "Example: tandem generate --model models/arith --chat --prompt 'Tom has 3 apples ...'",
       with({"afd.", "serving.", "up.", "generate.", "vllm.enforce_eager", "vllm.compilation_config"}),
       of_a_server, "model", offline_defaults, run_generate});
  std::vector<std::string> not_traced = of_a_server;
  not_traced.emplace_back("engine.trace");
  table.push_back(
      {"trace", "record every lane, wire and FFN rank of a run, or of servers, and say where the time went",
       "Random prompts (--sequences, --prompt-tokens), or those of --prompt or --prompts-file, in any "
       "placement.\n"
       "Writes Chrome trace JSON, which ui.perfetto.dev loads, and prints for each attention rank what of "
       "the time\n"
       "was attention, experts, queue, exchange, wire and bubble, by lane, layer and FFN rank. No clocks "
       "are\n"
       "compared: FFN ranks may be on hosts whose clocks are hours apart. --read prints that of a trace "
       "which\n"
       "--trace of a server wrote; --url asks servers that run with --trace-requests for their next "
       "--seconds.\n"
       "Examples: tandem trace --model models/arith --ffn 2 --connector m2n --compute-gate-on-attention\n"
       "          tandem trace --model DIR --ffn-addresses tcp://10.0.0.2:7000 --sequences 32 --output "
       "trace.json\n"
       "          tandem trace --url http://127.0.0.1:8000,http://10.0.0.2:9100 --seconds 5",
       with({"afd.", "serving.", "up.", "generate.", "trace.", "vllm.enforce_eager",
             "vllm.compilation_config"}),
       [&] {
         std::vector<std::string> excluded = not_traced;
         excluded.emplace_back("generate.one_by_one");
         return excluded;
       }(),
       "model", offline_defaults, run_trace});
  table.push_back(
      {"eval gsm8k", "answer the questions of a GSM8K-format file and score them",
       "By ranks of this host in any placement, or by a server of OpenAI's API (--base-url; --model is then "
       "its "
       "name there).\nRight: the number behind #### (strict), or the last number anywhere (flexible). "
       "--output "
       "has a line for each\nanswer as it comes; --resume goes on from such a file.\n"
       "Examples: tandem eval gsm8k --model models/arith --data models/arith/heldout.jsonl\n"
       "          tandem eval gsm8k --base-url http://127.0.0.1:8000 --data test.jsonl --concurrency 128 "
       "--output answers.jsonl",
       with({"afd.", "serving.", "up.", "eval.data", "eval.limit", "eval.concurrency", "eval.max_tokens",
             "eval.output", "eval.resume", "eval.base_url", "eval.api_key", "eval.num_fewshot",
             "eval.fewshot_data", "vllm.enforce_eager", "vllm.compilation_config"}),
       of_a_server, "model", offline_defaults, run_eval_gsm8k});
  table.push_back(
      {"eval compare",
       "two outputs of eval gsm8k, question by question",
       "Who is right where, how often they agree, and McNemar's exact test: how likely answerers that "
       "are\nequally good differ so unevenly.\n"
       "Example: tandem eval compare bf16.jsonl int8.jsonl",
       {"config", "json", "engine.log_level", "eval.files"},
       {},
       "eval.files",
       {},
       run_eval_compare});
  table.push_back(
      {"eval perplexity", "how well a model predicts a text: perplexity, bits a token, bits a byte",
       "By the engine's own logits in any placement, in windows of --window tokens, one every --stride: "
       "each token is\nscored once, with what stands before it in its window.\n"
       "Example: tandem eval perplexity --model DIR --text book.txt --window 2048 --stride 1024",
       with({"afd.", "serving.", "up.", "eval.text", "eval.window", "eval.stride", "eval.concurrency",
             "vllm.enforce_eager", "vllm.compilation_config"}),
       of_a_server, "model", offline_defaults, run_eval_perplexity});
  table.push_back({"eval parity",
                   "compare a model folder with the reference outputs that lie beside it",
                   "Float32 by default: logits within 1e-3, equal routing and equal greedy tokens.\n"
                   "--qat-simulation and --activation-dtype are for references that round too:\n"
                   "half of the prompts within 1e-3.\n"
                   "Example: tandem eval parity tests/fixtures/mixtral",
                   with({"afd.activation_dtype"}),
                   {"engine.trace", "engine.trace_events"},
                   "model",
                   [](Settings& settings) {
                     settings.engine.compute_dtype = "float32";
                     settings.afd.compute_gate_on_attention = true;  // where it compares the routing
                   },
                   run_eval_parity});
  table.push_back(
      {"eval matrix",
       "run one set of prompts in every placement and compare the logits' bits with colocated",
       "Crosses connector, exchange, gate, shared experts, placement of experts, execution, xAyF and "
       "transport.\n"
       "A combination that the validator refuses is listed with its reason and is no failure. Each cell "
       "runs\n"
       "the same prompts, batched and one by one, under --deterministic. Without --full: cells chosen so "
       "that\n"
       "every pair of values that goes together is run once. Status 0: every cell that ran is equal.\n"
       "Examples: tandem eval matrix --model models/arith\n"
       "          tandem eval matrix --model models/arith --full --output matrix.jsonl   (can be taken up "
       "again)",
       with({"afd.connect_timeout_s", "serving.max_num_seqs", "serving.max_num_batched_tokens",
             "serving.max_context_tokens", "eval.full", "eval.cover", "eval.output"}),
       {"engine.trace", "engine.trace_events"},  // cells, one after another: trace is the command for one
       "model",
       matrix_defaults,
       run_eval_matrix});
  table.push_back(
      {"bench host", "host time of a layer: what is neither computing nor waiting, eager and replayed",
       "Runs a few sequences in turns under afd.execution eager and graph.\n"
       "Example: tandem bench host --model models/arith --ffn 1 --transport shm",
       with({"afd.", "serving.", "up."}), not_traced, "model", colocated_by_default, run_bench_host});
  const auto of_measure = [](std::vector<std::string> keys) {
    for (const char* key : {"config", "json", "engine.threads", "engine.log_level", "measure.shape",
                            "measure.list_shapes", "measure.batch", "measure.runs"})
      keys.emplace_back(key);
    return keys;
  };
  table.push_back(
      {"bench kernels",
       "measure the kernels against this machine's measured roofs",
       "Without --shape: a fixed list of products, experts, attention and activation formats; takes "
       "about a minute.\nWith it: each matrix of that model, for each of --batch rows. Every case "
       "stands beside its roof, read in turn with it.\n"
       "Examples: tandem bench kernels --filter experts\n"
       "          tandem bench kernels --shape qwen3-30b --weights mxfp4 --batch 1,32,512",
       of_measure({"measure.weights", "measure.filter", "engine.huge_pages"}),
       {},
       "",
       [](Settings& settings) {
         settings.measure.batch = {"1", "16", "512"};
       },
       run_bench_kernels});
  table.push_back(
      {"bench moe",
       "measure the grouped expert product of a model's sizes: gate, up and down over some layers",
       "Random weights made in place; every row picks its experts for itself in every layer. Bytes "
       "are those of the\nexperts that the rows touch. Small batches are held against the read "
       "bandwidth, large ones against the bf16 dot.\n"
       "Examples: tandem bench moe --shape qwen3-30b --batch 1,8,32,1024\n"
       "          tandem bench moe --shape v4-flash --weights mxfp4 --batch 1 --runs 9",
       of_measure({"measure.weights", "measure.expert_weights", "measure.layers"}),
       {},
       "",
       [](Settings& settings) {
         settings.measure.batch = {"1", "8", "32", "512"};
       },
       run_bench_moe});
  table.push_back(
      {"bench attention",
       "measure attention over cache pages of a model's sizes, decode and prefill",
       "One layer: decode of each --batch of sequences at each --context, and a chunk of --chunk "
       "prompt rows that ends\nthere. GQA, absorbed MLA, or V4's window with chosen entries, as the "
       "model has it.\n"
       "Example: tandem bench attention --shape v2-lite --batch 1,8,32,128 --context 512,4096,32768",
       of_measure({"measure.context", "measure.chunk", "engine.kv_cache_dtype"}),
       {},
       "",
       [](Settings& settings) {
         settings.measure.batch = {"1", "8", "32"};
         settings.measure.context = {"512", "4096"};
       },
       run_bench_attention});
  table.push_back(
      {"bench decode",
       "measure whole decode steps of a model's sizes: ms, tokens/s, bytes by part, share of the roof, "
       "profile",
       "A model cut to --layers with random weights made in place and filled cache pages: every sequence of "
       "--batch has a\ncontext of its own and a new random token each step. The step runs as in the engine, "
       "sampling included. Bytes are\ncounted: every weight once, experts as often as the batch touches "
       "them.\n"
       "With --model: a model folder through the whole engine in any placement, at --context tokens a "
       "sequence. "
       "--synthetic-kv\nfills keys and values with random ones instead of computing the prompts, so that 32 "
       "sequences of 32 K tokens decode\nat once; what they say means nothing. Start is the time to every "
       "sequence's first token.\n"
       "Examples: tandem bench decode --shape qwen3-30b --layers 8 --batch 1,8,32 --context 1024 --profile\n"
       "          tandem bench decode --shape v4-flash --layers 3 --json\n"
       "          tandem bench decode --model DIR --synthetic-kv --batch 1,32 --context 32768 --ffn 1 "
       "--transport shm",
       [&] {
         std::vector<std::string> keys =
             of_measure({"measure.weights", "measure.expert_weights", "measure.layers", "measure.context",
                         "measure.profile", "engine.kv_cache_dtype"});
         for (const char* key :
              {"model", "afd.", "up.attention", "up.ffn", "up.transport", "serving.max_num_batched_tokens",
               "serving.prefill_share", "engine.synthetic_kv", "engine.deterministic",
               "engine.balanced_routing", "engine.compute_dtype", "engine.huge_pages", "engine.numa",
               "engine.weights_cache", "engine.trace", "engine.trace_events"})
           keys.emplace_back(key);
         return keys;
       }(),
       of_a_server, "",
       [](Settings& settings) {
         colocated_by_default(settings);
         settings.engine.log_level = "warning";  // of loading and connecting, in front of the table
       },
       run_bench_decode});
  table.push_back(
      {"bench prefill",
       "measure whole prefill steps of a model's sizes: ms, tokens/s, GFLOP/s, share of the peak, profile",
       "As bench decode, with one step of --batch prompt rows behind --context tokens.\n"
       "Example: tandem bench prefill --shape v2-lite --layers 6 --batch 512,2048 --profile",
       of_measure({"measure.weights", "measure.expert_weights", "measure.layers", "measure.context",
                   "measure.profile", "engine.kv_cache_dtype"}),
       {},
       "",
       [](Settings& settings) {
         settings.measure.batch = {"512"};
         settings.measure.context = {"0"};
       },
       run_bench_prefill});
  table.push_back(
      {"bench roofs",
       "measure this machine's roofs: read bandwidth and the peaks of bf16, int8 and float32",
       "Read bandwidth with one and with all threads, from small and from huge pages (it says when "
       "the system\ngives none); the bf16 dot, int8 products (VNNI where there is such) and float32 "
       "FMA of the kernel table\nin use, which TANDEM_ISA chooses; of each table that this CPU can "
       "run with --all. Takes some seconds a table.\nOther work on the machine shows in every number. "
       " Examples: tandem bench roofs\n          tandem bench roofs --all --runs 9 --json",
       {"config", "json", "engine.threads", "engine.log_level", "measure.runs", "measure.all"},
       {},
       "",
       {},
       run_bench_roofs});
  table.push_back(
      {"bench transport",
       "measure round trips over inproc, shm, tcp and ucx beside the bare floor",
       "Each size goes over every transport and over the floor in turn, in slices, in one run. The floor: "
       "two "
       "processes, the same three copies\nthrough shared slots, flags that both spin on, nothing else: what "
       "is "
       "above it is the price of frames, credits, checks and waking up.\nThe first case is what a layer of "
       "128 rows x 7168 bf16 exchanges: two request frames there, two reply frames back (A2E + E2A).\n"
       "p50 and p99 of round trips; GB/s counts both ways. UCX takes shared memory, or what "
       "UCX_TLS and UCX_NET_DEVICES say.\nOther work on the machine shows in every number: compare within "
       "one run. "
       "Takes about half a minute.\nExamples: tandem bench transport --json > transport.json\n"
       "          tandem bench transport --transport tcp --security key,tls",
       {"config", "json", "engine.log_level", "measure.transport", "measure.security"},
       {},
       "",
       {},
       run_bench_transport});
  table.push_back(
      {"bench sharing",
       "measure many clients on one pool of experts: merged, first in first out, colocated, beside a flood",
       "An FFN rank of this process over random experts, and clients that each have one request under way; "
       "no "
       "attention is\ncomputed. The arms take turns in slices. A token is a row through all layers; bytes "
       "are "
       "those of the experts that\ncalls read. The first arm is what the others' x is of. Clients and pool "
       "share "
       "the CPUs.\n"
       "Examples: tandem bench sharing\n"
       "          tandem bench sharing --arms merge,colocated --clients 8 --layers 4\n"
       "          tandem bench sharing --arms merge,flood,stall --clients 8\n"
       "          tandem bench sharing --arms merge,connections --transport tcp --clients 8",
       {"config", "json", "engine.threads", "engine.log_level", "measure.runs", "sharing."},
       {},
       "",
       [](Settings& settings) { settings.engine.log_level = "error"; },
       run_bench_sharing});
  table.push_back(
      {"bench serving", "load a server of OpenAI's API and report throughput, TTFT, ITL and goodput",
       "Against --base-url, or a server that this process starts from --model in any placement (it then has "
       "its share\nof the CPUs). Open loop: --request-rate, with --arrivals or --burstiness; closed loop: "
       "--max-concurrency alone.\n--model and --served-model-name name the model of --base-url; a folder "
       "gives its tokenizer.\nTimes are from sending a request; TTFT is to its first text, ITL between "
       "pieces "
       "of text, TPOT from the\nfirst piece to the last for each token after the first. Status 1 when a "
       "request failed.\n"
       "Examples: tandem bench serving --model models/arith --max-concurrency 8 --num-prompts 64 "
       "--random-input-len 64:256\n"
       "          tandem bench serving --base-url http://127.0.0.1:8000 --request-rate 4 --duration-s 60 "
       "--goodput ttft:500 itl:50 --report load.html",
       with({"afd.", "serving.", "up.", "load.", "vllm.enforce_eager", "vllm.compilation_config"}),
       of_a_server, "",
       [](Settings& settings) {
         colocated_by_default(settings);
         settings.engine.log_level = "warning";
       },
       run_bench_serving});
  table.push_back(
      {"bench placement",
       "run one load with the gate on FFN and on attention, in turn, and say whether it matters",
       "Each arm of --arms is a placement on ranks of its own, all of the same xAyF (--attention, --ffn,\n"
       "--transport) and of this binary; base=BINARY is another build in the first arm's placement, and "
       "then\n"
       "every run of every arm is a process of its own. The arms take turns (ABBA); each delta stands beside "
       "its\n"
       "noise band, made from the spread of one arm's runs, and a verdict in words. The accuracy of each arm "
       "is\n"
       "measured on the same ranks where the model has a heldout.jsonl (--data, --limit). The report has "
       "the\n"
       "waits and router times of each rank, every run, the machine and the commands: --output NAME writes\n"
       "NAME.md, NAME.json and NAME.svg.\n"
       "Profiles: seed-503, 128 requests at once of 8275 tokens in and 32 out; seed-545, 4 of 128 in and "
       "128\n"
       "out. --scale S multiplies lengths, concurrency, batched tokens, sequences and capture sizes.\n"
       "Examples: tandem bench placement --model models/arith --runs 6\n"
       "          tandem bench placement --model DIR --profile seed-503 --scale 0.1 --ffn 2 --connector m2n "
       "...",
       with({"afd.", "serving.", "up.", "bench.", "eval.data", "eval.limit"}),
       [&] {
         std::vector<std::string> excluded = not_traced;  // arms take turns
         // The arms and the profile decide these.
         for (const char* key :
              {"afd.compute_gate_on_attention", "serving.max_num_seqs", "serving.max_num_batched_tokens",
               "serving.max_context_tokens", "serving.max_queue"})
           excluded.emplace_back(key);
         return excluded;
       }(),
       "model",
       [](Settings& settings) {
         settings.engine.log_level = "warning";
         settings.afd.compute_gate_on_attention = true;  // each arm says where; some connectors need it there
       },
       run_bench_placement});
  table.push_back(
      {"inspect",
       "what a model needs: parameters, bytes by role and dtype, KV bytes a token",
       "Reads config.json only.  Example: tandem inspect models/arith\n"
       "What each FFN rank would hold of the experts: --num-ffn-ranks 4 --placement slice --connector "
       "m2n\n--compute-gate-on-attention",
       {"model", "config", "json", "engine.log_level", "engine.kv_cache_dtype", "afd."},
       {"afd.ffn", "afd.listen", "afd.role", "afd.connect_timeout_s", "afd.ffn_rank", "afd.insecure",
        "afd.peer_key_file", "afd.peer_tls_certificate", "afd.peer_tls_key", "afd.peer_tls_ca"},
       "model",
       {},
       run_inspect});
  table.push_back(
      {"conformance",
       "test an FFN rank of any maker against the wire protocol, case by case",
       "Speaks docs/protocol.md to the rank over tcp, right and wrong: carrier, credits, handshake, each "
       "setting,\nframes, rules, requests, wrong values, sessions, numbers, strangers. Prints a line a "
       "case:\n"
       "  ok      NAME: what the rank must do\n"
       "  FAILED  NAME: what it must do; expected ...; got ...\n"
       "  skipped NAME: why its placement has no such thing\n"
       "Status 0: no case failed. 1: some did. 2: the rank cannot be tested (unreachable, one of\n"
       "several, another key), or no case has such a name.\n"
       "The rank states its own settings; --model DIR compares its results with that model as well. Run it "
       "with\nthe gate on either side: the routing travels in one placement only. It is a client among "
       "others: "
       "a\nrank that serves goes on serving.\n"
       "A rank with a key or certificates is tested with the --peer-key-file or --peer-tls-... of its "
       "clients, and\n"
       "by strangers as well (security.*): a wrong, half or missing proof, messages before it, hellos "
       "outside of\n"
       "TLS, no certificate or another CA's.\n"
       "Examples: tandem conformance 10.0.0.2:7000 --model models/arith\n"
       "          tandem conformance 10.0.0.2:7000 --peer-key-file peer.key --only 'security.*'\n"
       "          tandem conformance 10.0.0.2:7000 --only 'value.*,credits.slow_reader' --json\n"
       "          tandem conformance --list",
       {"model", "config", "json", "engine.log_level", "engine.threads", "conformance.", "afd.peer_key_file",
        "afd.peer_tls_certificate", "afd.peer_tls_key", "afd.peer_tls_ca"},
       {},
       "conformance.rank",
       [](Settings& settings) { settings.engine.log_level = "warning"; },  // the report is what counts
       run_conformance});
  table.push_back({"doctor",
                   "what this machine offers, what is missing and what to do about it",
                   "",
                   {"config", "json", "engine.log_level", "serving.host", "serving.port"},
                   {},
                   "",
                   {},
                   run_doctor});
  table.push_back({"configuration",
                   "print the reference of all settings (docs/configuration.md)",
                   "With --matrix: which combinations are supported (docs/features.md).",
                   {"config", "configuration."},
                   {},
                   "",
                   {},
                   run_configuration});
  return table;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> table = make_commands();
  return table;
}

}  // namespace tandem
