#include "overlap.h"

#include <algorithm>
#include <cstring>

namespace guanaco {

namespace {

void set_rows(Tensor* tensor, int64_t n_rows, char* data) {
  tensor->ne[1] = n_rows;
  tensor->nb[1] = static_cast<size_t>(tensor->ne[0]) * tensor->nb[0];
  tensor->nb[2] = tensor->nb[3] = tensor->nb[1] * static_cast<size_t>(n_rows);
  tensor->data = data;
  tensor->view_src = nullptr;
  tensor->view_offs = 0;
  tensor->buffer = nullptr;
}

bool is_on_host(const EngineApi& api, const Tensor* tensor) {
  void* buffer = tensor->buffer != nullptr || tensor->view_src == nullptr ? tensor->buffer : tensor->view_src->buffer;
  return tensor->data != nullptr && (buffer == nullptr || api.buffer_is_host(buffer));
}

bool is_one_token(const Tensor* tensor) {
  return tensor->type == kTypeF32 && tensor->nb[0] == sizeof(float) && tensor->ne[2] == 1 && tensor->ne[3] == 1;
}

}  // namespace

Overlap::Overlap(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats)
    : plan_(plan), api_(api), stats_(stats), mini_(mini) {}

bool Overlap::is_understood(const PartUse& use, int64_t n_experts) const {
  const Tensor* input = use.node->src[1];
  return is_one_token(use.node) && is_on_host(api_, use.node) && use.node->ne[1] == n_experts && input != nullptr &&
         is_one_token(input) && is_on_host(api_, input) && (input->ne[1] == 1 || input->ne[1] == n_experts);
}

bool Overlap::can_run(const Binding& binding) {
  const int all = static_cast<int>(plan_.threads);
  if (!plan_.overlap || binding.ids->ne[1] != 1 || !mini_->usable() || mini_->threads(all) != all) return false;
  return std::all_of(binding.uses.begin(), binding.uses.end(),
                     [&](const PartUse& use) { return is_understood(use, binding.ids->ne[0]); });
}

Tensor* Overlap::clone(std::unique_ptr<char[]>* storage, const Tensor* original) const {
  if (*storage == nullptr) *storage = std::make_unique<char[]>(api_.tensor_bytes);
  std::memcpy(storage->get(), original, api_.tensor_bytes);
  return reinterpret_cast<Tensor*>(storage->get());
}

bool Overlap::run(Binding* binding, PartUse* use, Tensor* shadow, Store* store, std::string* error) {
  left_.resize(static_cast<size_t>(binding->ids->ne[0]));
  for (size_t i = 0; i < left_.size(); ++i) left_[i] = i;
  while (!left_.empty()) {
    ready_.clear();
    const auto is_ready = [&](size_t place) {
      const uint32_t slot = static_cast<uint32_t>(binding->id_buffer[place]) + binding->lowest_slot;
      return store->has_part(binding->group, slot, use->part);
    };
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(ready_), is_ready);
    if (ready_.empty()) {
      if (store->wait_for_more(&binding->lease)) continue;
      *error = store->take_error();
      return false;
    }
    left_.erase(std::remove_if(left_.begin(), left_.end(), is_ready), left_.end());
    if (!compute(*binding, *use, shadow)) {
      *error = "the engine could not compute the experts that were there";
      return false;
    }
    if (!left_.empty()) add((*stats_)->overlapped, ready_.size());
  }
  return true;
}

bool Overlap::compute(const Binding& binding, const PartUse& use, Tensor* shadow) {
  const Tensor* node = use.node;
  const Tensor* given = node->src[1];
  const int64_t n = static_cast<int64_t>(ready_.size());
  ready_ids_.clear();
  for (const size_t place : ready_) ready_ids_.push_back(binding.id_buffer[place]);

  Tensor* ids = clone(&ids_, reinterpret_cast<const Tensor*>(binding.ids_shadow.get()));
  ids->ne[0] = n;
  ids->nb[1] = ids->nb[2] = ids->nb[3] = sizeof(int32_t) * static_cast<size_t>(n);
  ids->data = ready_ids_.data();

  Tensor* input = clone(&input_, given);
  input->op = api_.op_none;
  std::fill(std::begin(input->src), std::end(input->src), nullptr);
  if (given->ne[1] > 1) {
    const size_t row_bytes = static_cast<size_t>(given->ne[0]) * given->nb[0];
    rows_in_.resize(row_bytes * ready_.size());
    for (size_t i = 0; i < ready_.size(); ++i) {
      std::memcpy(&rows_in_[i * row_bytes], static_cast<const char*>(given->data) + ready_[i] * given->nb[1], row_bytes);
    }
    set_rows(input, n, rows_in_.data());
  }

  Tensor* product = clone(&product_, node);
  product->op = api_.op_mul_mat_id;
  const size_t out_bytes = static_cast<size_t>(node->ne[0]) * node->nb[0];
  rows_out_.resize(out_bytes * ready_.size());
  set_rows(product, n, rows_out_.data());
  product->src[0] = shadow;
  product->src[1] = input;
  product->src[2] = ids;
  if (!mini_->run({product}, static_cast<int>(plan_.threads))) return false;
  for (size_t i = 0; i < ready_.size(); ++i) {
    std::memcpy(static_cast<char*>(node->data) + ready_[i] * node->nb[1], &rows_out_[i * out_bytes], out_bytes);
  }
  return true;
}

}  // namespace guanaco
