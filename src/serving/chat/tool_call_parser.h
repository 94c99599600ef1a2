// ToolCallParser: finds blocks of tool calls in the content of an answer. What is common to the formats is
// here: content flows as it comes, but for what may be the beginning of a block; a block's calls are given
// one by one, each when it is complete and well-formed, so that a call that turns out malformed, or is cut
// off, can still come back as content. Blanks around blocks are no content. One per answer; one thread at a
// time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serving/chat/output_parser.h"

namespace tandem {

// A call that is complete. The pieces joined are the JSON text of an object.
struct ParsedCall {
  std::string name;
  std::vector<std::string> arguments;
};

class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;

  void push(std::string_view piece, OutputDeltas& out);
  void finish(OutputDeltas& out);

 protected:
  explicit ToolCallParser(std::string_view marker) : marker_(marker) {}

  enum class Step : uint8_t {
    more,       // undecided
    malformed,  // whatever follows
    call,       // a call is complete
    end,        // the block is
    last_call,  // both
  };
  // `text`: the block behind its marker or behind its last call, so far; it only grows until a step is taken,
  // and then begins `used` bytes further on. What is decided must not depend on how much has come.
  virtual Step advance(std::string_view text, size_t& used, ParsedCall& call) = 0;
  // A block begins, or goes on behind a call: forget positions in the text.
  virtual void restart(bool new_block) = 0;

 private:
  void run(bool at_end, OutputDeltas& out);
  bool run_block(bool at_end, OutputDeltas& out);
  void content(std::string_view text, OutputDeltas& out);

  const std::string_view marker_;
  std::string text_;             // not decided
  bool inside_ = false;          // text_ begins inside a block
  std::string gap_;              // the blanks before the block
  bool block_has_call_ = false;  // a call of this block has been given
  bool behind_block_ = false;    // nothing but blanks since one
  uint32_t calls_ = 0;
};

}  // namespace tandem
