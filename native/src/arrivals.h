// The experts of one product, in the order in which they are there.
//
// Owns: which of a lease's experts a product has not used yet, and where the others are. Leaves reading to the store.
// Hides whether the lease holds all of its experts or lets them pass through a few slots.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store.h"

namespace guanaco {

class Arrivals {
 public:
  // `product`: its place among those of the selection, in the order of the graph; `part`: what it multiplies with.
  void begin(Store* store, Lease* lease, size_t product, uint32_t part);
  bool is_done() const { return left_.empty(); }
  // Indices of the lease's experts that are there and were not taken before; waits until there are some. False, with a
  // reason, when a read failed for good.
  bool take(std::vector<size_t>* experts, std::string* error);
  // The slot of an expert that was taken, until it is used.
  uint32_t slot(size_t expert) const;
  // The product is done with it.
  void used(size_t expert);

 private:
  bool is_there(size_t expert) const;
  // Where the lease's missed experts pass through: index in Waves::missed, or -1.
  int32_t missed(size_t expert) const { return missed_.empty() ? -1 : missed_[expert]; }

  Store* store_ = nullptr;
  Lease* lease_ = nullptr;
  size_t product_ = 0;
  uint32_t part_ = 0;
  std::vector<size_t> left_;
  std::vector<int32_t> missed_;  // empty: the lease holds all
};

}  // namespace guanaco
