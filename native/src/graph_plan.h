// What the seam does in one graph: which nodes to ask for, which to point at slots.
//
// Owns: finding expert products (MUL_MAT_ID over a managed tensor) and the node that produces their ids, from the
// graph itself. A plan is cached while the graph is the same; validity is checked node by node, so a graph rebuilt
// at the same address is noticed. Leaves every node it does not understand alone and counts it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine_api.h"
#include "mapping.h"
#include "plan.h"
#include "router_cone.h"
#include "store.h"

namespace guanaco {

// One expert product.
struct PartUse {
  Tensor* node = nullptr;
  Tensor* weights = nullptr;  // its own src[0] and src[2], put back after the graph
  Tensor* ids = nullptr;
  int node_index = 0;
  uint32_t part = 0;
  uint64_t delta = 0;  // a view may begin inside the slice
  std::unique_ptr<char[]> shadow;
  bool taken = false;  // of the running graph: computed by us, not by the engine
};

// The products of one group that share one selection.
struct Binding {
  uint32_t group = 0;
  Tensor* ids = nullptr;
  int ids_index = -1;  // -1: known before the graph runs
  std::vector<PartUse> uses;
  std::vector<uint32_t> part_order;
  std::unique_ptr<RouterCone> cone;  // this layer's router on its own; null when not cut out or not understood
  std::unique_ptr<char[]> ids_shadow;
  std::vector<int32_t> id_buffer;
  std::vector<int32_t> rows;  // the selection, row by row; only while it overlaps
  Lease lease;
  uint32_t lowest_slot = 0, highest_slot = 0;
  bool served = false;
  bool overlaps = false;  // its products may be run by us while reads are pending
};

// kIds: the selection is computed here. kUse: a product. kWait: a later part may still be on its way.
// kRelease: before a selection that no node of this graph produces, so that leases of earlier layers end.
enum class EventKind { kIds, kUse, kWait, kRelease };

struct Event {
  EventKind kind = EventKind::kIds;
  Tensor* node = nullptr;
  int node_index = 0;
  uint32_t binding = 0;
  uint32_t use = 0;
};

// Any MUL_MAT_ID of the graph as it was when the plan was made.
struct Product {
  int node_index = 0;
  const Tensor* weights = nullptr;
  const Tensor* ids = nullptr;
};

struct GraphPlan {
  Graph* graph = nullptr;
  int n_nodes = 0;
  std::vector<Binding> bindings;
  std::vector<Event> events;      // in the order of the nodes
  std::vector<Product> products;  // managed or not
  bool has_cones = false;         // routers were cut out, those that could be
  uint32_t unmanaged = 0;         // products over expert bytes that could not be understood
};

// Finds the part whose tensor holds (file, offset).
class PartIndex {
 public:
  explicit PartIndex(const LoadPlan& plan);
  bool find(uint32_t file, uint64_t offset, uint32_t* group, uint32_t* part) const;

 private:
  struct Entry {
    uint32_t file;
    uint64_t begin, end;
    uint32_t group, part;
  };
  std::vector<Entry> entries_;
};

void build_graph_plan(const LoadPlan& plan, const EngineApi& api, const Mappings& mappings, const PartIndex& index,
                      Graph* graph, GraphPlan* result);
// True when `plan` still describes `graph`.
bool still_valid(const EngineApi& api, const GraphPlan& plan, Graph* graph);

}  // namespace guanaco
