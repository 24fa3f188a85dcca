// Drafting of the engine's server: lets it draft, or not when that does not pay.
//
// Owns: the judge, its clock and the counters. Only the thread that decodes calls it. Leaves drafts to the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "draft_judge.h"
#include "drafted_rows.h"
#include "stats.h"

namespace guanaco {

class Drafts {
 public:
  Drafts(bool always, Stats* stats) : judge_(always), stats_(stats) {}

  // This sequence is decoding; told before each step. `is_drafting`: the engine's own mark that it is to get a draft.
  void decodes(int32_t sequence, bool* is_drafting);
  // The step begins. True: the engine may draft. Else no sequence is marked any more: the engine takes a mark back only
  // when it drafts, and would later draft for whoever has the slot then.
  bool begin_step();
  void accepted(size_t n_tokens);
  void prompt_read() { judge_.interrupted(); }
  DraftedRows& rows() { return rows_; }

 private:
  DraftJudge judge_;
  DraftedRows rows_;
  Stats* const stats_;
  std::vector<int32_t> sequences_;
  std::vector<bool*> marks_;
};

}  // namespace guanaco
