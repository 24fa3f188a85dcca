// A store over a scripted back end, and what a test asks of it.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arrivals.h"
#include "bed.h"
#include "check.h"
#include "scripted_backend.h"
#include "stats.h"
#include "store.h"

using Experts = std::vector<int32_t>;

class StoreRig {
 public:
  // After the plan is complete.
  void start() {
    bed.open_fake();
    backend = std::make_unique<ScriptedBackend>(bed);
    store = std::make_unique<guanaco::Store>(bed.plan, bed.files, backend.get(), &stats);
    std::string error;
    REQUIRE(store->allocate(&error));
  }

  bool acquire(guanaco::Lease* lease, uint32_t group, const Experts& experts, size_t n_transient = 0) {
    std::vector<uint32_t> order(bed.plan.groups[group].parts.size());
    for (uint32_t part = 0; part < order.size(); ++part) order[part] = part;
    lease->experts = experts;
    return store->acquire(group, order, n_transient, lease);
  }

  // After acquire() refused.
  bool acquire_in_waves(guanaco::Lease* lease, uint32_t group, const Experts& experts,
                        const std::vector<uint32_t>& parts) {
    guanaco::Lease refused;
    REQUIRE(!acquire(&refused, group, experts));
    lease->experts = experts;
    return store->acquire_in_waves(group, parts, lease);
  }
  // Uses every expert, product by product, and checks what it sees; false when a read failed for good.
  bool use_in_waves(guanaco::Lease* lease) {
    std::vector<size_t> ready;
    std::string error;
    for (size_t product = 0; product < lease->waves.parts.size(); ++product) {
      const uint32_t part = lease->waves.parts[product];
      guanaco::Arrivals arrivals;
      arrivals.begin(store.get(), lease, product, part);
      while (!arrivals.is_done()) {
        if (!arrivals.take(&ready, &error)) return false;
        for (const size_t i : ready) {
          CHECK(part_bytes(lease->group, part, arrivals.slot(i)) == bed.slice(lease->group, part, lease->experts[i]));
          arrivals.used(i);
        }
      }
    }
    return true;
  }

  bool wait_all(guanaco::Lease* lease) {
    bool good = true;
    for (uint32_t part = 0; part < bed.plan.groups[lease->group].parts.size(); ++part) {
      good = store->wait(lease, part) && good;
    }
    return good;
  }

  // Acquires, waits, checks every byte and releases.
  void serve(uint32_t group, const Experts& experts, size_t n_transient = 0) {
    guanaco::Lease lease;
    REQUIRE(acquire(&lease, group, experts, n_transient));
    REQUIRE(wait_all(&lease));
    check_bytes(lease);
    store->release(&lease);
  }

  std::string part_bytes(uint32_t group, uint32_t part, uint32_t slot) const {
    return std::string(store->part_base(group, part) + slot * store->stride_bytes(group),
                       bed.plan.groups[group].parts[part].slice_bytes);
  }
  void check_bytes(const guanaco::Lease& lease) const {
    for (uint32_t part = 0; part < bed.plan.groups[lease.group].parts.size(); ++part) {
      for (size_t i = 0; i < lease.experts.size(); ++i) {
        CHECK_EQ(store->slot_of(lease.group, lease.experts[i]), lease.slots[i]);
        CHECK(part_bytes(lease.group, part, lease.slots[i]) == bed.slice(lease.group, part, lease.experts[i]));
      }
    }
  }
  bool resident(uint32_t group, int32_t expert) const { return store->slot_of(group, expert) >= 0; }
  Experts residents(uint32_t group) const {
    Experts result;
    for (int32_t e = 0; e < static_cast<int32_t>(bed.plan.groups[group].n_expert); ++e) {
      if (resident(group, e)) result.push_back(e);
    }
    return result;
  }

  Bed bed;
  guanaco::Stats stats{""};
  std::unique_ptr<ScriptedBackend> backend;
  std::unique_ptr<guanaco::Store> store;
};

// Leases that come and go while reads end in any order and some fail. What a lease may read is always the right bytes.
class RandomWalk {
 public:
  explicit RandomWalk(unsigned seed) : random_(seed) {}
  size_t below(size_t n) { return static_cast<size_t>(random_()) % n; }
  Experts some_experts(size_t one_in) {
    Experts experts;
    for (int32_t e = 0; e < 8; ++e) {
      if (below(one_in) == 0) experts.push_back(e);
    }
    return experts;
  }

  // Three layers in two classes, some with slices that need staging.
  void start(StoreRig* rig, uint32_t slots) {
    rig->bed.file(1u << 20, false);
    rig->bed.plan.read_chunk_bytes = guanaco::kPage * (1 + below(3));
    rig->bed.plan.staging_bytes = below(2) * (1u << 16);
    rig->bed.size_class(slots, {2 * guanaco::kPage, 5000});
    rig->bed.size_class(3, {300, guanaco::kPage});
    rig->bed.group(0, 0, 8, {{96, 2 * guanaco::kPage}, {0x40000, 5000}});
    rig->bed.group(1, 0, 8, {{0x50000, 2 * guanaco::kPage}, {0x70000, 5000}});
    rig->bed.group(2, 1, 8, {{0x90001, 300}, {0xa0020, guanaco::kPage}});
    rig->start();
  }
  // A pending read fails in one step of `fail_one_in`; all are well again in one of `mend_one_in`.
  void disturb(StoreRig* rig, size_t fail_one_in, int most_failures, size_t mend_one_in) {
    ScriptedBackend& backend = *rig->backend;
    if (below(fail_one_in) == 0 && !backend.pending.empty()) {
      const guanaco::Read& read = backend.pending[below(backend.pending.size())];
      backend.errors[{0, read.offset}] = 1 + static_cast<int>(below(static_cast<size_t>(most_failures)));
    }
    if (below(mend_one_in) == 0) backend.errors.clear();
    while (!backend.pending.empty() && below(3) != 0) backend.finish(below(backend.pending.size()));
  }
  // Takes another lease, or ends one: most are waited for and checked first.
  void take_or_release(StoreRig* rig) {
    if (leases_.size() < 2 && below(2) == 0) {
      const Experts experts = some_experts(4);
      const size_t n_transient = below(experts.size() + 1);
      leases_.emplace_back();
      const uint32_t group = static_cast<uint32_t>(below(3));
      guanaco::Lease* lease = &leases_.back();
      if (!rig->acquire(lease, group, experts, n_transient) && !rig->store->acquire_in_waves(group, {1, 0}, lease)) {
        leases_.pop_back();
      }
      return;
    }
    if (leases_.empty()) return;
    const size_t which = below(leases_.size());
    if (below(3) != 0) {
      const bool in_waves = leases_[which].waves.on;
      const bool whole = in_waves ? rig->use_in_waves(&leases_[which]) : rig->wait_all(&leases_[which]);
      if (whole && !in_waves) rig->check_bytes(leases_[which]);
      ++(in_waves ? n_waves : whole ? n_good : n_failed);
    }
    rig->store->release(&leases_[which]);
    leases_.erase(leases_.begin() + static_cast<long>(which));
  }
  void end(StoreRig* rig) {
    for (guanaco::Lease& lease : leases_) rig->store->release(&lease);
    leases_.clear();
    rig->backend->errors.clear();
    // Nothing is lost: every slot can be filled again.
    Experts all(rig->store->n_slots(0));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    rig->serve(0, all);
    rig->serve(2, {5, 6, 7});
  }

  uint64_t n_good = 0, n_failed = 0, n_waves = 0;

 private:
  std::mt19937 random_;
  std::vector<guanaco::Lease> leases_;
};
