/* What tandem_client.h promises, asked from C99 against running FFN ranks of models/arith:
 *
 *     c_client_test CASE ADDRESS...
 *
 * test_c_client.py starts the ranks and reads what is printed. A broken promise ends the program with its line. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem_client.h>
#include <time.h>

#define CHECK(condition)                                                                                  \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, tandem_client_last_error()); \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)

enum { HIDDEN = 128, TOP_K = 4, NUM_EXPERTS = 16, VOCAB = 512, LAYER = 2, PATIENCE_MS = 60000 };

static tandem_client* open_client(char** addresses, size_t count, const tandem_client_options* options) {
  tandem_client* client = NULL;
  const tandem_client_status status =
      tandem_client_connect((const char* const*)addresses, count, options, &client);
  if (status == TANDEM_CLIENT_OK) return client;
  fprintf(stderr, "%s: %s\n", tandem_client_status_name(status), tandem_client_last_error());
  exit(3);
}

static tandem_client_description describe(const tandem_client* client) {
  tandem_client_description pool = TANDEM_CLIENT_DESCRIPTION_INIT;
  CHECK(tandem_client_describe(client, &pool) == TANDEM_CLIENT_OK);
  return pool;
}

/* Rows, routing and room for the answer; values follow from `seed` alone. */
typedef struct work {
  float *rows, *sums, *weights;
  int32_t *experts, *tokens;
  uint32_t count;
} work;

