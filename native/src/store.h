// The expert store: a fixed arena of slots, what is resident in them, and the reads that fill them.
//
// Owns: the arena, residency, pins, reads in flight and the I/O counters. Leaves the choice of victims to a Policy
// and the meaning of graphs to the seam. Refuses: to hand out a slot that is not whole, to reuse a slot that is
// pinned or being read into, to grow. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "io.h"
#include "plan.h"
#include "policy.h"
#include "stats.h"

namespace guanaco {

// The experts of one layer's selection, pinned from acquire() to release().
struct Lease {
  uint32_t group = 0;
  std::vector<int32_t> experts;
  std::vector<uint32_t> slots;    // parallel to experts
  std::vector<uint32_t> loading;  // slots whose reads this lease may have to wait for
  bool active = false;
};

class Store {
 public:
  Store(const LoadPlan& plan, const OpenFiles& files, ReadBackend* backend, Stats* stats);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Maps and pre-faults the arena. False with a reason when memory is short.
  bool allocate(std::string* error);

  // Makes every expert of `lease->experts` resident or on its way: pins slots and starts the reads, parts in the
  // order of `part_order`, those it does not name last. `n_transient`: the first so many experts belong to a prompt
  // batch only. False, with nothing pinned or started, when they do not fit beside what is pinned already.
  bool acquire(uint32_t group, const std::vector<uint32_t>& part_order, size_t n_transient, Lease* lease);
  // True when part `part` of every expert of the lease is in memory; never blocks.
  bool arrived(const Lease& lease, uint32_t part) const;
  // Waits for it. False when a read failed for good; the experts concerned are then not resident.
  bool wait(Lease* lease, uint32_t part);
  void release(Lease* lease);

  int32_t slot_of(uint32_t group, int32_t expert) const { return residency_[group][static_cast<size_t>(expert)]; }
  // Where part `part` of slot 0 begins; slots lie stride_bytes(group) apart.
  char* part_base(uint32_t group, uint32_t part) const;
  uint64_t stride_bytes(uint32_t group) const { return class_of(group).plan->stride_bytes; }
  uint32_t n_slots(uint32_t group) const { return class_of(group).plan->slots; }
  std::string take_error();

 private:
  struct Slot {
    int32_t group = -1;  // -1: empty
    int32_t expert = -1;
    uint32_t missing = 0;  // bit per part not yet whole
    bool failed = false;
  };
  struct Class {
    const SizeClass* plan = nullptr;
    char* base = nullptr;
    std::vector<Slot> slots;
    std::vector<uint32_t> pins;  // leases and reads in flight
    std::vector<uint32_t> empty; // highest first, so that the lowest is taken first
    std::unique_ptr<Policy> policy;
  };
  struct PartRead {
    uint32_t group = 0, slot = 0, part = 0;
    uint32_t chunks_left = 0;
    uint32_t tries = 0;
    int error = 0;
    int32_t staging = -1;
    bool in_use = false;
  };

  const Class& class_of(uint32_t group) const { return classes_[plan_.groups[group].size_class]; }
  Class& class_of(uint32_t group) { return classes_[plan_.groups[group].size_class]; }
  bool is_aligned(const ExpertPart& part) const { return part.slice_bytes % kPage == 0; }
  bool enough_room(const Class& cls, uint32_t group, const Lease& lease) const;
  uint32_t take_slot(Class* cls);
  void queue_part(uint32_t group, uint32_t slot, uint32_t part);
  void start_queued();
  void start_part(uint32_t index);
  void collect(bool block);
  void finish_part(uint32_t index);
  void drop(Class* cls, uint32_t slot);

  const LoadPlan& plan_;
  const OpenFiles& files_;
  ReadBackend* const backend_;
  Stats* const stats_;
  char* arena_ = nullptr;
  uint64_t arena_map_bytes_ = 0;
  std::vector<Class> classes_;
  std::vector<std::vector<int32_t>> residency_;  // [group][expert] -> slot or -1
  std::vector<PartRead> reads_;
  std::vector<uint32_t> free_reads_;
  std::deque<uint32_t> queued_;  // waiting for a staging buffer, or for start_queued()
  std::vector<Read> batch_;      // gathered for one submission
  std::vector<Completion> done_;
  char* staging_ = nullptr;
  uint64_t staging_span_ = 0, staging_map_bytes_ = 0;
  std::vector<int32_t> free_staging_;
  std::string error_;
};

}  // namespace guanaco
