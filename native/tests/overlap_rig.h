// Layers whose products compute numbers, and what they come to when everything is resident.
#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <vector>

#include "engine_rig.h"
#include "fake_engine.h"
#include "overlap.h"

// What the library computed by itself since the last call.
inline std::vector<fake::OwnRun> runs() {
  std::vector<fake::OwnRun> result;
  fake_engine_take_runs(&result);
  return result;
}

// A layer whose products compute: gate and up on one row a token for all experts, down on a row for each.
struct ComputingLayer {
  ComputingLayer(EngineRig* rig, TestGraph* graph, uint32_t group, const Rows& wanted)
      : layer(rig->add_layer(graph, group, wanted)) {
    const int64_t n_used = static_cast<int64_t>(wanted[0].size()), n_tokens = static_cast<int64_t>(wanted.size());
    for (size_t i = 0; i < 3; ++i) {
      guanaco::Tensor* input = layer.products[i]->src[1];
      give_data(layer.products[i], 4, n_used, n_tokens);
      give_data(input, 1, i == 2 ? n_used : 1, n_tokens);
      for (int64_t row = 0; row < input->ne[1] * n_tokens; ++row) {
        static_cast<float*>(input->data)[row] = 1.5f + static_cast<float>(row + 7 * static_cast<int64_t>(i));
      }
    }
  }
  void give_data(guanaco::Tensor* tensor, int64_t ne0, int64_t ne1, int64_t ne2) {
    tensor->ne[0] = ne0;
    tensor->ne[1] = ne1;
    tensor->ne[2] = ne2;
    tensor->nb[0] = sizeof(float);
    for (int i = 1; i < 4; ++i) tensor->nb[i] = tensor->nb[i - 1] * static_cast<size_t>(tensor->ne[i - 1]);
    tensor->data = numbers.emplace_back(static_cast<size_t>(ne0 * ne1 * ne2), -1.0f).data();
  }
  std::vector<float> output() const {
    std::vector<float> all;
    for (const guanaco::Tensor* product : layer.products) {
      const float* values = static_cast<const float*>(product->data);
      all.insert(all.end(), values, values + product->ne[0] * product->ne[1] * product->ne[2]);
    }
    return all;
  }

  MoeLayer& layer;
  std::deque<std::vector<float>> numbers;
};

// What a layer computes when everything is resident.
inline std::vector<float> expected_output(const Rows& wanted) {
  EngineRig rig(1, 16);
  rig.bed.plan.overlap = false;
  rig.start();
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, wanted);
  CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);
  return computing.output();
}
