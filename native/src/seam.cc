#include "seam.h"

#include <algorithm>
#include <cstring>

#include "router_scores.h"

namespace guanaco {

namespace {

constexpr size_t kCachedGraphs = 8;

Tensor* as_tensor(const std::unique_ptr<char[]>& bytes) { return reinterpret_cast<Tensor*>(bytes.get()); }

uint32_t total_slots(const LoadPlan& plan) {
  uint32_t total = 0;
  for (const SizeClass& size_class : plan.classes) total += size_class.slots;
  return total;
}

}  // namespace

// Gives the scheduler and the graph back as they came.
struct Seam::Restore {
  Seam* seam;
  Scheduler* scheduler;
  ~Restore() {
    (*seam->stats_)->running = 0;
    seam->api_.set_eval_callback(scheduler, seam->user_.function, seam->user_.user_data);
    seam->put_back();
    seam->current_ = nullptr;
  }
};

Seam::Seam(const LoadPlan& plan, const EngineApi& api, const Mappings& mappings, Stats* stats, Replay* replay)
    : plan_(plan), api_(api), mappings_(mappings), stats_(stats), replay_(replay), index_(plan),
      mini_(api), pilot_(plan, api, &mini_, stats, *replay), overlap_(plan, api, &mini_, stats),
      recorder_(plan.record_path), heat_(plan),
      trace_layers_(trace_layers(plan.groups)), bound_(plan.groups.size(), 0) {
  uint32_t most_experts = 0;
  uint64_t expected = 0;
  for (const ExpertGroup& group : plan.groups) {
    most_experts = std::max(most_experts, group.n_expert);
    expected += group.expected ? 1 : 0;
  }
  stamp_.assign(most_experts, 0);
  (*stats)->groups_expected = expected;
  // The last tokens of a prompt are what decoding goes on from: as many as half the slots can hold.
  const uint64_t per_token = plan.groups.empty() ? 1 : plan.groups.size() * 8;
  tail_tokens_ = static_cast<uint32_t>(std::clamp<uint64_t>(total_slots(plan) / (2 * per_token), 1, 16));
}

GraphPlan& Seam::plan_for(Graph* graph) {
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i]->graph != graph) continue;
    std::rotate(plans_.begin(), plans_.begin() + static_cast<long>(i), plans_.begin() + static_cast<long>(i) + 1);
    if (!still_valid(api_, *plans_[0], graph)) build_graph_plan(plan_, api_, mappings_, index_, graph, plans_[0].get());
    return *plans_[0];
  }
  if (plans_.size() >= kCachedGraphs) plans_.pop_back();
  plans_.insert(plans_.begin(), std::make_unique<GraphPlan>());
  build_graph_plan(plan_, api_, mappings_, index_, graph, plans_[0].get());
  return *plans_[0];
}

int Seam::compute(Scheduler* scheduler, Graph* graph, const UserCallback& user) {
  GraphPlan& plan = plan_for(graph);
  add((*stats_)->unmanaged, plan.unmanaged);
  if (plan.bindings.empty()) return api_.graph_compute_async(scheduler, graph);
  current_ = &plan;
  user_ = user;
  cursor_ = matched_begin_ = 0;
  failed_ = false;
  pilot_.begin_graph();
  n_tokens_ = 0;
  for (Binding& binding : plan.bindings) {
    binding.served = binding.overlaps = false;
    n_tokens_ = std::max(n_tokens_, binding.ids->ne[1]);
  }
  n_counted_ = static_cast<size_t>(n_tokens_);
  // Layers that draft have graphs of their own, and those are not the step's.
  if (drafts_ != nullptr && plan_.groups[plan.bindings.front().group].expected) {
    // Of a batch with another client's prompt in it nobody knows which rows are drafts.
    const size_t counted = drafts_->begin_graph(plan_.is_batch(n_tokens_) ? 1 : n_counted_);
    if (!plan_.is_batch(n_tokens_)) n_counted_ = counted;
  }
  int status = kStatusFailed;
  {
    const Restore restore{this, scheduler};  // however the graph ends
    (*stats_)->running = (*stats_)->graphs + 1;
    api_.set_eval_callback(scheduler, &Seam::trampoline, this);
    status = api_.graph_compute_async(scheduler, graph);
  }
  add((*stats_)->graphs, 1);
  add((*stats_)->tokens, static_cast<uint64_t>(n_tokens_));
  recorder_.end_graph();
  if (replay_->is_open()) replay_->advance(stats_, n_tokens_);
  return failed_ ? kStatusFailed : status;
}

