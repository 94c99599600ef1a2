/* tandem_client: asks FFN ranks of Tandem for the mixture-of-experts part of a model's layers, from any
 * program that computes the attention part itself. C99; no C++ type and no exception crosses this border.
 *
 * A client has one connection to each FFN rank of a deployment, over tcp, shm or ucx, and speaks the protocol
 * of docs/protocol.md as an attention rank does. It needs no file of the model: sizes, dtypes and where the
 * gate is are learned from the ranks (tandem_client_describe). What the pool takes and gives for a layer:
 *
 *   input    [rows, hidden_size]  the normalised rows that enter the layer's experts
 *   routing  nothing, token ids, or expert ids with weights [rows, top_k]: as `payload` of the description says
 *   output   [rows, hidden_size]  the sum of the row's experts, to be added to the residual stream; shared
 *                                 experts are in it when `adds_shared_experts` is 1
 *
 * Threads. Every function may be called by any thread, several at a time, but for tandem_client_close: it
 * must be the last call for its client. The library has threads of its own for connections (one for each
 * rank); they keep the connections alive whatever the caller does, take no signals and call nothing of the
 * caller's. No function but connect, wait and close blocks.
 *
 * Ownership. The caller owns all memory that it passes. Strings and structs are copied during the call. What a
 * request points to (input, scales, ids, weights) must stay as it is, and the output untouched, until the
 * request has ended: wait or poll said something other than TANDEM_CLIENT_WOULD_BLOCK, or cancel or close
 * returned. Strings and arrays inside a description are the client's and live until close.
 *
 * Errors. Functions return a status; on anything but TANDEM_CLIENT_OK, tandem_client_last_error() has one
 * line for this thread that names the thing, the value and the remedy. A request that fails gives its status
 * and text to whoever waits for it; it names the rank that failed. A lost rank is connected again in the
 * background: until then requests that need it end with TANDEM_CLIENT_UNAVAILABLE, at once. Nothing is sent twice.
 *
 * Structs begin with `struct_size`, the sizeof that the caller was compiled with, set by the ..._INIT macros:
 * later releases append members and leave these alone; a member that the caller does not know has the value 0.
 * Memory is little-endian, as on all machines that Tandem runs on. Times are in milliseconds where not said otherwise. */
#ifndef TANDEM_CLIENT_H
#define TANDEM_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TANDEM_CLIENT_API __attribute__((visibility("default")))
#else
#define TANDEM_CLIENT_API
#endif

/* Of this header. A library with the same major serves it (its soname has the major). */
#define TANDEM_CLIENT_VERSION_MAJOR 1
#define TANDEM_CLIENT_VERSION_MINOR 1

/* Status of a call. 1 to 9 are the codes of docs/protocol.md, section 7. */
typedef enum tandem_client_status {
  TANDEM_CLIENT_OK = 0,
  TANDEM_CLIENT_INVALID_ARGUMENT = 1,   /* what was passed is wrong, or differs from the pool */
  TANDEM_CLIENT_OUT_OF_RANGE = 2,       /* an id or a size outside its limits */
  TANDEM_CLIENT_UNSUPPORTED = 3,        /* understood, and refused by name */
  TANDEM_CLIENT_RESOURCE_EXHAUSTED = 4, /* memory, descriptors, the quota of a rank */
  TANDEM_CLIENT_UNAVAILABLE = 5,        /* a rank that is down and may come back */
  TANDEM_CLIENT_DEADLINE_EXCEEDED = 6,  /* connect_timeout or the request's own timeout is over */
  TANDEM_CLIENT_CANCELLED = 7,          /* by tandem_client_cancel, in another thread */
  TANDEM_CLIENT_DATA_LOSS = 8,          /* what a peer sent is not the protocol */
  TANDEM_CLIENT_INTERNAL = 9,           /* a defect of the library */
  TANDEM_CLIENT_WOULD_BLOCK = 100       /* not yet: the request runs on, or no request can be taken now */
} tandem_client_status;

/* Element types, numbered as on the wire. */
typedef enum tandem_client_dtype {
  TANDEM_CLIENT_DTYPE_DEFAULT = 0, /* what the description says */
  TANDEM_CLIENT_F32 = 1,
  TANDEM_CLIENT_BF16 = 2,
  TANDEM_CLIENT_F64 = 4,
  TANDEM_CLIENT_F8_E4M3 = 5,
  TANDEM_CLIENT_F8_E8M0 = 7,
  TANDEM_CLIENT_I8 = 8
} tandem_client_dtype;

