// Settings: everything a user can set, in one struct, declared once. Every command reads the same keys from
// the YAML file and the subset that it uses from flags and the environment (file < environment < flag).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/options.h"

namespace tandem {

class SettingsReload;

struct EngineSettings {
  std::string compute_dtype = "bf16";  // bf16 | float32
  std::string weights = "auto";        // auto | dequantized | int8 | fp8 | mxfp8 | mxfp4
  std::string weights_report;          // a file; empty: none
  std::string weights_cache = "off";   // off, or a folder
  std::string huge_pages = "auto";     // auto | off | on
  std::string numa = "auto";           // auto | off
  bool deterministic = false;
  bool balanced_routing = false;       // benchmarks only
  bool synthetic_kv = false;           // benchmarks only
  std::string speculative = "auto";    // off | auto | on
  int64_t num_speculative_tokens = 0;  // 0: as many as the model's drafter was trained for
  bool qat_simulation = false;
  std::string kv_cache_dtype = "auto";  // auto | bf16 | fp8 | fp8_e4m3
  int64_t threads = 0;                  // 0: what the CPU budget allows
  std::string log_level = "info";
  std::string trace;  // a file; empty: none
  int64_t trace_events = 1 << 19;
};

inline constexpr const char* kDefaultFfnAddress = "tcp://127.0.0.1:7000";

struct AfdSettings {
  std::string role = "none";  // none: colocated
  std::string connector = "p2p";
  std::vector<std::string> ffn;                           // addresses of the FFN ranks
  std::vector<std::string> attention;                     // where fronts reach the attention ranks
  std::string ffn_address_pattern = "tcp://{node}:7000";  // see rank_addresses.h
  std::string listen;            // of an FFN rank; empty: its entry of `ffn`, or kDefaultFfnAddress
  std::string attention_listen;  // of an attention rank for fronts; empty: its entry of `attention`, or none
  int64_t num_attention_ranks = 1, num_ffn_ranks = 1;
  int64_t attention_rank = -1, ffn_rank = -1;  // of this process; -1: from its launcher, or 0
  bool compute_gate_on_attention = false;
  std::string compute_shared_experts_on_attention = "auto";
  bool send_token_ids = false;
  std::string exchange = "auto", placement = "expert", activation_dtype = "auto", micro_batches = "auto",
              micro_batch_split = "request", execution = "eager";
  int64_t expert_slices = 0;  // 0: 2 with placement hybrid, 1 with one FFN rank
  int64_t expert_replicas = 1;
  std::string replica_choice = "auto";
  std::string ffn_scheduler = "grouped";
  int64_t max_clients = 64;  // of an FFN rank
  int64_t client_waiting_tiles = 64, client_waiting_rows = 4096;
  std::string client_unit = "connection";  // whose share of an FFN rank's time and quota
  std::string metrics_listen;              // of a rank without the API: HOST:PORT; empty: none
  std::vector<std::string> capture_sizes = {"8", "16", "32", "64", "128"};
  int64_t connect_timeout_s = 300;
  bool insecure = false;
  // How peers show who they are, cli/peer_settings.h; empty: not at all.
  std::string peer_key_file;
  std::string peer_tls_certificate, peer_tls_key, peer_tls_ca;
  bool keep_serving = false;
};

struct ServingSettings {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string served_model_name;
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  int64_t max_context_tokens = 0;  // 0: the model's, at most 32768
  int64_t kv_cache_tokens = 0;     // 0: max_num_seqs full contexts, within a quarter of the memory
  int64_t max_queue = 1024;
  double prefill_share = 0.33;
  bool enable_prefix_caching = true;
  std::string prefix_cache_dir;  // empty: none
  int64_t prefix_cache_dir_mib = 4096;
  int64_t prefix_cache_save_interval_s =
      300;  // what a crash loses at most; a full file is 14 MB/s of writing
  std::string reasoning_parser = "auto", tool_call_parser = "auto";
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::string ssl_certfile, ssl_keyfile;
  std::vector<std::string> allowed_origins;
  int64_t max_body_bytes = 32 << 20;  // a prompt of a million tokens as JSON numbers is some 8 MB
  double request_timeout_s = 0, queue_timeout_s = 0;  // 0: none
  int64_t drain_s = 10;
  bool trace_requests = false;
};

struct UpSettings {
  int64_t attention = 1, ffn = 1;
  std::string transport = "shm";
  bool once = false;
  std::string question;  // empty: the model's own sample
};

struct GenerateSettings {
  std::string prompt;
  std::string prompts_file;
  int64_t max_tokens = 64;
  double temperature = 0;
  int64_t seed = 0;
  bool chat = false;
  bool ignore_eos = false;
  bool one_by_one = false;
};

struct EvalSettings {
  std::string data;
  int64_t limit = 0;
  int64_t concurrency = 32;
  int64_t max_tokens = 256;
  std::string output;
  bool resume = false;
  std::string base_url, api_key;  // empty: ranks of this host answer
  int64_t num_fewshot = 0;
  std::string fewshot_data;
  std::vector<std::string> files;  // to compare
  std::string text;                // to score
  int64_t window = 0, stride = 0;  // 0: the context, at most 2048; half of the window
  bool full = false;
  std::string cover = "pairs";
};

// vLLM's own words, translated by cli/setting_sources.h.
struct VllmSettings {
  std::string additional_config;
  bool enforce_eager = false;
  std::string compilation_config;
};

struct BenchSettings {
  std::vector<std::string> arms = {"ffn", "attention"};
  int64_t runs = 5;
  std::string profile = "seed-545";
  double scale = 1;
  int64_t requests = 0;
  int64_t seed = 0;
  std::string output = "placement";
};

// A load on a server. Names as vLLM's `bench serve` has them where it has such a thing.
struct LoadSettings {
  std::string base_url;  // empty: a server of this process
  std::string endpoint = "/v1/completions";
  std::string tokenizer, api_key;
  std::string dataset_name = "auto", dataset_path;
  std::string random_input_len = "1024", random_output_len = "128";
  double random_range_ratio = 0;
  int64_t random_prefix_len = 0, num_prefixes = 1;
  int64_t num_prompts = 0;  // 0: 1000, or what the duration has room for
  double duration_s = 0;
  std::string request_rate = "inf", arrivals = "poisson";
  double burstiness = 1;
  int64_t max_concurrency = 0;
  bool stream = true, ignore_eos = true;
  double temperature = 0;
  std::string extra_body;
  int64_t num_warmups = 1;
  std::vector<std::string> goodput, metric_percentiles = {"50", "90", "95", "99"};
  int64_t seed = 0;
  std::string report, output;
};

// Many clients on one pool of experts.
struct SharingSettings {
  std::vector<std::string> arms = {"fifo", "merge"};
  int64_t clients = 16, rows = 4, experts = 32, top_k = 4;
  int64_t hidden = 1024, intermediate = 512, layers = 8;
  double seconds = 6, think_ms = 0, flood_rate = 500;
  std::string transport = "inproc", format = "bf16";
};

// Benchmarks against the machine's roofs.
struct MeasureSettings {
  std::string shape;
  int64_t layers = 0;  // 0: all of the model; bench moe: as many as a gigabyte holds
  std::string weights = "released", expert_weights;
  std::vector<std::string> batch = {"1"}, context = {"512"};
  int64_t chunk = 128;
  bool profile = false;
  bool list_shapes = false;
  std::string filter;
  int64_t runs = 5;
  bool all = false;
  std::string transport;  // empty: all
  std::vector<std::string> security;
};

// What an FFN rank is tested with.
struct ConformanceSettings {
  std::string rank;               // its address
  std::vector<std::string> only;  // names of cases, with *
  bool list = false;
  double patience_s = 10;
};

struct TraceSettings {
  std::string output = "trace.json", read;
  std::vector<std::string> url;  // of ranks that run
  std::string api_key;
  double seconds = 5;
  bool last = false;
  std::vector<std::string> ffn_addresses;
  int64_t sequences = 8, prompt_tokens = 64;
};

struct ConfigurationSettings {
  bool matrix = false, plugin = false;
};

struct Settings {
  std::string model;
  std::string config;
  bool json = false;
  EngineSettings engine;
  AfdSettings afd;
  ServingSettings serving;
  UpSettings up;
  GenerateSettings generate;
  EvalSettings eval;
  VllmSettings vllm;
  BenchSettings bench;
  LoadSettings load;
  MeasureSettings measure;
  ConformanceSettings conformance;
  SharingSettings sharing;
  TraceSettings trace;
  ConfigurationSettings configuration;
  // No setting: where a running process reads them again. Null without a file, which alone can change.
  std::shared_ptr<SettingsReload> reload;

  // Declares every option. The set points into *this.
  OptionSet declare();

  // Shared experts follow the gate unless said otherwise.
  bool shared_experts_on_attention() const;

  // Whether replicas are chosen by the experts that are asked for: as the settings say, or where no bit
  // depends on it.
  bool chooses_replicas_by_experts() const;

  // Of graph mode, ascending; none when eager. Refused: what is not an ascending list of 1..4096.
  Result<std::vector<uint32_t>> capture_sizes() const;

  // FFN ranks that the settings speak of: to start, to connect to, or to be one of. 0: colocated.
  int64_t ffn_ranks() const;
  // The same for attention ranks. At least 1.
  int64_t attention_ranks() const;
};

// Refuses what is not supported and what does not go together: one line with the key, the value and what
// would do. Which values go together is the table in cli/support.h; here stand only sums over numbers.
Result<void> validate(const Settings& settings);

}  // namespace tandem
