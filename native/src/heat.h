// How hot each expert is, in shared memory: written by the graph thread as layers are served, read at any time.
//
// Owns: the layout, which engine/heat.py mirrors. A layer's row is as of its last selection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache.h"
#include "plan.h"

namespace guanaco {

constexpr uint64_t kHeatMagic = 0x3154414548554e47ull;  // "GNUHEAT1"
constexpr uint64_t kHeatVersion = 1;
constexpr uint16_t kHeatResident = 1u << 15;
constexpr uint16_t kMostHeat = kHeatResident - 1;

// magic, version, number of layers, number of experts of all layers (words of 64 bits); {layer, experts} of each layer
// (32); uses of each expert by decoding (32); heat of each expert (16): share of the layer's recent selections that
// named it, times kMostHeat, and kHeatResident while it has a slot.
class HeatMap {
 public:
  // Maps `plan.heat_path` (created by the parent, at least nbytes()); does nothing without one.
  explicit HeatMap(const LoadPlan& plan);
  ~HeatMap();
  HeatMap(const HeatMap&) = delete;
  HeatMap& operator=(const HeatMap&) = delete;

  static uint64_t nbytes(const LoadPlan& plan);
  // After the cache served it.
  void served(const Cache& cache, const Selection& selection);

 private:
  char* base_ = nullptr;
  uint64_t nbytes_ = 0;
  std::vector<size_t> first_;  // [group] index of its first expert, and the number of all at the end
  uint32_t* uses_ = nullptr;
  uint16_t* heat_ = nullptr;
};

}  // namespace guanaco
