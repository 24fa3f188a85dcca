// What an eviction policy may know and decide. A policy sees the past only: selections as they are served.
//
// One instance per size class, used from the graph thread. Slots are indices into the class.
#pragma once

#include <cstdint>
#include <memory>

namespace guanaco {

class Policy {
 public:
  virtual ~Policy() = default;
  // A resident expert was selected.
  virtual void used(uint32_t slot) = 0;
  // An expert was placed in `slot`. `transient`: by a large prompt batch, so it must not displace what decoding uses.
  virtual void placed(uint32_t slot, bool transient) = 0;
  // The slot to reuse, or -1. Slots with a pin are in use by the running graph or by a read and must not be named.
  virtual int32_t victim(const uint32_t* pins) = 0;
};

std::unique_ptr<Policy> make_lru(uint32_t n_slots);

}  // namespace guanaco
