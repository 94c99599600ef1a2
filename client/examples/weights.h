/* Tensors of one safetensors file as float32, by name. No JSON library: the header of such a file is flat enough to
 * be searched. Not for files of strangers: it checks bounds and dtypes, and trusts the text otherwise. */
#ifndef TANDEM_EXAMPLE_WEIGHTS_H
#define TANDEM_EXAMPLE_WEIGHTS_H

#include <stddef.h>

typedef struct weights weights;

/* Ends the program with a message when the file cannot be read. */
weights* weights_open(const char* path);
void weights_close(weights* file);

/* `count` values of the tensor whose name is made from `format` and `layer`, widened to float32; the caller
 * frees them. A missing tensor, another size or a dtype other than BF16 and F32 ends the program, by name. */
float* weights_load(const weights* file, size_t count, const char* format, int layer);

#endif