/* In which numbers rows travel: `activation_dtype` of docs/protocol.md. A value is its number times its scale. */
typedef enum tandem_client_row_format {
  TANDEM_CLIENT_ROWS_BF16 = 1,  /* no scales */
  TANDEM_CLIENT_ROWS_F32 = 2,   /* no scales */
  TANDEM_CLIENT_ROWS_FP8 = 3,   /* F8_E4M3, an F32 scale for each 128 values of a row, a power of two */
  TANDEM_CLIENT_ROWS_MXFP8 = 4, /* F8_E4M3, an F8_E8M0 scale for each 32 values of a row */
  TANDEM_CLIENT_ROWS_INT8 = 5   /* I8, an F32 scale for the row */
} tandem_client_row_format;

/* Which routing a request carries: the same one for the whole life of a pool. */
typedef enum tandem_client_payload {
  TANDEM_CLIENT_PAYLOAD_NONE = 0,      /* the gate is on FFN */
  TANDEM_CLIENT_PAYLOAD_TOKEN_IDS = 1, /* the gate is on FFN and wants token ids */
  TANDEM_CLIENT_PAYLOAD_EXPERTS = 2    /* the gate is here: expert ids and weights */
} tandem_client_payload;

/* Ranks compute decode before draft before prefill. */
typedef enum tandem_client_row_class {
  TANDEM_CLIENT_DECODE = 0,
  TANDEM_CLIENT_DRAFT = 1,
  TANDEM_CLIENT_PREFILL = 2
} tandem_client_row_class;

/* Lines of the library on standard error. */
typedef enum tandem_client_log {
  TANDEM_CLIENT_LOG_ERRORS = 0, /* nearly nothing: errors are returned */
  TANDEM_CLIENT_LOG_WARNINGS = 1, /* ranks that are lost, and why */
  TANDEM_CLIENT_LOG_INFO = 2    /* ranks that come and go */
} tandem_client_log;

typedef struct tandem_client tandem_client;

typedef struct tandem_client_options {
  size_t struct_size;
  /* Settings of the handshake that must have these values, one "key=value" a line, such as
   * "model_fingerprint=0123456789abcdef\nhidden_size=128". NULL: whatever the pool has. The keys are in
   * docs/protocol.md, section 4. A difference is TANDEM_CLIENT_INVALID_ARGUMENT and names the key. */
  const char* expect;
  /* How long connect tries: ranks may still load their weights. 0: 10000. */
  uint32_t connect_timeout_ms;
  /* Requests that have been submitted and not been waited for, at most 65536. 0: 256. */
  uint32_t max_in_flight;
  /* A request without a timeout of its own fails when a living rank answered nothing at all for so long.
   * 0: 60000. */
  uint32_t reply_timeout_ms;
  /* Spreads the clients of one pool over its ranks and appears in their logs; need not differ. */
  uint32_t client_number;
  /* tandem_client_log; the latest client's counts for the process. */
  int32_t log_level;
  /* How both sides know each other over tcp and ucx: a file with the pool's key (at least 32 bytes, for its owner
   * alone), or over tcp three PEM files for TLS 1.3: a certificate, its private key, and the CA that signed the
   * ranks' certificates. NULL: not at all. A pool that asks for the one refuses who comes with nothing or the
   * other. */
  const char* peer_key_file;
  const char* peer_tls_certificate;
  const char* peer_tls_key;
  const char* peer_tls_ca;
} tandem_client_options;
#define TANDEM_CLIENT_OPTIONS_INIT {sizeof(tandem_client_options), NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL}

