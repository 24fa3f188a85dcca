// Notices a model file that changes while it is loaded.
//
// Owns: when to look, and what was reported already. Asks only for metadata; reads nothing. A file that was written
// to or cut short is an error, because what was read from it may be anything; one replaced under its name is a
// warning, because the open one is still whole. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io.h"
#include "plan.h"

namespace guanaco {

class FileWatch {
 public:
  // The plan is complete; the files may be opened later.
  FileWatch(const LoadPlan& plan, const OpenFiles& files);

  // Call it after reads, before what was read is used. False: the reason is in `error`. `warning` is set at most
  // once per file. The names are looked at once a second of `now_ns`, the open files (a cheaper call) every time.
  bool check(uint64_t now_ns, std::string* error, std::string* warning);

 private:
  bool was_replaced(const PlanFile& file) const;

  const LoadPlan& plan_;
  const OpenFiles& files_;
  std::vector<bool> replaced_;  // [file] reported
  uint64_t next_names_ns_ = 0;
};

}  // namespace guanaco
