/* Rows that this program quantises, sent to a pool as they are: what tandem_client_quantize_rows promises.
 *
 *     c_quantize_test FOLDER ADDRESS
 *
 * FOLDER has rows (float32 [ROWS, hidden]), experts (int32 [ROWS, top_k]) and weights (float32 [ROWS, top_k]);
 * test_quantize.py compares values, scales and sums, which are written beside them, with what Python gets. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem_client.h>

#define CHECK(condition)                                                                                  \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, tandem_client_last_error()); \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)

enum { ROWS = 150, LAYER = 2, PATIENCE_MS = 60000, STRIDE = 200 };

static void transfer(const char* folder, const char* name, void* data, size_t bytes, int writes) {
  char path[4096];
  CHECK(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
  FILE* file = fopen(path, writes ? "wb" : "rb");
  CHECK(file);
  CHECK((writes ? fwrite(data, 1, bytes, file) : fread(data, 1, bytes, file)) == bytes);
  CHECK(fclose(file) == 0);
}

static void* memory(size_t bytes) {
  void* made = calloc(bytes + 1, 1);
  CHECK(made);
  return made;
}

static size_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case TANDEM_CLIENT_F64: return 8;
    case TANDEM_CLIENT_F32: return 4;
    case TANDEM_CLIENT_BF16: return 2;
    case 0: return 0;
    default: return 1;
  }
}

static void refused(tandem_client_status got, tandem_client_status wanted, const char* text) {
  if (got == wanted && strstr(tandem_client_last_error(), text)) return;
  fprintf(stderr, "got %s \"%s\", wanted %s with \"%s\"\n", tandem_client_status_name(got),
          tandem_client_last_error(), tandem_client_status_name(wanted), text);
  exit(1);
}

static void check_refusals(const float* rows, const tandem_client_description* pool, unsigned char* values, void* scales) {
  const uint32_t cols = pool->hidden_size;
  const int32_t format = pool->row_format, f32 = TANDEM_CLIENT_F32;
  const int scaled = pool->scales_per_row != 0;
  values[0] = 0x55;
  refused(tandem_client_quantize_rows(0, f32, rows, 0, 1, cols, values, scales), TANDEM_CLIENT_UNSUPPORTED, "format 0");
  refused(tandem_client_quantize_rows(6, f32, rows, 0, 1, cols, values, scales), TANDEM_CLIENT_UNSUPPORTED, "format 6");
  refused(tandem_client_quantize_rows(format, TANDEM_CLIENT_I8, rows, 0, 1, cols, values, scales),
          TANDEM_CLIENT_UNSUPPORTED, "input_dtype i8");
  refused(tandem_client_quantize_rows(format, f32, rows, cols - 1, 1, cols, values, scales),
          TANDEM_CLIENT_INVALID_ARGUMENT, "input_stride");
  refused(tandem_client_quantize_rows(format, f32, NULL, 0, 1, cols, values, scales), TANDEM_CLIENT_INVALID_ARGUMENT,
          "input and values");
  refused(tandem_client_quantize_rows(format, f32, rows, 0, 1, cols, NULL, scales), TANDEM_CLIENT_INVALID_ARGUMENT,
          "input and values");
  refused(tandem_client_quantize_rows(format, f32, rows, 0, 1, cols, values, scaled ? NULL : values),
          TANDEM_CLIENT_INVALID_ARGUMENT, scaled ? "scales is NULL" : "scales: rows of bf16 and f32 have none");
  CHECK(values[0] == 0x55);
  CHECK(tandem_client_quantize_rows(format, f32, NULL, 0, 0, cols, NULL, NULL) == TANDEM_CLIENT_OK);
}

/* bf16 rows, and rows with gaps, give what the same numbers give otherwise. */
static void check_inputs(const float* rows, const tandem_client_description* pool) {
  enum { COUNT = 5 };
  const uint32_t cols = pool->hidden_size;
  const size_t value_bytes = COUNT * cols * dtype_size(pool->input_dtype);
  const size_t scale_bytes = COUNT * pool->scales_per_row * dtype_size(pool->scale_dtype);
  uint16_t* narrow = memory((size_t)COUNT * STRIDE * 2);
  float* wide = memory((size_t)COUNT * cols * 4);
  void *values[2] = {memory(value_bytes), memory(value_bytes)}, *scales[2] = {memory(scale_bytes), memory(scale_bytes)};
  CHECK(cols <= STRIDE);
  for (size_t row = 0; row < COUNT; ++row) {
    for (size_t i = 0; i < cols; ++i) {
      uint32_t bits;
      memcpy(&bits, &rows[row * cols + i], 4);
      bits &= 0xffff0000u;
      memcpy(&wide[row * cols + i], &bits, 4);
      narrow[row * STRIDE + i] = (uint16_t)(bits >> 16);
    }
  }
  const int scaled = scale_bytes != 0;
  CHECK(tandem_client_quantize_rows(pool->row_format, TANDEM_CLIENT_F32, wide, 0, COUNT, cols, values[0],
                                    scaled ? scales[0] : NULL) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_quantize_rows(pool->row_format, TANDEM_CLIENT_BF16, narrow, STRIDE, COUNT, cols, values[1],
                                    scaled ? scales[1] : NULL) == TANDEM_CLIENT_OK);
  CHECK(memcmp(values[0], values[1], value_bytes) == 0 && memcmp(scales[0], scales[1], scale_bytes) == 0);
  free(narrow), free(wide), free(values[0]), free(values[1]), free(scales[0]), free(scales[1]);
}

