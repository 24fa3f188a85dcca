// --io pagecache: the mechanism of the original description, kept as a fallback and a baseline.
//
// Experts stay in the file mapping; the ones selected are announced (WILLNEED), the ones evicted are dropped from the
// mapping and from the page cache. Leaves to the Cache which experts count as resident. The kernel decides what is.
#pragma once

#include <memory>
#include <vector>

#include "cache.h"
#include "io.h"
#include "mapping.h"
#include "plan.h"
#include "stats.h"

namespace guanaco {

class PageCacheStore {
 public:
  PageCacheStore(const LoadPlan& plan, const OpenFiles& files, const Mappings& mappings, Stats* stats);
  // `n_transient` as in Store::acquire. False when they are more than the budget allows at once.
  bool serve(uint32_t group, const std::vector<int32_t>& experts, size_t n_transient, const BatchRows& rows = {});
  // As Cache::learn().
  void learn(uint32_t group, const int32_t* experts, size_t n) { cache_->learn(group, experts, n); }

  const Cache& cache() const { return *cache_; }
  // What the last serve() came to.
  const Served& last_served() const { return served_; }

 private:
  void advise(uint32_t group, int32_t expert, bool keep) const;
  void set_random_access() const;

  const LoadPlan& plan_;
  const OpenFiles& files_;
  const Mappings& mappings_;
  Stats* const stats_;
  std::unique_ptr<Cache> cache_;
  Served served_;
  bool advised_ = false;
};

}  // namespace guanaco
