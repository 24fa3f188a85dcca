#include "router_bed.h"

#include <algorithm>
#include <cstring>

using guanaco::Tensor;

namespace {

void set_shape(Tensor* tensor, int64_t ne0, int64_t ne1) {
  tensor->ne[0] = ne0;
  tensor->ne[1] = ne1;
  tensor->ne[2] = tensor->ne[3] = 1;
  tensor->nb[0] = sizeof(float);
  tensor->nb[1] = sizeof(float) * static_cast<size_t>(ne0);
  tensor->nb[2] = tensor->nb[3] = tensor->nb[1] * static_cast<size_t>(ne1);
}

}  // namespace

Tensor* RouterBed::leaf(int64_t ne0, int64_t ne1, const std::vector<float>& values) {
  Tensor* tensor = graph.leaf();
  set_shape(tensor, ne0, ne1);
  tensor->data = values_.emplace_back(static_cast<size_t>(ne0 * ne1)).data();
  if (!values.empty()) set(tensor, values);
  return tensor;
}

Tensor* RouterBed::random_leaf(int64_t ne0, int64_t ne1) {
  return leaf(ne0, ne1, random_values(static_cast<size_t>(ne0 * ne1)));
}

Tensor* RouterBed::node(fake::Op op, int64_t ne0, int64_t ne1, std::vector<Tensor*> sources) {
  Tensor* tensor = leaf(ne0, ne1);
  tensor->op = op;
  std::copy(sources.begin(), sources.end(), tensor->src);
  graph.graph.nodes.push_back(tensor);
  return tensor;
}

Tensor* RouterBed::view(fake::Op op, Tensor* root, int64_t ne0, int64_t ne1, size_t offset) {
  Tensor* tensor = graph.leaf();
  set_shape(tensor, ne0, ne1);
  tensor->type = root->type;
  tensor->op = op;
  tensor->src[0] = root;
  tensor->view_src = root->view_src == nullptr ? root : root->view_src;
  tensor->view_offs = offset * sizeof(float) + (root->view_src == nullptr ? 0 : root->view_offs);
  tensor->data = static_cast<char*>(tensor->view_src->data) + tensor->view_offs;
  graph.graph.nodes.push_back(tensor);
  return tensor;
}

Tensor* RouterBed::top(Tensor* scores, int64_t top_k) {
  Tensor* sorted = node(fake::kArgsort, scores->ne[0], scores->ne[1], {scores});
  sorted->type = guanaco::kTypeI32;
  Tensor* best = view(fake::kView, sorted, top_k, scores->ne[1]);
  best->nb[1] = sorted->nb[1];
  return best;
}

Tensor* RouterBed::scores(Tensor* state, int64_t n_expert) {
  const int64_t n_rows = state->ne[1];
  Tensor* normed = node(fake::kRmsNorm, kWidth, n_rows, {state});
  Tensor* scaled = node(fake::kMul, kWidth, n_rows, {normed, random_leaf(kWidth, 1)});
  router_weight = random_leaf(kWidth, n_expert);
  Tensor* logits = node(fake::kMulMat, n_expert, n_rows, {router_weight, scaled});
  bias = random_leaf(n_expert, 1);
  return node(fake::kAdd, n_expert, n_rows, {logits, bias});
}

std::vector<float> RouterBed::random_values(size_t n) {
  std::vector<float> values(n);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random_);
  return values;
}

void RouterBed::set(Tensor* tensor, const std::vector<float>& values) const {
  std::copy(values.begin(), values.end(), static_cast<float*>(tensor->data));
}

std::vector<int32_t> RouterBed::ids(const Tensor* selection) {
  std::vector<int32_t> result;
  for (int64_t row = 0; row < selection->ne[1]; ++row) {
    for (int64_t k = 0; k < selection->ne[0]; ++k) {
      int32_t id = 0;
      std::memcpy(&id, static_cast<const char*>(selection->data) + static_cast<size_t>(row) * selection->nb[1] +
                           static_cast<size_t>(k) * selection->nb[0], sizeof id);
      result.push_back(id);
    }
  }
  return result;
}

guanaco::NodePositions RouterBed::positions() const {
  guanaco::NodePositions result;
  for (size_t i = 0; i < graph.graph.nodes.size(); ++i) result[graph.graph.nodes[i]] = static_cast<int>(i);
  return result;
}
