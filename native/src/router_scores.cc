#include "router_scores.h"

#include <algorithm>
#include <cstring>

namespace guanaco {

namespace {

constexpr int kMostSteps = 8;  // views between a selection and the sort it is the top of

bool is_sort(const EngineApi& api, const Tensor* tensor) {
  const char* op = api.op_name(tensor->op);
  return op != nullptr && (std::strcmp(op, "ARGSORT") == 0 || std::strcmp(op, "TOP_K") == 0);
}

const Tensor* sorted_by(const EngineApi& api, const Tensor* ids) {
  const Tensor* at = ids;
  for (int step = 0; step < kMostSteps && at != nullptr && at->type == kTypeI32; ++step) {
    if (is_sort(api, at)) return at->src[0];
    at = at->view_src != nullptr ? at->view_src : at->src[0];
  }
  return nullptr;
}

}  // namespace

bool read_router_scores(const EngineApi& api, const Tensor* ids, uint32_t n_expert, const std::vector<int32_t>& rows,
                        std::vector<float>* scores) {
  scores->clear();
  const Tensor* ranked = sorted_by(api, ids);
  const size_t n_used = static_cast<size_t>(ids->ne[0]), n_rows = static_cast<size_t>(ids->ne[1]);
  if (ranked == nullptr || ranked->type != kTypeF32 || ranked->data == nullptr || ranked->nb[0] != sizeof(float) ||
      ranked->ne[0] != static_cast<int64_t>(n_expert) || ranked->ne[1] != ids->ne[1] || ranked->ne[2] != 1 ||
      ranked->ne[3] != 1 || rows.empty()) {
    return false;
  }
  const char* data = static_cast<const char*>(ranked->data);
  std::vector<char> copy;
  if (!api.is_on_host(ranked)) {
    copy.resize((n_rows - 1) * ranked->nb[1] + n_expert * sizeof(float));
    api.tensor_get(ranked, copy.data(), 0, copy.size());
    data = copy.data();
  }
  std::vector<float> all(n_expert);
  std::vector<bool> is_selected(n_expert);
  for (size_t row = 0; row < n_rows; ++row) {
    std::memcpy(all.data(), data + row * ranked->nb[1], n_expert * sizeof(float));
    std::fill(is_selected.begin(), is_selected.end(), false);
    float least = 0;
    for (size_t k = 0; k < n_used; ++k) {
      const size_t expert = static_cast<size_t>(rows[row * n_used + k]);
      is_selected[expert] = true;
      least = k == 0 ? all[expert] : std::min(least, all[expert]);
      scores->push_back(all[expert]);
    }
    // A selection that was overwritten, or memory that was used again, would show here.
    for (size_t expert = 0; expert < n_expert; ++expert) {
      if (is_selected[expert] || !(all[expert] > least)) continue;
      scores->clear();
      return false;
    }
  }
  return true;
}

}  // namespace guanaco
