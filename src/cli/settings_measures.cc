// Settings of loads, of benchmarks of many clients, of traces.
#include "cli/settings_measures.h"

namespace tandem {

void declare_load(OptionSet& set, LoadSettings& load) {
  set.text("load.base_url", load.base_url,
           "Server to measure, with or without /v1; empty: one that this process starts from --model.");
  set.choice("load.endpoint", load.endpoint, {"/v1/completions", "/v1/chat/completions"},
             "What is asked for; a chat has each prompt as its user message.");
  set.text(
      "load.tokenizer", load.tokenizer,
      "Folder or tokenizer.json that random prompts are drawn from, as token ids; empty: the model's, or "
      "random words where no folder is known.");
  set.text("load.api_key", load.api_key, "Bearer token for the server; empty: OPENAI_API_KEY, or none.");
  set.choice(
      "load.dataset_name", load.dataset_name, {"auto", "random", "custom"},
      "random: synthetic prompts; custom: lines of load.dataset_path; auto: custom where that is given.");
  set.text("load.dataset_path", load.dataset_path,
           "JSONL file, one object a line with prompt, prompt_ids, messages or question, and output_tokens "
           "where the line has a length of its own; read again from its beginning when it is too short.");
  set.text("load.random_input_len", load.random_input_len,
           "Tokens of a random prompt: 128, 64:256 (uniform) or lognormal:MEDIAN:SIGMA.");
  set.text("load.random_output_len", load.random_output_len, "Tokens of an answer, in the same forms.");
  set.real("load.random_range_ratio", load.random_range_ratio, 0, 0.999,
           "Lengths given as one number are uniform in that number x (1 - ratio .. 1 + ratio).");
  set.integer("load.random_prefix_len", load.random_prefix_len, 0, 1 << 24,
              "Tokens in front of each random prompt that it shares with the others of its group.");
  set.integer("load.num_prefixes", load.num_prefixes, 1, 1 << 20, "Groups, each with a prefix of its own.");
  set.integer("load.num_prompts", load.num_prompts, 0, INT64_MAX,
              "Requests; 0: 1000, or as many as load.duration_s has room for.");
  set.real("load.duration_s", load.duration_s, 0, 1e7,
           "Seconds in which requests are sent; those that are open then may end. 0: no limit.");
  set.text("load.request_rate", load.request_rate,
           "Requests a second, whatever the server does (open loop); inf: as soon as load.max_concurrency "
           "allows.");
  set.choice("load.arrivals", load.arrivals, {"poisson", "constant"}, "How requests of a rate are spread.");
  set.real("load.burstiness", load.burstiness, 0.001, 1000,
           "Shape of the gamma distribution of gaps: 1 is a Poisson process, less is burstier, more is more "
           "even.");
  set.integer("load.max_concurrency", load.max_concurrency, 0, 1 << 20,
              "Requests in flight (closed loop); 0: no limit.");
  set.boolean("load.stream", load.stream, "Stream the answers; without, there are no times of tokens.");
  set.boolean("load.ignore_eos", load.ignore_eos,
              "Ask for answers of exactly their length; servers that refuse the field need it off.");
  set.real("load.temperature", load.temperature, 0, 2, "0: greedy.");
  set.text("load.extra_body", load.extra_body, "JSON object whose fields each request gets.");
  set.integer(
      "load.num_warmups", load.num_warmups, 0, 100000,
      "Requests before the measured ones, one after another; the load does not begin when one fails.");
  set.list("load.goodput", load.goodput,
           "Limits in milliseconds that a good request keeps: ttft:500, tpot:50, itl:50 (its mean gap), "
           "e2el:2000.");
  set.list("load.metric_percentiles", load.metric_percentiles, "Percentiles that are reported.");
  set.integer("load.seed", load.seed, 0, INT64_MAX, "Seed of prompts, lengths and arrivals.");
  set.text("load.report", load.report, "HTML file with the figures and charts; empty: none.");
  set.text("load.output", load.output, "File for one JSON line a request; empty: none.");
}

void declare_sharing(OptionSet& set, SharingSettings& sharing) {
  set.list(
      "sharing.arms", sharing.arms,
      "What is compared, in turns: merge, oldest and fifo (afd.ffn_scheduler grouped, oldest, fifo); "
      "colocated, as many copies of the experts as clients on the same cores; merge beside trouble: flood (a "
      "client with all its credits in use), stall (one that reads no answer), connections (that say nothing, "
      "over tcp).");
  set.integer("sharing.clients", sharing.clients, 1, 256, "Clients, each with one request at a time.");
  set.integer("sharing.rows", sharing.rows, 1, 64, "Rows of a request.");
  set.integer("sharing.experts", sharing.experts, 1, 1024, "Experts of a layer.");
  set.integer("sharing.top_k", sharing.top_k, 1, 64, "Experts of a row.");
  set.integer("sharing.hidden", sharing.hidden, 64, 16384, "Values of a row.");
  set.integer("sharing.intermediate", sharing.intermediate, 64, 16384, "Intermediate rows of an expert.");
  set.integer("sharing.layers", sharing.layers, 1, 256,
              "Layers with experts, all of them with weights of their own.");
  set.real("sharing.seconds", sharing.seconds, 0.1, 3600, "How long each arm is measured, in --runs slices.");
  set.real("sharing.think_ms", sharing.think_ms, 0, 1000,
           "Between an answer and the next request of a client, on average: what attention would take.");
  set.real("sharing.flood_rate", sharing.flood_rate, 1, 100000,
           "Connections a second of the arm connections.");
  set.choice("sharing.transport", sharing.transport, {"inproc", "shm", "tcp"}, "Between clients and pool.");
  set.text("sharing.format", sharing.format, "Format of the experts: bf16, int8, mxfp4, ...");
}

void declare_trace(OptionSet& set, TraceSettings& trace) {
  set.text("trace.output", trace.output,
           "File for the trace: Chrome trace JSON, as ui.perfetto.dev loads it.");
  set.text("trace.read", trace.read, "Print the summary of this trace instead of making one.");
  set.list(
      "trace.url", trace.url,
      "Servers and FFN ranks that run (http://127.0.0.1:8000): traced as they are (serving.trace_requests "
      "lets them), all at once, into one file.");
  set.text("trace.api_key", trace.api_key, "Bearer token for these; empty: none.");
  set.real("trace.seconds", trace.seconds, 0.1, 60, "How long they are traced.");
  set.boolean("trace.last", trace.last,
              "The last seconds instead of the next, of ranks that record all the time (engine.trace).");
  set.list("trace.ffn_addresses", trace.ffn_addresses,
           "FFN ranks that run already, in order of rank; none: up.ffn of them are started.");
  set.integer("trace.sequences", trace.sequences, 1, 4096,
              "Without a prompt: this many of random tokens, all at once.");
  set.integer("trace.prompt_tokens", trace.prompt_tokens, 1, 1 << 20, "Tokens of each of them.");
}

}  // namespace tandem
