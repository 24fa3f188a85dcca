// A store over a scripted back end, and what a test asks of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
