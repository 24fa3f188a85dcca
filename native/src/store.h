// The expert store: a fixed arena of slots, and the reads that fill them.
//
// Owns: the arena, reads in flight and the I/O counters. Leaves residency, pins and victims to the Cache and the
// meaning of graphs to the seam. Refuses: to hand out a slot that is not whole, to reuse a slot that is pinned or
// being read into, to grow. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "io.h"
#include "plan.h"
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

  // Starts making room for an expert that a later selection may want; start_guesses() then reads all such. False when
  // it is resident, or when no slot may be given up for a guess.
  bool prefetch(uint32_t group, const std::vector<uint32_t>& part_order, int32_t expert);
  void start_guesses() { start_queued(); }
  uint64_t expert_bytes(uint32_t group) const;
  // Of reads that are queued or in flight.
  uint64_t pending_bytes() const { return pending_bytes_; }
  // What the drive delivered while it was waited for, since the last call; false when that was too little to tell.
  bool take_drive_rate(uint64_t* nbytes, uint64_t* elapsed_ns);

  int32_t slot_of(uint32_t group, int32_t expert) const { return cache_->slot_of(group, expert); }
  // Where part `part` of slot 0 begins; slots lie stride_bytes(group) apart.
  char* part_base(uint32_t group, uint32_t part) const;
  uint64_t stride_bytes(uint32_t group) const { return class_of(group).plan->stride_bytes; }
  uint32_t n_slots(uint32_t group) const { return class_of(group).plan->slots; }
  std::string take_error();

 private:
  struct Fill {
    uint32_t missing = 0;  // bit per part not yet whole
    bool failed = false;
    bool guessed = false;  // read early, and not selected yet
  };
  struct Class {
    const SizeClass* plan = nullptr;
    char* base = nullptr;
    std::vector<Fill> fills;  // [slot]
  };
  struct PartRead {
    uint32_t group = 0, slot = 0, part = 0;
    int32_t expert = -1;
    uint32_t chunks_left = 0;
    uint32_t tries = 0;
    int error = 0;
    int32_t staging = -1;
    bool in_use = false;
  };

  const Class& class_of(uint32_t group) const { return classes_[plan_.groups[group].size_class]; }
  Class& class_of(uint32_t group) { return classes_[plan_.groups[group].size_class]; }
  bool is_aligned(const ExpertPart& part) const { return part.slice_bytes % kPage == 0; }
  void queue_part(uint32_t group, int32_t expert, uint32_t slot, uint32_t part);
  void start_queued();
  void start_part(uint32_t index);
  void collect(bool block);
  void finish_part(uint32_t index);
  void drop(uint32_t group, uint32_t slot);
  void fill(uint32_t group, uint32_t slot, bool guessed);

  const LoadPlan& plan_;
  const OpenFiles& files_;
  ReadBackend* const backend_;
  Stats* const stats_;
  char* arena_ = nullptr;
  uint64_t arena_map_bytes_ = 0;
  std::vector<Class> classes_;
  std::unique_ptr<Cache> cache_;
  Served served_;
  std::vector<PartRead> reads_;
  std::vector<uint32_t> free_reads_;
  std::deque<uint32_t> queued_;  // waiting for a staging buffer, or for start_queued()
  std::vector<Read> batch_;      // gathered for one submission
  std::vector<Completion> done_;
  char* staging_ = nullptr;
  uint64_t staging_span_ = 0, staging_map_bytes_ = 0;
  std::vector<int32_t> free_staging_;
  std::string error_;
  uint64_t pending_bytes_ = 0, delivered_bytes_ = 0;
  uint64_t rate_bytes_ = 0, rate_ns_ = 0;
};

}  // namespace guanaco