bool Seam::trampoline(Tensor* tensor, bool ask, void* self) {
  Seam* seam = static_cast<Seam*>(self);
  return ask ? seam->on_ask(tensor) : seam->on_computed(tensor);
}

bool Seam::on_ask(Tensor* tensor) {
  bool need = false;
  const std::vector<Event>& events = current_->events;
  matched_begin_ = cursor_;
  failed_ = failed_ || is_given_up(**stats_);
  // Before anything is bound: whoever looks on sees the engine's own weights and ids.
  user_asked_ = !failed_ && user_.function != nullptr && user_.function(tensor, true, user_.user_data);
  for (; cursor_ < events.size() && events[cursor_].node == tensor; ++cursor_) {
    Binding& binding = current_->bindings[events[cursor_].binding];
    switch (events[cursor_].kind) {
      case EventKind::kIds:
        need = true;
        break;
      case EventKind::kUse:
        if (binding.ids_index < 0 && !binding.served && !failed_) serve(&binding);
        // A large product takes long: after it is a place to give the graph up.
        need = bind(&binding, &binding.uses[events[cursor_].use]) || need || is_batch(binding);
        break;
      case EventKind::kWait:
        need = need || (binding.lease.active && !binding.overlaps &&
                        !store_->arrived(binding.lease, binding.uses[events[cursor_].use].part));
        break;
      case EventKind::kRelease:
        need = need || has_lease_before(events[cursor_].node_index);
        break;
    }
  }
  if (failed_) {
    blank(tensor);
    return true;
  }
  return need || user_asked_;
}

bool Seam::on_computed(Tensor* tensor) {
  const std::vector<Event>& events = current_->events;
  failed_ = failed_ || is_given_up(**stats_);
  for (size_t i = matched_begin_; i < cursor_ && !failed_; ++i) {
    if (events[i].node != tensor) continue;
    Binding& binding = current_->bindings[events[i].binding];
    if (events[i].kind == EventKind::kIds) {
      release_before(events[i].node_index);
      serve(&binding);
    } else if (events[i].kind == EventKind::kUse && binding.uses[events[i].use].taken) {
      run_taken(&binding, &binding.uses[events[i].use]);
    } else if (events[i].kind == EventKind::kWait && binding.lease.active && !binding.overlaps) {
      wait_for(&binding, binding.uses[events[i].use].part);
    } else if (events[i].kind == EventKind::kRelease) {
      release_before(events[i].node_index);
    }
  }
  if (failed_) return false;
  if (!user_asked_) return true;
  for (size_t i = matched_begin_; i < cursor_; ++i) {
    if (events[i].kind == EventKind::kUse) unbind(&current_->bindings[events[i].binding].uses[events[i].use]);
  }
  return user_.function(tensor, false, user_.user_data);
}

bool Seam::fail(const std::string& message) {
  failed_ = true;
  (*stats_).set_error(message);
  return false;
}

