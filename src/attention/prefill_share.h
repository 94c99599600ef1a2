// PrefillShare: how prompts and answers share the engine's thread. Values and pure rules; time is what the
// caller says that it took. One thread.
//
// A step of a prompt's rows takes many times as long as a decode step, and is worth that: its weights are
// read once for all rows. So it is not made short but interrupted, between two operations. While sequences
// decode, each second of decode steps earns prompts ratio() seconds; they go on while they have credit, and
// decode goes first otherwise. What an operation takes beyond its credit is paid back. Where attention would
// only wait for the experts of a decode step prompts go on in any case.
//
// Every sequence has the same share of the time, so that prompts that wait for a few answers are not held up
// by them; prompts together at least `least`, so that one among many answers gets on.
#pragma once

#include <cstdint>

namespace tandem {

// Rows of a chunk of a prompt, at least: below, reading the experts' weights for them takes longer than
// multiplying, and a longer chunk costs hardly more.
inline constexpr uint32_t kLeastChunkRows = 128;

class PrefillShare {
 public:
  // `least`: in [0, 1), the share of prompts while sequences decode.
  explicit PrefillShare(double least) : least_(least) {}

  // Sequences whose prompt is computed or could be taken in, and sequences that decode.
  void set_load(uint32_t prefilling, uint32_t decoding);
  // Sequences of both kinds: somebody has to wait.
  bool is_shared() const { return prefilling_ > 0 && decoding_ > 0; }
  // Seconds of prompts for each second of decode steps.
  double ratio() const;

  // Whether a prompt goes before a decode step that could go on.
  bool prefill_goes_first() const { return credit_ > 0; }
  // Seconds after which a prompt that goes on now looks for decode steps again.
  double slice() const;

  // Seconds of the thread, for decode steps and their drafts, and for prompts.
  void add_decode(double seconds);
  void add_prefill(double seconds);
  void end_decode_step();
  // A prompt's step of `rows` rows and `layers` layers has taken `seconds` of the thread in all.
  void add_prefill_step(uint32_t rows, uint32_t layers, double seconds);

  // Rows for the next step of prompts, at most `most`: such that a layer, which is what cannot be interrupted
  // well, takes about what decode steps may be delayed by.
  uint32_t chunk_rows(uint32_t most) const;

 private:
  double least_;
  uint32_t prefilling_ = 0, decoding_ = 0;
  double credit_ = 0;       // seconds
  double decode_step_ = 0;  // seconds, smoothed; 0: not measured yet
  double decode_now_ = 0;   // of the step in work
  double row_layer_ = 0;    // seconds of a prompt's row in a layer, smoothed
};

}  // namespace tandem
