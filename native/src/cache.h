// Residency: which expert is in which slot, who holds it, and what has to give way.
//
// Owns: slots, pins, empty slots, slots of prompt batches, and the counts of hits, misses and evictions. Leaves the
// choice among the other slots to a Policy, bytes and reads to the Store. Refuses to reuse a slot that is pinned.
// The simulator runs this same code, so its counts are the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan.h"
#include "policy.h"
#include "stats.h"
#include "use_class.h"

namespace guanaco {

struct ExpertId {
  int32_t group = -1;  // -1: none
  int32_t expert = -1;
};

// What serving a selection came to. Kept by the caller, so that its memory is used again.
struct Served {
  std::vector<uint32_t> slots;    // parallel to the experts
  std::vector<size_t> missed;     // indices of the experts that have to be read
  std::vector<ExpertId> evicted;  // in order
};

struct CacheCounts {
  uint64_t accesses = 0, hits = 0, misses = 0;
  uint64_t evictions = 0;
  uint64_t evict_hot = 0;     // of an expert that was pinned for good, or used more than the median of its class
  uint64_t evict_reread = 0;  // taken back within as many placements as its class has slots
};

class Cache {
 public:
  Cache(const PolicyShape& shape, std::unique_ptr<Policy> policy);

  // As Policy::prior().
  void prior(uint32_t group, const double* use) { policy_->prior(group, use); }
  // Whether a selection fits beside what is pinned already.
  bool fits(uint32_t group, const std::vector<int32_t>& experts) const;
  // Gives every expert a slot and a pin; only after fits().
  void serve(const Selection& selection, Served* out);
  // A token turned out to be what was guessed: its experts, served before as nobody's, count as selected. None is placed.
  void learn(uint32_t group, const int32_t* experts, size_t n);
  // For a selection that does not fit: takes slots for its experts to pass through, half of those nobody pins, and pins
  // both them and its experts that are resident then. `out`: of those, their slots; the others are missed. What it named
  // is neither placed nor learned from. Needs a slot without a pin.
  void serve_in_waves(const Selection& selection, Served* out, std::vector<uint32_t>* taken);
  // A slot for an expert that no selection named yet; -1 when it has one, or when only slots that are pinned or hold
  // experts used more than most could be given up. `out`: what was evicted.
  int32_t place_guess(uint32_t group, int32_t expert, Served* out);
  // An empty slot for an expert that no selection named yet; -1 when it has one, or when none is empty.
  int32_t place_empty(uint32_t group, int32_t expert);
  void pin(uint32_t size_class, uint32_t slot);
  void unpin(uint32_t size_class, uint32_t slot);
  // The slot's content is void: its expert is not resident any more, and the slot is empty once nobody pins it.
  // Returns whether it is; else to be called again after unpin().
  bool abandon(uint32_t size_class, uint32_t slot);

  int32_t slot_of(uint32_t group, int32_t expert) const { return residency_[group][static_cast<size_t>(expert)]; }
  bool is_pinned(uint32_t size_class, uint32_t slot) const { return classes_[size_class].pins[slot] != 0; }
  uint32_t size_class(uint32_t group) const { return size_class_[group]; }
  uint32_t n_free(uint32_t size_class) const { return classes_[size_class].n_free; }
  const CacheCounts& counts() const { return counts_; }
  const Policy& policy() const { return *policy_; }
  // Share of the recent selections of its layer that named the expert.
  double use_rate(uint32_t group, int32_t expert) const { return use_.rate(group, expert); }
  // Slots whose expert has a permanent pin, or is used more than the median of its class. Looks at every slot.
  uint64_t hot_slots() const;

 private:
  struct Class {
    std::vector<ExpertId> slots;
    std::vector<uint32_t> pins;       // leases and reads in flight
    uint32_t n_free = 0;              // slots without a pin
    std::vector<uint32_t> empty;      // highest first, so that the lowest is taken first
    std::vector<uint32_t> transient;  // used by prompt batches only; the last placed goes first
    std::vector<bool> is_transient;   // [slot]
    uint64_t placements = 0;
    double median_use = 0.0;  // of the resident experts, now and then
    uint32_t until_median = 0;
  };
  bool has_free_transient(const Class& cls) const;
  uint32_t take_slot(uint32_t size_class, Served* out);
  void empty_slot(uint32_t size_class, uint32_t slot);
  void place(uint32_t group, int32_t expert, uint32_t slot, bool transient);
  void evict(uint32_t size_class, uint32_t slot, Served* out);
  void make_lasting(Class* cls, uint32_t slot);
  bool is_hot(const ExpertId& id, double median) const;
  double median_use(const Class& cls) const;
  void update_median(Class* cls);

  const std::vector<uint32_t> size_class_;  // [group]
  std::unique_ptr<Policy> policy_;
  UseClass use_;
  std::vector<Class> classes_;
  std::vector<std::vector<int32_t>> residency_;   // [group][expert] -> slot or -1
  std::vector<std::vector<uint64_t>> evicted_at_;  // [group][expert] -> placements then, plus 1; 0: never
  CacheCounts counts_;
};

PolicyShape policy_shape(const LoadPlan& plan);
// The cache of a plan, whose policy is one that the library knows.
std::unique_ptr<Cache> make_cache(const LoadPlan& plan);
// After every selection served.
void publish_counts(const Cache& cache, Stats* stats);

}  // namespace guanaco