void Seam::serve(Binding* binding) {
  binding->served = true;
  const ExpertGroup& group = plan_.groups[binding->group];
  if (replay_->is_open()) {
    replay_->overwrite(api_, stats_, trace_layers_[binding->group], n_tokens_, binding->ids);
  }
  if (!read_ids(binding->ids, &rows_) || std::any_of(rows_.begin(), rows_.end(), [&](int32_t id) {
        return id < 0 || id >= static_cast<int32_t>(group.n_expert);
      })) {
    add((*stats_)->unmanaged, binding->uses.size());
    return;
  }
  const size_t n_transient = distinct(*binding, rows_, &experts_);
  const BatchRows batch = batch_rows(*binding);
  if (n_counted_ < static_cast<size_t>(n_tokens_)) {
    drafts_->selected(binding->group, rows_.data(), static_cast<size_t>(binding->ids->ne[1]),
                      static_cast<size_t>(binding->ids->ne[0]));
  }
  if (pagecache_ != nullptr) {
    if (!pagecache_->serve(binding->group, experts_, n_transient, batch)) {
      add((*stats_)->unmanaged, binding->uses.size());
    } else {
      note_served(*binding, n_transient, pagecache_->cache(), pagecache_->last_served());
    }
    for (const PartUse& use : binding->uses) mark_bound(binding->group, use.part);
    return;
  }
  if (store_ == nullptr) return;
  pilot_.turned_out(*current_, *binding, experts_);
  binding->lease.experts = experts_;
  if (!store_->acquire(binding->group, binding->part_order, n_transient, &binding->lease, batch) &&
      !acquire_in_waves(binding)) {
    add((*stats_)->unmanaged, binding->uses.size());
    return;
  }
  note_served(*binding, n_transient, store_->cache(), store_->last_served());
  write_slot_ids(binding, rows_);
  // While this layer's own reads run.
  if (!binding->lease.waves.on) {
    pilot_.look_ahead(current_, *binding, replay_->rows(**stats_, n_tokens_, binding->ids->ne[1]), store_);
  }
  binding->overlaps = binding->lease.waves.on || (!store_->arrived(binding->lease, binding->part_order.back()) &&
                                                  overlap_.can_run(*binding));
  if (binding->overlaps) {
    binding->rows = rows_;
  } else {
    wait_for(binding, binding->part_order[0]);
  }
}

// More experts than there are slots for: they pass through, one product after the other.
bool Seam::acquire_in_waves(Binding* binding) {
  if (!overlap_.can_run(*binding)) return false;
  std::vector<uint32_t> parts;
  for (const PartUse& use : binding->uses) parts.push_back(use.part);
  return store_->acquire_in_waves(binding->group, parts, &binding->lease);
}

void Seam::note_served(const Binding& binding, size_t n_transient, const Cache& cache, const Served& served) {
  heat_.served(cache, {binding.group, experts_.data(), experts_.size(), n_transient, {}});
  if (n_counted_ < static_cast<size_t>(n_tokens_)) {
    const auto of_drafts = [&](size_t i) { return i < n_transient; };
    const auto n_missed = std::count_if(served.missed.begin(), served.missed.end(), of_drafts);
    add((*stats_)->draft_accesses, n_transient);
    add((*stats_)->draft_hits, n_transient - static_cast<size_t>(n_missed));
  }
  if (!recorder_.is_on()) return;
  read_router_scores(api_, binding.ids, plan_.groups[binding.group].n_expert, rows_, &scores_);
  const size_t n_used = static_cast<size_t>(binding.ids->ne[0]);
  recorder_.served({binding.group, n_used, rows_, experts_, n_transient, served.missed, scores_, is_batch(binding)});
}

bool Seam::wait_for(Binding* binding, uint32_t part) {
  return store_->wait(&binding->lease, part) || fail(store_->take_error());
}

void Seam::write_slot_ids(Binding* binding, const std::vector<int32_t>& rows) {
  const std::vector<uint32_t>& slots = binding->lease.slots;
  if (binding->lease.waves.on) {  // anywhere, and known only when a product runs
    binding->lowest_slot = 0;
    binding->highest_slot = store_->n_slots(binding->group) - 1;
  } else if (slots.empty()) {
    binding->lowest_slot = binding->highest_slot = 0;
  } else {
    binding->lowest_slot = *std::min_element(slots.begin(), slots.end());
    binding->highest_slot = *std::max_element(slots.begin(), slots.end());
  }
  const uint64_t mutation = plan_.testing ? (*stats_)->mutation.load() : 0;
  if (mutation != 0) {  // any slot may be shown: a selection of one expert must go wrong too
    binding->lowest_slot = 0;
    binding->highest_slot = store_->n_slots(binding->group) - 1;
  }
  const int32_t base = static_cast<int32_t>(binding->lowest_slot);
  binding->id_buffer.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    binding->id_buffer[i] = store_->slot_of(binding->group, rows[i]) - base;
  }
  const int32_t n_slots = static_cast<int32_t>(store_->n_slots(binding->group));
  if (mutation == 1) {
    for (int32_t& id : binding->id_buffer) id = (id + 1) % n_slots;
  }
  if (mutation == 2 && !slots.empty()) {
    const int32_t a = static_cast<int32_t>(slots[0]);
    const int32_t b = slots.size() > 1 ? static_cast<int32_t>(slots[1]) : (a + 1) % n_slots;
    for (int32_t& id : binding->id_buffer) id = id == a ? b : id == b ? a : id;
  }
  Tensor* shadow = as_tensor(binding->ids_shadow);
  std::memcpy(static_cast<void*>(shadow), binding->ids, api_.tensor_bytes);
  shadow->op = api_.op_none;
  std::fill(std::begin(shadow->src), std::end(shadow->src), nullptr);
  shadow->view_src = nullptr;
  shadow->view_offs = 0;
  shadow->nb[0] = sizeof(int32_t);
  shadow->nb[1] = sizeof(int32_t) * static_cast<size_t>(shadow->ne[0]);
  shadow->nb[2] = shadow->nb[3] = shadow->nb[1] * static_cast<size_t>(shadow->ne[1]);
  shadow->data = binding->id_buffer.data();
}