static work make_work(uint32_t count, uint32_t seed) {
  work made = {calloc((size_t)count * HIDDEN, sizeof(float)), calloc((size_t)count * HIDDEN, sizeof(float)),
               calloc((size_t)count * TOP_K, sizeof(float)), calloc((size_t)count * TOP_K, sizeof(int32_t)),
               calloc(count, sizeof(int32_t)), count};
  uint32_t state = seed * 2654435761u + 1;
  CHECK(made.rows && made.sums && made.weights && made.experts && made.tokens);
  for (size_t i = 0; i < (size_t)count * HIDDEN; ++i) {
    state = state * 1664525u + 1013904223u;
    made.rows[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
  for (size_t row = 0; row < count; ++row) {
    made.tokens[row] = (int32_t)(row % VOCAB);
    for (size_t k = 0; k < TOP_K; ++k) {
      made.experts[row * TOP_K + k] = (int32_t)((seed + row + 5 * k) % NUM_EXPERTS);
      made.weights[row * TOP_K + k] = 0.25f + 0.125f * (float)k;
    }
  }
  return made;
}

static void free_work(work done) {
  free(done.rows), free(done.sums), free(done.weights), free(done.experts), free(done.tokens);
}

static tandem_client_request request_of(const tandem_client* client, const work* rows) {
  tandem_client_request request = TANDEM_CLIENT_REQUEST_INIT;
  request.layer = LAYER;
  request.rows = rows->count;
  request.input = rows->rows;
  request.output = rows->sums;
  request.input_dtype = request.output_dtype = TANDEM_CLIENT_F32;
  request.token_ids = rows->tokens;
  if (describe(client).payload == TANDEM_CLIENT_PAYLOAD_EXPERTS) {
    request.expert_ids = rows->experts;
    request.expert_weights = rows->weights;
  }
  return request;
}

static void compute(tandem_client* client, work* rows) {
  const tandem_client_request request = request_of(client, rows);
  tandem_client_handle handle = 0;
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_wait(client, handle, PATIENCE_MS, NULL) == TANDEM_CLIENT_OK);
}

static void print_description(tandem_client* client) {
  const tandem_client_description d = describe(client);
  printf("fingerprint %016llx hidden %u layers %u vocab %u experts %u top_k %u intermediate %u shared %u\n",
         (unsigned long long)d.model_fingerprint, d.hidden_size, d.num_layers, d.vocab_size, d.num_experts, d.top_k,
         d.moe_intermediate_size, d.shared_intermediate_size);
  printf("moe_layers");
  for (size_t i = 0; i < d.num_moe_layers; ++i) printf(" %u", d.moe_layers[i]);
  printf("\npayload %d shared %d deterministic %d input %d scale %d scales %u block %u output %d ranks %u connector "
         "%s weights %s\n",
         d.payload, d.adds_shared_experts, d.deterministic, d.input_dtype, d.scale_dtype, d.scales_per_row,
         d.scale_block, d.output_dtype, d.num_ranks, d.connector, d.weights);
  for (uint32_t rank = 0; rank < d.num_ranks; ++rank) {
    tandem_client_rank state = {0};
    state.struct_size = sizeof state;
    CHECK(tandem_client_rank_status(client, rank, &state) == TANDEM_CLIENT_OK);
    CHECK(state.session != 0 && state.name[0] != 0 && (state.reason[0] == 0) == (state.up == 1));
    printf("rank %u up %d pieces %llu transport %s address %s\n", state.rank, state.up,
           (unsigned long long)state.num_pieces, state.transport, state.address);
  }
}

/* The sums of many rows, as their bits' hash: equal for pools that promise equal bits. */
static void print_sums(tandem_client* client) {
  work rows = make_work(300, 7);
  uint64_t hash = 0xcbf29ce484222325u;
  compute(client, &rows);
  for (size_t i = 0; i < (size_t)rows.count * HIDDEN; ++i) {
    uint32_t bits;
    memcpy(&bits, &rows.sums[i], sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  printf("sums %016llx\n", (unsigned long long)hash);
  free_work(rows);
}

/* Every dtype that the pool names gives what the library's own conversion gives. */
static void check_own_dtypes(tandem_client* client) {
  const tandem_client_description pool = describe(client);
  work rows = make_work(3, 11);
  const size_t values = (size_t)rows.count * HIDDEN;
  uint16_t rounded[3 * HIDDEN], raw[3 * HIDDEN];
  if (pool.input_dtype != TANDEM_CLIENT_BF16 || pool.output_dtype != TANDEM_CLIENT_BF16) return;
  for (size_t i = 0; i < values; ++i) { /* rows that bf16 holds exactly */
    uint32_t bits;
    memcpy(&bits, &rows.rows[i], 4);
    bits &= 0xffff0000u;
    memcpy(&rows.rows[i], &bits, 4);
    rounded[i] = (uint16_t)(bits >> 16);
  }
  compute(client, &rows);
  tandem_client_request request = request_of(client, &rows);
  tandem_client_handle handle = 0;
  request.input = rounded;
  request.input_dtype = TANDEM_CLIENT_DTYPE_DEFAULT;
  request.output = raw;
  request.output_dtype = TANDEM_CLIENT_BF16;
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_wait(client, handle, -1, NULL) == TANDEM_CLIENT_OK);
  for (size_t i = 0; i < values; ++i) {
    uint32_t bits;
    memcpy(&bits, &rows.sums[i], 4);
    CHECK(bits == (uint32_t)raw[i] << 16);
  }
  free_work(rows);
}

static void expect(tandem_client_status status, tandem_client_status wanted, const char* text) {
  if (status == wanted && strstr(tandem_client_last_error(), text)) return;
  fprintf(stderr, "got %s \"%s\", wanted %s with \"%s\"\n", tandem_client_status_name(status),
          tandem_client_last_error(), tandem_client_status_name(wanted), text);
  exit(1);
}

/* Each misuse is refused by name, and harms nothing. */
static void check_refusals(tandem_client* client) {
  work rows = make_work(2, 3);
  const tandem_client_request good = request_of(client, &rows);
  tandem_client_request bad;
  tandem_client_handle handle = 77;
  tandem_client_description pool = TANDEM_CLIENT_DESCRIPTION_INIT;
  tandem_client* none = NULL;
  const char* nowhere[] = {"tcp://127.0.0.1:1"};
  tandem_client_options options = TANDEM_CLIENT_OPTIONS_INIT;
  options.expect = "hidden_size";
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT, "\"hidden_size\"");
  options.expect = "hiden_size=4";
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT, "\"hiden_size\"");
  options.expect = NULL;
  options.peer_tls_key = "key.pem";
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT,
         "peer_tls_certificate is NULL");
  options.peer_key_file = "/no/such/key";
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT,
         "peer_key_file beside TLS");
  options.peer_tls_key = NULL;
  options.max_in_flight = 70000;
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_OUT_OF_RANGE, "max_in_flight 70000: at most");
  options.max_in_flight = 0;
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT, "/no/such/key");
  options.struct_size = 0;
  expect(tandem_client_connect(nowhere, 1, &options, &none), TANDEM_CLIENT_INVALID_ARGUMENT, "options: struct_size 0");
  expect(tandem_client_connect(nowhere, 0, NULL, &none), TANDEM_CLIENT_INVALID_ARGUMENT, "no address");
  expect(tandem_client_connect(nowhere, 1, NULL, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "client is NULL");
  nowhere[0] = "carrier://pigeon";
  expect(tandem_client_connect(nowhere, 1, NULL, &none), TANDEM_CLIENT_UNSUPPORTED, "carrier");
  CHECK(none == NULL);
#define REFUSED(change, status, text)                                                      \
  do {                                                                                     \
    bad = good;                                                                            \
    change;                                                                                \
    expect(tandem_client_submit(client, &bad, &handle), TANDEM_CLIENT_##status, text);     \
    CHECK(handle == 77);                                                                   \
  } while (0)
  REFUSED(bad.layer = 0, INVALID_ARGUMENT, "layer 0");
  REFUSED(bad.layer = 70000, OUT_OF_RANGE, "layer 70000");
  REFUSED(bad.lane = 70000, OUT_OF_RANGE, "lane 70000");
  REFUSED(bad.row_class = 3, INVALID_ARGUMENT, "row_class 3");
  REFUSED(bad.input = NULL, INVALID_ARGUMENT, "input");
  REFUSED(bad.output = NULL, INVALID_ARGUMENT, "output");
  REFUSED(bad.input_dtype = TANDEM_CLIENT_I8, UNSUPPORTED, "input_dtype i8");
  REFUSED(bad.input_dtype = 1000, UNSUPPORTED, "input_dtype 1000");
  REFUSED(bad.output_dtype = TANDEM_CLIENT_I8, UNSUPPORTED, "output_dtype i8");
  REFUSED(bad.input_stride = 100, INVALID_ARGUMENT, "input_stride 100");
  REFUSED(bad.scales = rows.weights; bad.input_dtype = 0, INVALID_ARGUMENT, "scale");
  REFUSED(bad.struct_size = 4, INVALID_ARGUMENT, "request: struct_size 4");
  if (describe(client).payload == TANDEM_CLIENT_PAYLOAD_EXPERTS) {
    REFUSED(bad.expert_ids = NULL, INVALID_ARGUMENT, "expert_ids");
    int32_t wrong[2 * TOP_K] = {NUM_EXPERTS};
    REFUSED(bad.expert_ids = wrong, INVALID_ARGUMENT, "expert id 16");
  } else {
    REFUSED(bad.expert_ids = rows.experts, INVALID_ARGUMENT, "gate of this pool is on FFN");
  }
  expect(tandem_client_submit(client, NULL, &handle), TANDEM_CLIENT_INVALID_ARGUMENT, "request is NULL");
  expect(tandem_client_submit(client, &good, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "handle is NULL");
  expect(tandem_client_wait(client, 12345, 0, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "handle 12345");
  expect(tandem_client_poll(client, 12345, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "handle 12345");
  expect(tandem_client_cancel(client, 12345), TANDEM_CLIENT_INVALID_ARGUMENT, "handle 12345");
  expect(tandem_client_describe(client, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "description is NULL");
  expect(tandem_client_describe(NULL, &pool), TANDEM_CLIENT_INVALID_ARGUMENT, "client is NULL");
  tandem_client_rank state = {0};
  state.struct_size = sizeof state;
  expect(tandem_client_rank_status(client, 99, &state), TANDEM_CLIENT_OUT_OF_RANGE, "rank 99");

  /* A struct of an older caller: what it does not know is not written. */
  struct {
    tandem_client_description known;
    char guard[8];
  } old = {TANDEM_CLIENT_DESCRIPTION_INIT, "guard"};
  old.known.struct_size = offsetof(tandem_client_description, hidden_size);
  old.known.hidden_size = 4711;
  CHECK(tandem_client_describe(client, &old.known) == TANDEM_CLIENT_OK);
  CHECK(old.known.hidden_size == 4711 && old.known.model_fingerprint != 0 && strcmp(old.guard, "guard") == 0);

  compute(client, &rows);
  free_work(rows);
}

/* Ends of requests other than an answer. */
static void check_ends(tandem_client* client) {
  work many = make_work(100000, 1), few = make_work(1, 2), nothing = make_work(1, 2);
  tandem_client_request request = request_of(client, &many);
  tandem_client_handle handle = 0, other = 0;
  tandem_client_times times = TANDEM_CLIENT_TIMES_INIT;
  request.timeout_ms = 1; /* 1563 tiles through 8 slots take longer on any machine */
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  expect(tandem_client_wait(client, handle, PATIENCE_MS, NULL), TANDEM_CLIENT_DEADLINE_EXCEEDED, "layer 2");
  expect(tandem_client_wait(client, handle, PATIENCE_MS, NULL), TANDEM_CLIENT_INVALID_ARGUMENT, "no open request");

  request.timeout_ms = 0;
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  expect(tandem_client_poll(client, handle, NULL), TANDEM_CLIENT_WOULD_BLOCK, "runs on");
  expect(tandem_client_wait(client, handle, 0, NULL), TANDEM_CLIENT_WOULD_BLOCK, "runs on");
  CHECK(tandem_client_cancel(client, handle) == TANDEM_CLIENT_OK);
  memset(many.sums, 0x55, (size_t)many.count * HIDDEN * sizeof *many.sums);
  expect(tandem_client_cancel(client, handle), TANDEM_CLIENT_INVALID_ARGUMENT, "no open request");

  request = request_of(client, &nothing);
  request.rows = 0;
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_wait(client, handle, PATIENCE_MS, NULL) == TANDEM_CLIENT_OK);

  request = request_of(client, &few);
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_submit(client, &request, &other) == TANDEM_CLIENT_OK && other != handle);
  CHECK(tandem_client_wait(client, other, PATIENCE_MS, &times) == TANDEM_CLIENT_OK);
  CHECK(times.residence_us >= times.compute_us);
  tandem_client_status status;
  while ((status = tandem_client_poll(client, handle, NULL)) == TANDEM_CLIENT_WOULD_BLOCK) {
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
  CHECK(status == TANDEM_CLIENT_OK);
  for (size_t i = 0; i < (size_t)many.count * HIDDEN; ++i) { /* nobody wrote behind the cancel */
    uint32_t bits;
    memcpy(&bits, &many.sums[i], 4);
    CHECK(bits == 0x55555555u);
  }
  free_work(many), free_work(few), free_work(nothing);
}

typedef struct worker {
  tandem_client* client;
  uint32_t seed;
  float* expected; /* [ROWS, HIDDEN] */
} worker;

enum { THREADS = 4, REQUESTS = 60, ROWS = 70 };

static void* submit_many(void* argument) {
  const worker* mine = argument;
  for (int i = 0; i < REQUESTS; ++i) {
    work rows = make_work(ROWS, mine->seed);
    compute(mine->client, &rows);
    CHECK(memcmp(rows.sums, mine->expected, sizeof(float) * ROWS * HIDDEN) == 0);
    free_work(rows);
  }
  return NULL;
}

/* Threads that submit and wait at once get their own rows, with the bits of a thread alone. */
static void check_threads(tandem_client* client) {
  worker workers[THREADS];
  work alone[THREADS];
  pthread_t threads[THREADS];
  for (uint32_t i = 0; i < THREADS; ++i) {
    alone[i] = make_work(ROWS, i + 20);
    compute(client, &alone[i]);
    workers[i] = (worker){client, i + 20, alone[i].sums};
    CHECK(i == 0 || memcmp(alone[i].sums, alone[0].sums, sizeof(float) * ROWS * HIDDEN) != 0);
  }
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, submit_many, &workers[i]) == 0);
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < THREADS; ++i) free_work(alone[i]);
}

static void* cancel_later(void* argument) {
  const worker* other = argument;
  const struct timespec pause = {0, 5000000};
  nanosleep(&pause, NULL);
  (void)tandem_client_cancel(other->client, other->seed);
  return NULL;
}

/* A thread that waits without limit is told when another cancels its request; which of the two comes first is
 * up to the machine, so that some tries may pass by each other. */
static void check_cancel_elsewhere(tandem_client* client) {
  enum { TRIES = 50 };
  work rows = make_work(100000, 1);
  const tandem_client_request request = request_of(client, &rows);
  tandem_client_status status = TANDEM_CLIENT_OK;
  for (int i = 0; i < TRIES && status != TANDEM_CLIENT_CANCELLED; ++i) {
    tandem_client_handle handle = 0;
    pthread_t thread;
    CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
    worker canceller = {client, (uint32_t)handle, NULL};
    CHECK(pthread_create(&thread, NULL, cancel_later, &canceller) == 0);
    status = tandem_client_wait(client, handle, -1, NULL);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  expect(status, TANDEM_CLIENT_CANCELLED, "was cancelled");
  free_work(rows);
}

/* A rank dies while it has a request of ours, and comes back. Talks with the test line by line. */
static void survive_a_loss(tandem_client* client, uint32_t rank) {
  char line[64];
  work rows = make_work(64, 5);
  const tandem_client_request request = request_of(client, &rows);
  tandem_client_handle handle = 0;
  tandem_client_rank state = {0};
  state.struct_size = sizeof state;
  compute(client, &rows);
  printf("ready\n");
  CHECK(fgets(line, sizeof line, stdin)); /* the rank is stopped */
  CHECK(tandem_client_submit(client, &request, &handle) == TANDEM_CLIENT_OK);
  printf("submitted\n");
  const tandem_client_status status = tandem_client_wait(client, handle, -1, NULL); /* the rank is killed */
  printf("%s: %s\n", tandem_client_status_name(status), tandem_client_last_error());
  CHECK(tandem_client_rank_status(client, rank, &state) == TANDEM_CLIENT_OK);
  printf("rank %u up %d: %s\n", state.rank, state.up, state.reason);
  printf("%s\n", tandem_client_status_name(tandem_client_submit(client, &request, &handle)));
  CHECK(fgets(line, sizeof line, stdin)); /* the rank is started again */
  while (!state.up) {
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
    CHECK(tandem_client_rank_status(client, rank, &state) == TANDEM_CLIENT_OK);
  }
  compute(client, &rows);
  printf("back\n");
  free_work(rows);
}

/* A rank that comes back with other settings is not used, and is told nothing that would end it. */
static void refuse_a_change(tandem_client* client) {
  char line[64];
  tandem_client_rank state = {0};
  state.struct_size = sizeof state;
  printf("ready\n");
  CHECK(fgets(line, sizeof line, stdin)); /* the rank was started again, otherwise */
  do {
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
    CHECK(tandem_client_rank_status(client, 0, &state) == TANDEM_CLIENT_OK);
  } while (!strstr(state.reason, "deterministic"));
  printf("%s\n", state.reason);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char* what = argv[1];
  char** addresses = argv + 2;
  const size_t count = (size_t)argc - 2;
  CHECK(strcmp(tandem_client_last_error(), "") == 0);
  tandem_client_options options = TANDEM_CLIENT_OPTIONS_INIT;
  options.connect_timeout_ms = 60000;
  if (getenv("CONNECT_TIMEOUT_MS")) options.connect_timeout_ms = (uint32_t)atoi(getenv("CONNECT_TIMEOUT_MS"));
  options.expect = getenv("EXPECT");
  options.peer_key_file = getenv("PEER_KEY_FILE");
  options.peer_tls_certificate = getenv("PEER_TLS_CERTIFICATE");
  options.peer_tls_key = getenv("PEER_TLS_KEY");
  options.peer_tls_ca = getenv("PEER_TLS_CA");
  if (strcmp(what, "quota") == 0) options.max_in_flight = 2;
  tandem_client* client = open_client(addresses, count, &options);
  if (strcmp(what, "describe") == 0) {
    print_description(client);
  } else if (strcmp(what, "sums") == 0) {
    print_sums(client);
    check_own_dtypes(client);
  } else if (strcmp(what, "refusals") == 0) {
    check_refusals(client);
  } else if (strcmp(what, "ends") == 0) {
    check_ends(client);
  } else if (strcmp(what, "threads") == 0) {
    check_threads(client);
  } else if (strcmp(what, "cancel_elsewhere") == 0) {
    check_cancel_elsewhere(client);
  } else if (strcmp(what, "loss") == 0) {
    survive_a_loss(client, (uint32_t)count - 1);
  } else if (strcmp(what, "change") == 0) {
    refuse_a_change(client);
  } else if (strcmp(what, "quota") == 0) {
    work rows = make_work(1, 1);
    const tandem_client_request request = request_of(client, &rows);
    tandem_client_handle handles[3] = {0, 0, 0};
    CHECK(tandem_client_submit(client, &request, &handles[0]) == TANDEM_CLIENT_OK);
    CHECK(tandem_client_submit(client, &request, &handles[1]) == TANDEM_CLIENT_OK);
    expect(tandem_client_submit(client, &request, &handles[2]), TANDEM_CLIENT_WOULD_BLOCK, "max_in_flight");
    CHECK(tandem_client_wait(client, handles[0], -1, NULL) == TANDEM_CLIENT_OK);
    CHECK(tandem_client_submit(client, &request, &handles[2]) == TANDEM_CLIENT_OK);
    /* The others are open when the client is closed. */
    tandem_client_close(client);
    free_work(rows);
    printf("ok\n");
    return 0;
  } else {
    return 2;
  }
  tandem_client_close(client);
  tandem_client_close(NULL);
  printf("ok\n");
  return 0;
}