/* What a pool is. Sizes are numbers of values. */
typedef struct tandem_client_description {
  size_t struct_size;
  uint64_t model_fingerprint;
  uint32_t hidden_size;
  uint32_t num_layers;       /* of the model; drafting layers come behind them */
  uint32_t num_draft_layers;
  uint32_t vocab_size;
  uint32_t num_experts;      /* routed ones, of a layer */
  uint32_t top_k;            /* of a row */
  uint32_t moe_intermediate_size;
  uint32_t shared_intermediate_size; /* 0: the model has no shared experts */
  const uint16_t* moe_layers; /* [num_moe_layers], ascending: the layers that have experts */
  size_t num_moe_layers;
  int32_t payload;            /* tandem_client_payload */
  int32_t adds_shared_experts; /* 1: FFN ranks add them; 0: the caller does, or there are none */
  int32_t deterministic;      /* 1: equal rows give equal bits in every placement; outputs are F64 */
  int32_t input_dtype;        /* of the values of a row: BF16, F32, F8_E4M3 or I8 */
  int32_t scale_dtype;        /* of the scales: F32 or F8_E8M0; 0: rows have no scales */
  uint32_t scales_per_row;
  uint32_t scale_block;       /* consecutive values that share a scale; hidden_size: the whole row; 0: no scales */
  int32_t output_dtype;       /* BF16, F32 or F64 */
  uint32_t num_ranks;
  const char* connector;      /* "p2p", "m2n" or "auto" */
  const char* weights;        /* "as stored", "dequantized" or the format that the experts were quantised to */
  int32_t row_format;         /* tandem_client_row_format: input_dtype, scale_dtype, scale_block in one. Since 1.1 */
} tandem_client_description;
#define TANDEM_CLIENT_DESCRIPTION_INIT \
  {sizeof(tandem_client_description), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0}

/* One rank, now. */
typedef struct tandem_client_rank {
  size_t struct_size;
  uint32_t rank;
  int32_t up;             /* 1: takes requests */
  uint64_t session;       /* number that the rank gave the latest connection */
  uint64_t num_pieces;    /* (layer, expert, slice) that it holds */
  char transport[16];     /* "tcp", "shm", "ucx" */
  char address[256];
  char name[256];         /* "host:pid", as of the latest connection */
  char reason[1024];      /* why it is not up; empty when it is */
} tandem_client_rank;

/* Rows for the experts of one layer. */
typedef struct tandem_client_request {
  size_t struct_size;
  uint32_t layer;      /* index in the model, one of moe_layers */
  uint32_t rows;       /* 0 ends at once */
  const void* input;   /* [rows, hidden_size] of input_dtype */
  /* DEFAULT or the description's input_dtype: rows as they are sent. Or F32 or BF16: the library puts them into the
   * description's row_format, as tandem_client_quantize_rows does, and makes the scales. */
  int32_t input_dtype;
  int32_t output_dtype; /* DEFAULT, the description's, or F32: the library converts */
  size_t input_stride;  /* values from row to row; 0: hidden_size */
  const void* scales;   /* [rows, scales_per_row] of scale_dtype; NULL when rows have none or the library makes them */
  const int32_t* expert_ids;   /* [rows, top_k], in [0, num_experts); PAYLOAD_EXPERTS only, else NULL */
  const float* expert_weights; /* [rows, top_k], renormalised and scaled: final; finite, not all 0 in a row */
  const int32_t* token_ids;    /* [rows], in [0, vocab_size); unread but for PAYLOAD_TOKEN_IDS */
  void* output;                /* [rows, hidden_size] of output_dtype, without gaps */
  /* Of the caller, for logs and traces of the ranks: any numbers. */
  uint32_t step;
  uint32_t lane;       /* below 65536 */
  int32_t row_class;   /* tandem_client_row_class */
  uint32_t timeout_ms; /* ends with DEADLINE_EXCEEDED after it; 0: reply_timeout_ms of the options alone */
} tandem_client_request;
#define TANDEM_CLIENT_REQUEST_INIT \
  {sizeof(tandem_client_request), 0, 0, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0}

/* Microseconds in the FFN ranks, of the slowest part: waiting, computing, waiting for other ranks, and from
 * arrival to reply. */
typedef struct tandem_client_times {
  size_t struct_size;
  uint32_t queue_us, compute_us, exchange_us, residence_us;
} tandem_client_times;
#define TANDEM_CLIENT_TIMES_INIT {sizeof(tandem_client_times), 0, 0, 0, 0}

/* Names a submitted request; never 0. Spent once wait or poll said how it ended, or it was cancelled. */
typedef uint64_t tandem_client_handle;

/* Connects to the FFN ranks at addresses[0], addresses[1], ... in order of rank: "tcp://host:port",
 * "shm:///path", "ucx://host:port", or host:port. Their number must be that of the pool. Blocks until all have
 * shaken hands; a rank that cannot be reached is tried again until connect_timeout_ms is over
 * (TANDEM_CLIENT_DEADLINE_EXCEEDED, naming it and the reason). `options` may be NULL. *client is set on OK
 * alone. */
