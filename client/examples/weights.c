#include "weights.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weights {
  unsigned char* bytes;
  size_t size;
  char* header; /* ends with 0 */
  size_t data;  /* where the tensors begin */
};

static void fail(const char* what, const char* which) {
  fprintf(stderr, "weights: %s: %s\n", which, what);
  exit(1);
}

weights* weights_open(const char* path) {
  weights* file = calloc(1, sizeof *file);
  FILE* stream = fopen(path, "rb");
  if (!file || !stream || fseek(stream, 0, SEEK_END) != 0) fail("cannot be opened", path);
  file->size = (size_t)ftell(stream);
  rewind(stream);
  file->bytes = malloc(file->size + 1);
  if (!file->bytes || fread(file->bytes, 1, file->size, stream) != file->size) fail("cannot be read", path);
  fclose(stream);
  uint64_t header = 0; /* bytes 0 to 7, little-endian: its length */
  if (file->size < 8) fail("is no safetensors file", path);
  memcpy(&header, file->bytes, 8);
  if (header > file->size - 8) fail("is no safetensors file", path);
  file->data = 8 + (size_t)header;
  file->header = malloc((size_t)header + 1);
  if (!file->header) fail("no memory", path);
  memcpy(file->header, file->bytes + 8, (size_t)header);
  file->header[header] = 0;
  return file;
}

void weights_close(weights* file) {
  free(file->header);
  free(file->bytes);
  free(file);
}

float* weights_load(const weights* file, size_t count, const char* format, int layer) {
  char name[160], key[168], dtype[8] = "";
  size_t begin = 0, end = 0;
  snprintf(name, sizeof name, format, layer);
  snprintf(key, sizeof key, "\"%s\":", name);
  const char* entry = strstr(file->header, key); /* {"dtype":"BF16","shape":[...],"data_offsets":[a,b]} */
  if (!entry) fail("no such tensor", name);
  const char* type = strstr(entry, "\"dtype\":\"");
  const char* offsets = strstr(entry, "\"data_offsets\":[");
  if (!type || !offsets || sscanf(type, "\"dtype\":\"%7[^\"]", dtype) != 1 ||
      sscanf(offsets, "\"data_offsets\":[%zu,%zu]", &begin, &end) != 2 || begin > end ||
      end > file->size - file->data) {
    fail("its entry in the header is damaged", name);
  }
  const int narrow = strcmp(dtype, "BF16") == 0;
  if (!narrow && strcmp(dtype, "F32") != 0) fail("BF16 or F32 would do", name);
  if (end - begin != count * (narrow ? 2 : 4)) fail("another size than the configuration says", name);
  float* values = malloc(count * sizeof *values);
  if (!values) fail("no memory", name);
  for (size_t i = 0; i < count; ++i) {
    const unsigned char* at = file->bytes + file->data + begin + i * (narrow ? 2 : 4);
    uint32_t bits = 0;
    memcpy(narrow ? (unsigned char*)&bits + 2 : (unsigned char*)&bits, at, narrow ? 2 : 4); /* bf16: the upper half */
    memcpy(&values[i], &bits, 4);
  }
  return values;
}
