// The expert store: a fixed arena of slots, and the reads that fill them.
//
// Owns: the arena, and which parts of which slot are whole. Leaves residency, pins and victims to the Cache, reading to
// PartReads and the meaning of graphs to the seam. Refuses: to hand out a slot that is not whole, to reuse a slot that
// is pinned or being read into, to grow. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "io.h"
#include "part_reads.h"
#include "plan.h"
#include "stats.h"

namespace guanaco {

// A selection that does not fit the slots: each of its products reads its part of the experts that are missing, a few at
// a time, through slots that it uses over and over.
struct Waves {
  bool on = false;
  std::vector<uint32_t> taken;  // slots
  std::vector<uint32_t> ready;  // of those, free for the next read
  std::vector<uint32_t> parts;  // of each product, in the order of the graph
  std::vector<size_t> missed;   // indices of the lease's experts
  // [product * missed.size() + i]: the slot of missed[i]; -1: not begun, or used
  std::vector<int32_t> slots;
  size_t next = 0;  // the first of `slots` that is not begun
};

// The experts of one layer's selection, pinned from acquire() to release().
struct Lease {
  uint32_t group = 0;
  std::vector<int32_t> experts;
  std::vector<uint32_t> slots;    // parallel to experts; in waves only of those that were resident
  std::vector<uint32_t> loading;  // slots whose reads this lease may have to wait for
  Waves waves;
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
  // batch only, whose rows are `rows`. False, with nothing more pinned or demanded, when they do not fit beside what is
  // pinned already.
  bool acquire(uint32_t group, const std::vector<uint32_t>& part_order, size_t n_transient, Lease* lease,
               const BatchRows& rows = {});
  // As Cache::learn().
  void learn(uint32_t group, const int32_t* experts, size_t n) { cache_->learn(group, experts, n); }
  // After acquire() refused: serves the selection in waves, for products that need `parts` in this order. False when every
  // slot is pinned.
  bool acquire_in_waves(uint32_t group, const std::vector<uint32_t>& parts, Lease* lease);
  // The expert missed[i] was used by product `product`: its slot is read into again.
  void used_in_waves(Lease* lease, size_t product, size_t i);
  // True when part `part` of every expert of the lease is in memory; never blocks.
  bool arrived(const Lease& lease, uint32_t part) const;
  // Waits for it. False when a read failed for good; the experts concerned are then not resident.
  bool wait(Lease* lease, uint32_t part);
  void release(Lease* lease);
  // For a caller that uses the experts of a lease one by one: is this part of this slot whole?
  bool has_part(uint32_t group, uint32_t slot, uint32_t part) const {
    const Fill& fill = class_of(group).fills[slot];
    return (fill.missing >> part & 1u) == 0 && !fill.failed;
  }
  // Waits until something more of what is being read has arrived. False when a read of this lease failed for good.
  bool wait_for_more(Lease* lease);

  // Guesses which experts of a later selection will be wanted, best first; replaces earlier guesses that were not begun.
  // They are read, up to `most_bytes` at a time, while nothing demanded is missing. The next acquire() decides: what it
  // wants of them becomes demand, of the others nothing more is read, and their slots may be taken again.
  void guess(uint32_t group, const std::vector<uint32_t>& part_order, const std::vector<int32_t>& experts,
             uint64_t most_bytes);
  // Queues the reads of an expert into an empty slot; start() hands them to the drive. False when it is resident, or
  // when no slot is empty.
  bool preload(uint32_t group, int32_t expert);
  void start();
  // Waits for everything that is being read, and takes it in.
  void finish_reads();
  // Takes in what has arrived and starts what was waiting; never blocks.
  void poll() { collect(false); }
  uint64_t expert_bytes(uint32_t group) const { return plan_.groups[group].expert_bytes(); }
  // Of reads that are queued or in flight.
  uint64_t pending_bytes() const { return reads_.pending_bytes(); }
  // What the drive delivered while it was busy, since the last call; false when that was too little to tell.
  bool take_drive_rate(uint64_t* nbytes, uint64_t* elapsed_ns) { return reads_.take_drive_rate(nbytes, elapsed_ns); }
  // How long nothing demanded was missing before the last acquire(): the time that guesses have.
  uint64_t idle_ns() const { return idle_ns_; }

  const Cache& cache() const { return *cache_; }
  // What the last acquire() came to.
  const Served& last_served() const { return served_; }
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
  struct Guesses {  // not begun, the best first
    uint32_t group = 0;
    std::vector<uint32_t> part_order;
    std::deque<int32_t> experts;
  };
  struct Held {  // a guess that was begun; it keeps its slot up to the next acquire()
    uint32_t group = 0, slot = 0;
    int32_t expert = -1;
  };

  const Class& class_of(uint32_t group) const { return classes_[plan_.groups[group].size_class]; }
  Class& class_of(uint32_t group) { return classes_[plan_.groups[group].size_class]; }
  // All parts, in the order of `part_order`, those it does not name last: a slot always becomes whole.
  const std::vector<uint32_t>& whole_order(uint32_t group, const std::vector<uint32_t>& part_order);
  PartRead pinned_read(uint32_t group, int32_t expert, uint32_t slot, uint32_t part);
  // Takes in what has arrived; collect() also starts what was waiting.
  void reap(bool block);
  void collect(bool block);
  void take_in(const PartDone& done);
  bool has_failed(const Lease& lease) const;
  void drop(uint32_t group, uint32_t slot);
  void feed_waves(Lease* lease);
  void end_waves(Lease* lease);
  void fill(uint32_t group, uint32_t slot, bool guessed);
  bool begin_guess();
  void settle_guesses(uint32_t group, const std::vector<int32_t>& experts);
  void promote(uint32_t group, uint32_t part);
  void abandon_guess(const Held& held);

  const LoadPlan& plan_;
  Stats* const stats_;
  char* arena_ = nullptr;
  uint64_t arena_map_bytes_ = 0;
  std::vector<Class> classes_;
  std::unique_ptr<Cache> cache_;
  Served served_, guess_served_;
  PartReads reads_;
  std::vector<PartDone> done_;
  std::vector<uint32_t> order_;
  Guesses guesses_;
  std::vector<Held> held_;
  std::vector<uint32_t> promoted_;  // slots of guesses that the selection being served wants
  uint64_t idle_ns_ = 0, served_ns_ = 0;
  std::string error_;
};

}  // namespace guanaco
