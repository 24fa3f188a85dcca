#include "overlap.h"

#include <algorithm>
#include <cstring>

namespace guanaco {

namespace {

void set_rows(Tensor* tensor, int64_t n_used, int64_t n_tokens, void* data) {
  tensor->ne[1] = n_used;
  tensor->ne[2] = n_tokens;
  tensor->nb[1] = static_cast<size_t>(tensor->ne[0]) * tensor->nb[0];
  tensor->nb[2] = tensor->nb[1] * static_cast<size_t>(n_used);
  tensor->nb[3] = tensor->nb[2] * static_cast<size_t>(n_tokens);
  tensor->data = data;
  tensor->view_src = nullptr;
  tensor->view_offs = 0;
  tensor->buffer = nullptr;
}

// Where the row of a place in the selection is.
char* row_at(const Tensor* tensor, size_t place, size_t n_used) {
  const size_t of_token = tensor->ne[1] == 1 ? 0 : place % n_used;
  return static_cast<char*>(tensor->data) + place / n_used * tensor->nb[2] + of_token * tensor->nb[1];
}

bool is_on_host(const EngineApi& api, const Tensor* tensor) { return tensor->data != nullptr && api.is_on_host(tensor); }

bool is_rows(const Tensor* tensor, int64_t n_tokens) {
  return tensor->type == kTypeF32 && tensor->nb[0] == sizeof(float) && tensor->ne[2] == n_tokens && tensor->ne[3] == 1;
}

}  // namespace

Overlap::Overlap(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats)
    : plan_(plan), api_(api), stats_(stats), mini_(mini) {}

bool Overlap::is_understood(const PartUse& use, const Tensor* ids) const {
  const Tensor* node = use.node;
  const Tensor* input = node->src[1];
  return is_rows(node, ids->ne[1]) && is_on_host(api_, node) && node->ne[1] == ids->ne[0] && input != nullptr &&
         is_rows(input, ids->ne[1]) && is_on_host(api_, input) && (input->ne[1] == 1 || input->ne[1] == ids->ne[0]);
}

bool Overlap::can_run(const Binding& binding) {
  const int all = plan_.threads_for(binding.ids->ne[1]);
  if (!plan_.overlap || !mini_->usable() || mini_->threads(all) != all) return false;
  return std::all_of(binding.uses.begin(), binding.uses.end(),
                     [&](const PartUse& use) { return is_understood(use, binding.ids); });
}

Tensor* Overlap::clone(std::unique_ptr<char[]>* storage, const Tensor* original) const {
  if (*storage == nullptr) *storage = std::make_unique<char[]>(api_.tensor_bytes);
  std::memcpy(storage->get(), original, api_.tensor_bytes);
  return reinterpret_cast<Tensor*>(storage->get());
}

// The places of one expert lie together, in the order of the rows.
void Overlap::sort_places(const Binding& binding) {
  begin_.assign(plan_.groups[binding.group].n_expert + 1, 0);
  places_.resize(binding.rows.size());
  for (const int32_t expert : binding.rows) ++begin_[static_cast<size_t>(expert) + 1];
  for (size_t expert = 1; expert < begin_.size(); ++expert) begin_[expert] += begin_[expert - 1];
  for (size_t place = 0; place < places_.size(); ++place) {
    places_[begin_[static_cast<size_t>(binding.rows[place])]++] = static_cast<uint32_t>(place);
  }
  std::copy_backward(begin_.begin(), begin_.end() - 1, begin_.end());
  begin_[0] = 0;
}

bool Overlap::run(Binding* binding, PartUse* use, Tensor* shadow, Store* store, std::string* error) {
  sort_places(*binding);
  const size_t product = static_cast<size_t>(use - binding->uses.data());
  arrivals_.begin(store, &binding->lease, product, use->part);
  while (!arrivals_.is_done()) {
    if (!arrivals_.take(&ready_, error)) return false;
    for (size_t next = 0; next < ready_.size();) {
      // What arrives meanwhile makes room for what waits for a buffer.
      if (next > 0 && !arrivals_.is_done()) store->poll();
      if (is_given_up(**stats_)) return false;
      const size_t first = next;
      next = gather_rows(*binding, first);
      if (!compute(*binding, *use, shadow)) {
        *error = "the engine could not compute the experts that were there";
        return false;
      }
      for (size_t i = first; i < next; ++i) arrivals_.used(ready_[i]);
    }
    if (!arrivals_.is_done()) add((*stats_)->overlapped, ready_.size());
  }
  return true;
}

// The places of whole experts from `next` on, and the ids they have in the shadow; returns the expert after them.
size_t Overlap::gather_rows(const Binding& binding, size_t next) {
  const Lease& lease = binding.lease;
  gathered_.clear();
  ready_ids_.clear();
  const auto begin_of = [&](size_t i) { return places_.begin() + begin_[static_cast<size_t>(lease.experts[ready_[i]])]; };
  const auto end_of = [&](size_t i) { return places_.begin() + begin_[static_cast<size_t>(lease.experts[ready_[i]]) + 1]; };
  do {
    gathered_.insert(gathered_.end(), begin_of(next), end_of(next));
    for (auto place = begin_of(next); place != end_of(next); ++place) {
      ready_ids_.push_back(lease.waves.on ? wave_id(binding, ready_[next]) : binding.id_buffer[*place]);
    }
    ++next;
  } while (next < ready_.size() && gathered_.size() + static_cast<size_t>(end_of(next) - begin_of(next)) <= kMostRows);
  return next;
}

int32_t Overlap::wave_id(const Binding& binding, size_t expert) const {
  const uint32_t id = arrivals_.slot(expert) - binding.lowest_slot;
  const bool is_wrong = plan_.testing && (*stats_)->mutation != 0;  // the control: it has to be noticed
  return static_cast<int32_t>(is_wrong ? (id + 1) % (binding.highest_slot - binding.lowest_slot + 1) : id);
}

bool Overlap::compute(const Binding& binding, const PartUse& use, Tensor* shadow) {
  const uint32_t* const places = gathered_.data();
  const size_t n = gathered_.size();
  const Tensor* node = use.node;
  const Tensor* given = node->src[1];
  const size_t n_used = static_cast<size_t>(binding.ids->ne[0]);
  // Of one token its experts side by side, as the engine has them; of a batch one expert a row.
  const bool is_one_token = binding.ids->ne[1] == 1;
  const int64_t side = is_one_token ? static_cast<int64_t>(n) : 1, rows = is_one_token ? 1 : static_cast<int64_t>(n);

  Tensor* ids = clone(&ids_, reinterpret_cast<const Tensor*>(binding.ids_shadow.get()));
  ids->ne[0] = side;
  ids->nb[0] = sizeof(int32_t);
  set_rows(ids, rows, 1, ready_ids_.data());

  Tensor* input = clone(&input_, given);
  input->op = api_.op_none;
  std::fill(std::begin(input->src), std::end(input->src), nullptr);
  if (!is_one_token || given->ne[1] > 1) {
    const size_t row_bytes = static_cast<size_t>(given->ne[0]) * given->nb[0];
    rows_in_.resize(row_bytes * n);
    for (size_t i = 0; i < n; ++i) std::memcpy(&rows_in_[i * row_bytes], row_at(given, places[i], n_used), row_bytes);
    set_rows(input, side, rows, rows_in_.data());
  }

  Tensor* product = clone(&product_, node);
  product->op = api_.op_mul_mat_id;
  const size_t out_bytes = static_cast<size_t>(node->ne[0]) * node->nb[0];
  rows_out_.resize(out_bytes * n);
  set_rows(product, side, rows, rows_out_.data());
  product->src[0] = shadow;
  product->src[1] = input;
  product->src[2] = ids;
  if (!mini_->run({product}, plan_.threads_for(binding.ids->ne[1]))) return false;
  for (size_t i = 0; i < n; ++i) std::memcpy(row_at(node, places[i], n_used), &rows_out_[i * out_bytes], out_bytes);
  return true;
}

}  // namespace guanaco
