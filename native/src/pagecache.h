// --io pagecache: the mechanism of the original description, kept as a fallback and a baseline.
//
// Experts stay in the file mapping; the ones selected are announced (WILLNEED), the ones evicted are dropped from the
// mapping and from the page cache. Owns: which experts count as resident. The kernel decides what really is.
#pragma once

#include <memory>
#include <vector>

#include "io.h"
#include "mapping.h"
#include "plan.h"
#include "policy.h"
#include "stats.h"

namespace guanaco {

class PageCacheStore {
 public:
  PageCacheStore(const LoadPlan& plan, const OpenFiles& files, const Mappings& mappings, Stats* stats);
  // `n_transient` as in Store::acquire. False when they are more than the budget allows at once.
  bool serve(uint32_t group, const std::vector<int32_t>& experts, size_t n_transient);

 private:
  struct Class {
    std::vector<std::pair<int32_t, int32_t>> slots;  // (group, expert)
    std::vector<uint32_t> pins;
    uint32_t used = 0;
    std::unique_ptr<Policy> policy;
  };
  void advise(uint32_t group, int32_t expert, bool keep) const;
  void set_random_access() const;

  const LoadPlan& plan_;
  const OpenFiles& files_;
  const Mappings& mappings_;
  Stats* const stats_;
  std::vector<Class> classes_;
  std::vector<std::vector<int32_t>> residency_;
  bool advised_ = false;
};

}  // namespace guanaco
