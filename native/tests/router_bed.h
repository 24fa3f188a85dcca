// Routers that really compute: from a state through a norm and a product to the experts with the best scores.
#pragma once

#include <random>
#include <vector>

#include "engine_rig.h"
#include "router_cone.h"

constexpr int64_t kWidth = 8;

// Tensors with data, and graphs of them.
class RouterBed {
 public:
  // A tensor outside the graph: a weight or an input.
  guanaco::Tensor* leaf(int64_t ne0, int64_t ne1, const std::vector<float>& values = {});
  guanaco::Tensor* random_leaf(int64_t ne0, int64_t ne1);
  guanaco::Tensor* node(fake::Op op, int64_t ne0, int64_t ne1, std::vector<guanaco::Tensor*> sources);
  // Another look at the bytes of `root`, from its float number `offset` on.
  guanaco::Tensor* view(fake::Op op, guanaco::Tensor* root, int64_t ne0, int64_t ne1, size_t offset = 0);
  // The `top_k` best of `scores`, as the engine takes them: a view of a sort.
  guanaco::Tensor* top(guanaco::Tensor* scores, int64_t top_k);
  // norm(state) * weight, times the router's weight, plus a bias: the scores of `n_expert` experts.
  guanaco::Tensor* scores(guanaco::Tensor* state, int64_t n_expert);

  std::vector<float> random_values(size_t n);
  void set(guanaco::Tensor* tensor, const std::vector<float>& values) const;
  static std::vector<int32_t> ids(const guanaco::Tensor* selection);
  guanaco::NodePositions positions() const;

  TestGraph graph;
  guanaco::Tensor* router_weight = nullptr;  // of the last scores()
  guanaco::Tensor* bias = nullptr;

 private:
  std::deque<std::vector<float>> values_;
  std::mt19937 random_{11};
};