// True when the engine has to stop here because the product is ours to compute.
bool Seam::bind(Binding* binding, PartUse* use) {
  // Not served: left on the file mapping, which stays right.
  if (failed_ || !binding->lease.active) return false;
  use->taken = binding->overlaps && (binding->lease.waves.on || !store_->arrived(binding->lease, use->part));
  if (!use->taken && !wait_for(binding, use->part)) return false;
  const uint64_t stride = store_->stride_bytes(binding->group);
  Tensor* shadow = as_tensor(use->shadow);
  std::memcpy(static_cast<void*>(shadow), use->weights, api_.tensor_bytes);
  shadow->ne[2] = static_cast<int64_t>(binding->highest_slot - binding->lowest_slot) + 1;
  shadow->nb[2] = stride;
  shadow->nb[3] = stride * static_cast<size_t>(shadow->ne[2]);
  shadow->data = store_->part_base(binding->group, use->part) + binding->lowest_slot * stride + use->delta;
  mark_bound(binding->group, use->part);
  if (use->taken) {
    use->node->op = api_.op_none;
    return true;
  }
  use->node->src[0] = shadow;
  use->node->src[2] = as_tensor(binding->ids_shadow);
  return false;
}

void Seam::run_taken(Binding* binding, PartUse* use) {
  use->node->op = api_.op_mul_mat_id;
  use->taken = false;
  std::string error;
  if (overlap_.run(binding, use, as_tensor(use->shadow), store_, &error)) return;
  failed_ = true;
  if (!is_given_up(**stats_)) (*stats_).set_error(error);
}

void Seam::mark_bound(uint32_t group, uint32_t part) {
  const uint32_t all = (1u << plan_.groups[group].parts.size()) - 1;
  if (bound_[group] == all) return;
  bound_[group] |= 1u << part;
  if (bound_[group] == all && plan_.groups[group].expected) add((*stats_)->groups_bound, 1);
}

void Seam::release_before(int node_index) {
  for (Binding& binding : current_->bindings) {
    if (binding.lease.active && binding.uses.back().node_index <= node_index) store_->release(&binding.lease);
  }
}

bool Seam::has_lease_before(int node_index) const {
  const std::vector<Binding>& bindings = current_->bindings;
  return std::any_of(bindings.begin(), bindings.end(), [&](const Binding& binding) {
    return binding.lease.active && binding.uses.back().node_index <= node_index;
  });
}

// A callback's refusal ends one split only: the next one would compute on what was never written, selections
// included, and the engine does not check those. Its first node does nothing instead, and is refused in turn.
void Seam::blank(Tensor* tensor) {
  blanked_.emplace_back(tensor, tensor->op);
  tensor->op = api_.op_none;
}

void Seam::put_back() {
  for (const auto& [tensor, op] : blanked_) tensor->op = op;
  blanked_.clear();
  for (Binding& binding : current_->bindings) {
    if (binding.lease.active) store_->release(&binding.lease);
    for (PartUse& use : binding.uses) unbind(&use);
  }
}

void Seam::unbind(PartUse* use) {
  if (use->taken) use->node->op = api_.op_mul_mat_id;
  use->taken = false;
  use->node->src[0] = use->weights;
  use->node->src[2] = use->ids;
}

}  // namespace guanaco