TANDEM_CLIENT_API tandem_client_status tandem_client_connect(const char* const* addresses, size_t num_addresses,
                                                             const tandem_client_options* options,
                                                             tandem_client** client);

/* Ends all requests and connections. NULL is allowed. */
TANDEM_CLIENT_API void tandem_client_close(tandem_client* client);

TANDEM_CLIENT_API tandem_client_status tandem_client_describe(const tandem_client* client,
                                                              tandem_client_description* description);

/* `rank` is below num_ranks; TANDEM_CLIENT_OUT_OF_RANGE otherwise. */
TANDEM_CLIENT_API tandem_client_status tandem_client_rank_status(const tandem_client* client, uint32_t rank,
                                                                 tandem_client_rank* status);

/* Sends a request. Does not block; what finds no credit leaves as answers come back. WOULD_BLOCK: max_in_flight
 * requests are open. UNAVAILABLE: a rank that it needs is down. *handle is set on OK alone. */
TANDEM_CLIENT_API tandem_client_status tandem_client_submit(tandem_client* client,
                                                            const tandem_client_request* request,
                                                            tandem_client_handle* handle);

/* Waits until the request has ended, for at most timeout_ms (negative: without limit; WOULD_BLOCK when it is
 * over, and the request runs on). OK: the output is there. Anything else is how the request failed. `times` may
 * be NULL. A handle is waited for by one thread. */
TANDEM_CLIENT_API tandem_client_status tandem_client_wait(tandem_client* client, tandem_client_handle handle,
                                                          int32_t timeout_ms, tandem_client_times* times);

/* The same without waiting. */
TANDEM_CLIENT_API tandem_client_status tandem_client_poll(tandem_client* client, tandem_client_handle handle,
                                                          tandem_client_times* times);

/* Afterwards nobody writes the request's output, and the handle is spent. A thread that waits for it gets
 * TANDEM_CLIENT_CANCELLED. */
TANDEM_CLIENT_API tandem_client_status tandem_client_cancel(tandem_client* client, tandem_client_handle handle);

/* Rows of F32 or BF16 in a format, with the bits that Tandem's own attention ranks send: `input` and `scales` for
 * requests that have the same rows, to several pools or several times. Needs no client; any thread. Since 1.1.
 *
 *   input   [rows, cols] of input_dtype, F32 or BF16; input_stride values from row to row, 0: cols
 *   values  [rows, cols] of the format's dtype, without gaps
 *   scales  [rows, scales of a row], without gaps. FP8: ceil(cols / 128) F32; MXFP8: ceil(cols / 32) F8_E8M0; INT8:
 *           one F32. NULL for BF16 and F32
 *
 * Everything is rounded to nearest even. FP8, MXFP8: the scale is the smallest power of two s with |x| <= 448 s for its
 * values, at least 2^-22. INT8: m is the row's largest magnitude, at least 1e-4; the scale is m / 127 and a value
 * x * (127 / m), in float32, so that -128 does not occur. Infinity or NaN makes the scale NaN that it shares, and its
 * values come back from the experts as NaN. BF16 to F32 is exact.
 *
 * TANDEM_CLIENT_UNSUPPORTED: another format or input_dtype. TANDEM_CLIENT_INVALID_ARGUMENT: a pointer that is missing,
 * scales without use, an input_stride below cols. */
TANDEM_CLIENT_API tandem_client_status tandem_client_quantize_rows(int32_t format, int32_t input_dtype,
                                                                   const void* input, size_t input_stride,
                                                                   uint32_t rows, uint32_t cols, void* values,
                                                                   void* scales);

/* Text of the calling thread's latest call that did not return TANDEM_CLIENT_OK; valid until its next call.
 * Never NULL; empty before the first. */
TANDEM_CLIENT_API const char* tandem_client_last_error(void);

/* "UNAVAILABLE", ... */
TANDEM_CLIENT_API const char* tandem_client_status_name(tandem_client_status status);

/* Of the library: "1.1". */
TANDEM_CLIENT_API const char* tandem_client_version(void);

#ifdef __cplusplus
}
#endif

#endif