static void compute(tandem_client* client, const tandem_client_request* request) {
  tandem_client_handle handle = 0;
  CHECK(tandem_client_submit(client, request, &handle) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_wait(client, handle, PATIENCE_MS, NULL) == TANDEM_CLIENT_OK);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char *folder = argv[1], *address = argv[2];
  tandem_client* client = NULL;
  tandem_client_description pool = TANDEM_CLIENT_DESCRIPTION_INIT;
  CHECK(tandem_client_connect(&address, 1, NULL, &client) == TANDEM_CLIENT_OK);
  CHECK(tandem_client_describe(client, &pool) == TANDEM_CLIENT_OK);
  const size_t count = (size_t)ROWS * pool.hidden_size;
  const size_t value_bytes = count * dtype_size(pool.input_dtype), sum_bytes = count * dtype_size(pool.output_dtype);
  const size_t scale_bytes = (size_t)ROWS * pool.scales_per_row * dtype_size(pool.scale_dtype);
  const size_t slots = (size_t)ROWS * pool.top_k;
  float *rows = memory(count * 4), *weights = memory(slots * 4);
  int32_t* experts = memory(slots * 4);
  void *values = memory(value_bytes), *scales = scale_bytes ? memory(scale_bytes) : NULL;
  void *sums = memory(sum_bytes), *again = memory(sum_bytes);
  transfer(folder, "rows", rows, count * 4, 0);
  transfer(folder, "weights", weights, slots * 4, 0);
  transfer(folder, "experts", experts, slots * 4, 0);
  check_refusals(rows, &pool, values, scales);
  check_inputs(rows, &pool);

  CHECK(tandem_client_quantize_rows(pool.row_format, TANDEM_CLIENT_F32, rows, 0, ROWS, pool.hidden_size, values,
                                    scales) == TANDEM_CLIENT_OK);
  tandem_client_request request = TANDEM_CLIENT_REQUEST_INIT;
  request.layer = LAYER;
  request.rows = ROWS;
  request.input = values;
  request.scales = scales;
  request.expert_ids = experts;
  request.expert_weights = weights;
  request.output = sums;
  compute(client, &request);

  request.input = rows; /* and the library does the same by itself */
  request.input_dtype = TANDEM_CLIENT_F32;
  request.scales = NULL;
  request.output = again;
  compute(client, &request);
  CHECK(memcmp(sums, again, sum_bytes) == 0);
  if (pool.input_dtype != TANDEM_CLIENT_F32) {
    tandem_client_handle handle = 0;
    request.scales = weights;
    refused(tandem_client_submit(client, &request, &handle), TANDEM_CLIENT_INVALID_ARGUMENT, "scales beside rows of f32");
  }
  transfer(folder, "values", values, value_bytes, 1);
  transfer(folder, "scales", scales, scale_bytes, 1);
  transfer(folder, "sums", sums, sum_bytes, 1);
  printf("row_format %d\n", pool.row_format);
  tandem_client_close(client);
  free(rows), free(weights), free(experts), free(values), free(scales), free(sums), free(again);
  return 0;
}
