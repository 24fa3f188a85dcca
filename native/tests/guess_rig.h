// A store whose guesses are read step by step.
#pragma once

#include <string>
#include <vector>

#include "store_rig.h"

using guanaco::kPage;
using guanaco::Lease;

inline constexpr uint64_t kSecondPart = 0x80000, kNextLayer = 0x100000;
inline constexpr uint64_t kAny = 1u << 30;
inline const std::vector<uint32_t> kOrder = {0, 1};

inline uint64_t offset_of(uint32_t group, uint32_t part, uint64_t expert) {
  return group * kNextLayer + part * kSecondPart + expert * 2 * kPage;
}

// Two layers of 16 experts in one pool, two parts of two pages, read a page at a time.
struct GuessRig : StoreRig {
  explicit GuessRig(uint32_t slots, const std::string& policy = "lru") {
    bed.file(2u << 20, false);
    bed.plan.policy = policy;
    bed.plan.read_chunk_bytes = kPage;
    bed.size_class(slots, {2 * kPage, 2 * kPage});
    for (uint32_t group = 0; group < 2; ++group) {
      bed.group(group, 0, 16, {{offset_of(group, 0, 0), 2 * kPage}, {offset_of(group, 1, 0), 2 * kPage}});
    }
    start();
    backend->automatic = false;
  }
  ~GuessRig() { backend->automatic = true; }
  std::vector<uint64_t> pending() const {
    std::vector<uint64_t> offsets;
    for (const guanaco::Read& read : backend->pending) offsets.push_back(read.offset);
    return offsets;
  }
  // One guess that is read whole.
  void read_guess(uint32_t group, const Experts& experts) {
    store->guess(group, kOrder, experts, kAny);
    while (!backend->pending.empty()) {
      backend->finish_all();
      store->poll();
    }
  }
  void serve_at_once(uint32_t group, const Experts& experts) {
    backend->automatic = true;
    serve(group, experts);
    backend->automatic = false;
  }
};
