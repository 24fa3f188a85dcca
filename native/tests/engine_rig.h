// Graphs of MoE layers over a mapped file of known bytes, run by the fake engine through the seam.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bed.h"
#include "check.h"
#include "fake_engine.h"
#include "graph_plan.h"
#include "mapping.h"
#include "pagecache.h"
#include "replay.h"
#include "scripted_backend.h"
#include "seam.h"
#include "store.h"

using Rows = std::vector<std::vector<int32_t>>;

// One layer of a graph. Its products, in order, are in `products`, each over the part of the same place in `parts`.
struct MoeLayer {
  uint32_t group = 0;
  guanaco::Tensor* sorted = nullptr;  // the router's sorted experts; null when `ids` is an input
  guanaco::Tensor* ids = nullptr;
  std::vector<guanaco::Tensor*> products;
  std::vector<uint32_t> parts;
  Rows wanted;
};

// A graph and everything it points to. Nodes are added in the order in which they run.
class TestGraph {
 public:
  guanaco::Tensor* node(fake::Op op, std::vector<guanaco::Tensor*> sources = {});
  guanaco::Tensor* leaf();
  // A selection computed by this graph: a sort, and a view of its first `top_k` columns.
  MoeLayer& router(uint32_t group, const Rows& wanted, uint32_t n_expert);
  // A selection that is there before the graph runs.
  MoeLayer& input_ids(uint32_t group, const Rows& wanted);
  guanaco::Tensor* product(guanaco::Tensor* weights, guanaco::Tensor* ids);
  void on_compute(guanaco::Tensor* node, std::function<void()> action);
  // Writes other experts into a layer's selection, at the next run.
  void select(MoeLayer* layer, const Rows& wanted);
  // Forgets all nodes, keeps the address: as the engine does when it builds a graph anew in the same memory.
  void clear();

  guanaco::Graph graph;
  std::deque<MoeLayer> layers;
  std::deque<fake::FullTensor> tensors;
  std::deque<std::vector<int32_t>> numbers;

 private:
  std::deque<std::function<void()>> actions_;
};

class EngineRig {
 public:
  // `n_layers` groups of three parts each over one file; after it, change `bed.plan` and call start().
  explicit EngineRig(uint32_t n_layers, uint32_t slots, uint32_t n_expert = 16);
  ~EngineRig();
  void start();
  // Part of start(): the model's tensors over a mapping of the file.
  void make_weights(char* base);

  // Appends one layer: router, gate, up, activation, down, sum.
  MoeLayer& add_layer(TestGraph* graph, uint32_t group, const Rows& wanted);
  // The products of a layer whose selection is there already.
  void add_products(TestGraph* graph, MoeLayer* layer, const std::vector<uint32_t>& parts);
  guanaco::Tensor* weights(uint32_t group, uint32_t part) { return &weights_[group * 3 + part]; }

  int run(TestGraph* graph);
  // Every product of the graph saw the experts its rows wanted.
  void check_products(const TestGraph& graph);
  void check_products(const TestGraph& graph, const guanaco::Scheduler& ran_by) const;
  // ... and saw them in slots, or in the file's mapping.
  bool bound(const guanaco::Tensor* product);

  Bed bed;
  guanaco::Stats stats{""};
  guanaco::Mappings mappings{bed.plan, &stats};
  guanaco::EngineApi api;
  guanaco::Replay replay;
  guanaco::Scheduler scheduler;
  guanaco::UserCallback user;
  std::unique_ptr<ScriptedBackend> backend;
  std::unique_ptr<guanaco::Store> store;
  std::unique_ptr<guanaco::PageCacheStore> pagecache;
  std::unique_ptr<guanaco::Seam> seam;

 private:
  std::deque<fake::FullTensor> weights_;
  fake::Buffer host_;
  char* base_ = nullptr;
};
