/* Continues a prompt with models/arith: attention in this program, experts in a pool of FFN ranks.
 *
 *     generate MODEL_FOLDER MAX_TOKENS ADDRESS[,ADDRESS...] TOKEN...
 *
 * TOKEN...: the prompt as token ids. Prints the ids that follow, greedily, up to the end of the answer. Each layer
 * sends the rows of all new tokens in one request and adds what comes back to them: nothing else of a layer's
 * experts is in this program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem_client.h>

#include "attention.h"

enum { MAX_RANKS = 64, WAIT_MS = 30000 };

static void check(tandem_client_status status, const char* what) {
  if (status == TANDEM_CLIENT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, tandem_client_status_name(status), tandem_client_last_error());
  exit(1);
}

static tandem_client* connect_pool(char* addresses) {
  const char* ranks[MAX_RANKS];
  size_t count = 0;
  tandem_client* client = NULL;
  for (char* word = strtok(addresses, ","); word && count < MAX_RANKS; word = strtok(NULL, ",")) {
    ranks[count++] = word;
  }
  check(tandem_client_connect(ranks, count, NULL, &client), "connect");
  tandem_client_description pool = TANDEM_CLIENT_DESCRIPTION_INIT;
  check(tandem_client_describe(client, &pool), "describe");
  if (pool.hidden_size != HIDDEN || pool.num_layers != LAYERS || pool.vocab_size != VOCAB ||
      pool.num_moe_layers != LAYERS - DENSE_LAYERS || pool.moe_layers[0] != DENSE_LAYERS) {
    fprintf(stderr, "this pool serves another model than models/arith\n");
    exit(1);
  }
  if (pool.payload == TANDEM_CLIENT_PAYLOAD_EXPERTS || !pool.adds_shared_experts) {
    fprintf(stderr, "this program leaves gate and shared experts to the pool: start its ranks without "
                    "--compute-gate-on-attention and --compute-shared-experts-on-attention\n");
    exit(1);
  }
  return client;
}

/* rows += the experts' sums of normed: [count, HIDDEN]. */
static void add_experts(tandem_client* client, int layer, int step, const int32_t* tokens, int count,
                        const float* normed, float* sums, float* rows) {
  tandem_client_request request = TANDEM_CLIENT_REQUEST_INIT;
  tandem_client_handle handle;
  request.layer = (uint32_t)layer;
  request.step = (uint32_t)step;
  request.rows = (uint32_t)count;
  request.row_class = count > 1 ? TANDEM_CLIENT_PREFILL : TANDEM_CLIENT_DECODE;
  request.input = normed;
  request.output = sums;
  request.input_dtype = request.output_dtype = TANDEM_CLIENT_F32;
  request.token_ids = tokens;
  check(tandem_client_submit(client, &request, &handle), "submit");
  check(tandem_client_wait(client, handle, WAIT_MS, NULL), "wait");
  for (int i = 0; i < count * HIDDEN; ++i) rows[i] += sums[i];
}

/* One step: tokens at positions [first, first + count); the token that follows the last one. */
static int step(attention* model, tandem_client* client, const int32_t* tokens, int first, int count) {
  const size_t values = (size_t)count * HIDDEN;
  float* rows = malloc(values * sizeof *rows);
  float* normed = malloc(values * sizeof *normed);
  float* sums = malloc(values * sizeof *sums);
  if (!rows || !normed || !sums) exit(1);
  for (int i = 0; i < count; ++i) attention_embed(model, tokens[i], rows + i * HIDDEN);
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int i = 0; i < count; ++i) {
      attention_apply(model, layer, first + i, rows + i * HIDDEN);
      attention_norm(model, layer, rows + i * HIDDEN, normed + i * HIDDEN);
      if (layer < DENSE_LAYERS) attention_dense(model, layer, normed + i * HIDDEN, rows + i * HIDDEN);
    }
    if (layer >= DENSE_LAYERS) add_experts(client, layer, first, tokens, count, normed, sums, rows);
  }
  const int next = attention_next(model, rows + (count - 1) * HIDDEN);
  free(rows), free(normed), free(sums);
  return next;
}

int main(int argc, char** argv) {
  int32_t tokens[MAX_POSITIONS];
  const int prompt = argc - 4;
  if (prompt < 1 || prompt >= MAX_POSITIONS) {
    fprintf(stderr, "usage: generate MODEL_FOLDER MAX_TOKENS ADDRESS[,ADDRESS...] TOKEN...\n");
    return 2;
  }
  for (int i = 0; i < prompt; ++i) {
    tokens[i] = (int32_t)atoi(argv[4 + i]);
    if (tokens[i] < 0 || tokens[i] >= VOCAB) {
      fprintf(stderr, "token %s: ids are from 0 to %d\n", argv[4 + i], VOCAB - 1);
      return 2;
    }
  }
  attention* model = attention_open(argv[1]);
  tandem_client* client = connect_pool(argv[3]);
  const int most = atoi(argv[2]);
  int known = 0, all = prompt;
  for (int made = 0; made < most && all < MAX_POSITIONS; ++made) {
    const int next = step(model, client, tokens + known, known, all - known);
    known = all;
    if (next == EOS) break;
    tokens[all++] = next;
    printf(made == 0 ? "%d" : " %d", next);
    fflush(stdout);
  }
  printf("\n");
  tandem_client_close(client);
  attention_close(model);
  return 0;
}
