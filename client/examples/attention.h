/* The attention half of models/arith (DeepSeek-V3 architecture), in plain float32 C: embedding, multi-head latent
 * attention, norms, the dense first layer and the head. The other half, the experts, is asked for over the
 * network (generate.c). One sequence, one thread; every row is [HIDDEN]. */
#ifndef TANDEM_EXAMPLE_ATTENTION_H
#define TANDEM_EXAMPLE_ATTENTION_H

/* config.json of models/arith. Tensors of other sizes end the program by name (weights.h). */
enum {
  VOCAB = 512,
  HIDDEN = 128,
  LAYERS = 5,
  DENSE_LAYERS = 1, /* the first ones have no experts */
  DENSE_WIDTH = 256,
  HEADS = 4,
  NOPE = 32,        /* values of a head without rotation */
  ROPE = 16,        /* and with */
  VALUE = 32,
  QUERY_RANK = 64,
  KEY_RANK = 64,
  EOS = 1,
  MAX_POSITIONS = 2048
};

typedef struct attention attention;

/* Reads its half of FOLDER/model.safetensors. Ends the program when it cannot. */
attention* attention_open(const char* folder);
void attention_close(attention* model);

void attention_embed(const attention* model, int token, float* row);

/* row += attention(norm(row)) at `position`, seeing itself and all positions before; these must have been
 * computed in this layer, in order. */
void attention_apply(attention* model, int layer, int position, float* row);

/* normed = the norm in front of the layer's experts, or dense network. */
void attention_norm(const attention* model, int layer, const float* row, float* normed);

/* row += dense network(normed); layers below DENSE_LAYERS. */
void attention_dense(const attention* model, int layer, const float* normed, float* row);

/* The most likely next token. */
int attention_next(const attention* model, const float* row);

#endif
