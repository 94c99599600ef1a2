/* One layer of experts, asked for over the network:
 *
 *     layer tcp://127.0.0.1:7000 [ADDRESS...]
 *
 * Sends four rows to the first layer with experts and prints how much each row was changed. The rows are made up;
 * an attention program would send what comes out of its attention. */
#include <stdio.h>
#include <stdlib.h>
#include <tandem_client.h>

enum { kRows = 4, kWaitMs = 5000 };

static void check(tandem_client_status status, const char* what) {
  if (status == TANDEM_CLIENT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, tandem_client_status_name(status), tandem_client_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  tandem_client* client = NULL;
  if (argc < 2) {
    fprintf(stderr, "usage: layer ADDRESS [ADDRESS...]   (of all FFN ranks, in order of rank)\n");
    return 2;
  }
  check(tandem_client_connect((const char* const*)argv + 1, (size_t)argc - 1, NULL, &client), "connect");

  tandem_client_description pool = TANDEM_CLIENT_DESCRIPTION_INIT;
  check(tandem_client_describe(client, &pool), "describe");
  printf("%zu layers with %u experts, %u a row; hidden size %u; %u FFN ranks\n", pool.num_moe_layers,
         pool.num_experts, pool.top_k, pool.hidden_size, pool.num_ranks);

  float* rows = calloc((size_t)kRows * pool.hidden_size, sizeof *rows);
  float* sums = calloc((size_t)kRows * pool.hidden_size, sizeof *sums);
  int32_t* experts = calloc((size_t)kRows * pool.top_k, sizeof *experts);
  float* weights = calloc((size_t)kRows * pool.top_k, sizeof *weights);
  int32_t tokens[kRows] = {0, 1, 2, 3};
  if (!rows || !sums || !experts || !weights) return 1;
  for (size_t i = 0; i < (size_t)kRows * pool.hidden_size; ++i) rows[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
  for (size_t i = 0; i < (size_t)kRows * pool.top_k; ++i) {
    experts[i] = (int32_t)(i % pool.num_experts);
    weights[i] = 1.0f / (float)pool.top_k;
  }

  tandem_client_request request = TANDEM_CLIENT_REQUEST_INIT;
  request.layer = pool.moe_layers[0];
  request.rows = kRows;
  request.input = rows;
  request.output = sums;
  request.input_dtype = request.output_dtype = TANDEM_CLIENT_F32; /* the library converts */
  request.token_ids = tokens;                                     /* read where the pool wants them */
  if (pool.payload == TANDEM_CLIENT_PAYLOAD_EXPERTS) {            /* the gate is on our side */
    request.expert_ids = experts;
    request.expert_weights = weights;
  }
  tandem_client_handle handle;
  tandem_client_times times = TANDEM_CLIENT_TIMES_INIT;
  check(tandem_client_submit(client, &request, &handle), "submit");
  check(tandem_client_wait(client, handle, kWaitMs, &times), "wait");

  for (size_t row = 0; row < kRows; ++row) {
    double squares = 0;
    for (size_t i = 0; i < pool.hidden_size; ++i) {
      squares += (double)sums[row * pool.hidden_size + i] * sums[row * pool.hidden_size + i];
    }
    printf("row %zu: mean square of the experts' sum %.6f\n", row, squares / pool.hidden_size);
  }
  printf("%u us in the rank, %u us of them computing\n", times.residence_us, times.compute_us);
  tandem_client_close(client);
  free(rows), free(sums), free(experts), free(weights);
  return 0;
}
