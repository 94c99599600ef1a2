#include "attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights.h"

enum { QUERY = HEADS * (NOPE + ROPE), KEYS = HEADS * (NOPE + ROPE), VALUES = HEADS * VALUE };
static const float kEpsilon = 1e-6f;
static const double kTheta = 10000.0;

struct layer {
  float *input_norm, *post_norm;  /* [HIDDEN] */
  float *q_a, *q_a_norm, *q_b;    /* [QUERY_RANK, HIDDEN], [QUERY_RANK], [QUERY, QUERY_RANK] */
  float *kv_a, *kv_a_norm, *kv_b; /* [KEY_RANK + ROPE, HIDDEN], [KEY_RANK], [HEADS * (NOPE + VALUE), KEY_RANK] */
  float* output;                  /* [HIDDEN, VALUES] */
  float *gate, *up, *down;        /* of dense layers: [DENSE_WIDTH, HIDDEN] twice, [HIDDEN, DENSE_WIDTH] */
  float *keys, *values;           /* [MAX_POSITIONS, KEYS], [MAX_POSITIONS, VALUES]: the cache */
};

struct attention {
  float *embedding, *norm, *head; /* [VOCAB, HIDDEN], [HIDDEN], [VOCAB, HIDDEN] */
  struct layer layers[LAYERS];
};

static float* new_floats(size_t count) {
  float* values = calloc(count, sizeof *values);
  if (values) return values;
  fprintf(stderr, "attention: no memory\n");
  exit(1);
}

attention* attention_open(const char* folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  weights* file = weights_open(path);
  attention* model = calloc(1, sizeof *model);
  if (!model) exit(1);
  model->embedding = weights_load(file, (size_t)VOCAB * HIDDEN, "model.embed_tokens.weight", 0);
  model->norm = weights_load(file, HIDDEN, "model.norm.weight", 0);
  model->head = weights_load(file, (size_t)VOCAB * HIDDEN, "lm_head.weight", 0);
  for (int i = 0; i < LAYERS; ++i) {
    struct layer* l = &model->layers[i];
#define LOAD(count, name) weights_load(file, (size_t)(count), "model.layers.%d." name ".weight", i)
    l->input_norm = LOAD(HIDDEN, "input_layernorm");
    l->post_norm = LOAD(HIDDEN, "post_attention_layernorm");
    l->q_a = LOAD(QUERY_RANK * HIDDEN, "self_attn.q_a_proj");
    l->q_a_norm = LOAD(QUERY_RANK, "self_attn.q_a_layernorm");
    l->q_b = LOAD(QUERY * QUERY_RANK, "self_attn.q_b_proj");
    l->kv_a = LOAD((KEY_RANK + ROPE) * HIDDEN, "self_attn.kv_a_proj_with_mqa");
    l->kv_a_norm = LOAD(KEY_RANK, "self_attn.kv_a_layernorm");
    l->kv_b = LOAD(HEADS * (NOPE + VALUE) * KEY_RANK, "self_attn.kv_b_proj");
    l->output = LOAD(HIDDEN * VALUES, "self_attn.o_proj");
    if (i < DENSE_LAYERS) {
      l->gate = LOAD(DENSE_WIDTH * HIDDEN, "mlp.gate_proj");
      l->up = LOAD(DENSE_WIDTH * HIDDEN, "mlp.up_proj");
      l->down = LOAD(HIDDEN * DENSE_WIDTH, "mlp.down_proj");
    }
#undef LOAD
    l->keys = new_floats((size_t)MAX_POSITIONS * KEYS);
    l->values = new_floats((size_t)MAX_POSITIONS * VALUES);
  }
  weights_close(file);
  return model;
}

void attention_close(attention* model) {
  for (int i = 0; i < LAYERS; ++i) {
    struct layer* l = &model->layers[i];
    float* all[] = {l->input_norm, l->post_norm, l->q_a,  l->q_a_norm, l->q_b,  l->kv_a,   l->kv_a_norm,
                    l->kv_b,       l->output,    l->gate, l->up,       l->down, l->keys,   l->values};
    for (size_t k = 0; k < sizeof all / sizeof *all; ++k) free(all[k]);
  }
  free(model->embedding);
  free(model->norm);
  free(model->head);
  free(model);
}

/* out[r] = matrix[r, :] . x */
static void multiply(const float* matrix, int rows, int cols, const float* x, float* out) {
  for (int r = 0; r < rows; ++r) {
    float sum = 0;
    for (int c = 0; c < cols; ++c) sum += matrix[r * cols + c] * x[c];
    out[r] = sum;
  }
}

static void rms_norm(const float* x, const float* weight, int count, float* out) {
  float squares = 0;
  for (int i = 0; i < count; ++i) squares += x[i] * x[i];
  const float scale = 1.0f / sqrtf(squares / (float)count + kEpsilon);
  for (int i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

/* Rotates the pairs (0, 1), (2, 3), ... of ROPE values. */
static void rotate(float* x, int position) {
  for (int i = 0; i < ROPE; i += 2) {
    const double angle = position * pow(kTheta, -(double)i / ROPE);
    const float c = (float)cos(angle), s = (float)sin(angle), a = x[i], b = x[i + 1];
    x[i] = a * c - b * s;
    x[i + 1] = a * s + b * c;
  }
}

void attention_embed(const attention* model, int token, float* row) {
  memcpy(row, model->embedding + (size_t)token * HIDDEN, HIDDEN * sizeof *row);
}

/* The latent of this position becomes its keys and values of every head. */
static void remember(struct layer* l, int position, const float* normed) {
  float latent[KEY_RANK + ROPE], kept[KEY_RANK], expanded[HEADS * (NOPE + VALUE)];
  multiply(l->kv_a, KEY_RANK + ROPE, HIDDEN, normed, latent);
  rms_norm(latent, l->kv_a_norm, KEY_RANK, kept);
  rotate(latent + KEY_RANK, position);
  multiply(l->kv_b, HEADS * (NOPE + VALUE), KEY_RANK, kept, expanded);
  for (int head = 0; head < HEADS; ++head) {
    float* key = l->keys + (size_t)position * KEYS + head * (NOPE + ROPE);
    memcpy(key, expanded + head * (NOPE + VALUE), NOPE * sizeof *key);
    memcpy(key + NOPE, latent + KEY_RANK, ROPE * sizeof *key); /* one rotated part for all heads */
    memcpy(l->values + (size_t)position * VALUES + head * VALUE, expanded + head * (NOPE + VALUE) + NOPE,
           VALUE * sizeof *key);
  }
}

void attention_apply(attention* model, int layer, int position, float* row) {
  struct layer* l = &model->layers[layer];
  float normed[HIDDEN], low[QUERY_RANK], query[QUERY], attended[VALUES] = {0}, branch[HIDDEN];
  float scores[MAX_POSITIONS];
  rms_norm(row, l->input_norm, HIDDEN, normed);
  remember(l, position, normed);
  multiply(l->q_a, QUERY_RANK, HIDDEN, normed, low);
  rms_norm(low, l->q_a_norm, QUERY_RANK, low);
  multiply(l->q_b, QUERY, QUERY_RANK, low, query);
  for (int head = 0; head < HEADS; ++head) {
    float* q = query + head * (NOPE + ROPE);
    float largest = -INFINITY, sum = 0;
    rotate(q + NOPE, position);
    for (int p = 0; p <= position; ++p) {
      multiply(l->keys + (size_t)p * KEYS + head * (NOPE + ROPE), 1, NOPE + ROPE, q, &scores[p]);
      scores[p] /= sqrtf(NOPE + ROPE);
      if (scores[p] > largest) largest = scores[p];
    }
    for (int p = 0; p <= position; ++p) sum += scores[p] = expf(scores[p] - largest);
    for (int p = 0; p <= position; ++p) {
      const float* value = l->values + (size_t)p * VALUES + head * VALUE;
      for (int i = 0; i < VALUE; ++i) attended[head * VALUE + i] += scores[p] / sum * value[i];
    }
  }
  multiply(l->output, HIDDEN, VALUES, attended, branch);
  for (int i = 0; i < HIDDEN; ++i) row[i] += branch[i];
}

void attention_norm(const attention* model, int layer, const float* row, float* normed) {
  rms_norm(row, model->layers[layer].post_norm, HIDDEN, normed);
}

void attention_dense(const attention* model, int layer, const float* normed, float* row) {
  const struct layer* l = &model->layers[layer];
  float gate[DENSE_WIDTH], up[DENSE_WIDTH], branch[HIDDEN];
  multiply(l->gate, DENSE_WIDTH, HIDDEN, normed, gate);
  multiply(l->up, DENSE_WIDTH, HIDDEN, normed, up);
  for (int i = 0; i < DENSE_WIDTH; ++i) up[i] *= gate[i] / (1.0f + expf(-gate[i]));
  multiply(l->down, HIDDEN, DENSE_WIDTH, up, branch);
  for (int i = 0; i < HIDDEN; ++i) row[i] += branch[i];
}

int attention_next(const attention* model, const float* row) {
  float normed[HIDDEN], logits[VOCAB];
  int best = 0;
  rms_norm(row, model->norm, HIDDEN, normed);
  multiply(model->head, VOCAB, HIDDEN, normed, logits);
  for (int token = 1; token < VOCAB; ++token) {
    if (logits[token] > logits[best]) best = token;
  }
  return best;
}
