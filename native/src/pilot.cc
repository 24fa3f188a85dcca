#include "pilot.h"

#include <algorithm>
#include <cstring>

namespace guanaco {

namespace {

constexpr uint64_t kWorthAllThreads = 256u << 10;  // of weights: less takes one thread no longer than waking the others

int32_t id_at(const Tensor* ids, int64_t rank, int64_t row) {
  int32_t id = -1;
  std::memcpy(&id, static_cast<const char*>(ids->data) + static_cast<size_t>(row) * ids->nb[1] +
                       static_cast<size_t>(rank) * ids->nb[0], sizeof id);
  return id;
}

bool same_size(const Tensor* a, const Tensor* b) { return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1]; }

}  // namespace

Pilot::Pilot(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats, const Replay& replay)
    : plan_(plan), api_(api), mini_(mini), stats_(stats), replay_(replay), transition_(plan.pilot_mass),
      trace_layers_(trace_layers(plan.groups)) {}

void Pilot::begin_graph() { guess_.made = has_selected_ = false; }

void Pilot::turned_out(const GraphPlan& graph_plan, const Binding& binding, const std::vector<int32_t>& experts) {
  if (!is_on()) return;
  const bool is_batch = plan_.is_batch(binding.ids->ne[1]);
  turned_out_ = guess_.made && guess_.group == binding.group;
  if (turned_out_) {
    StatsBlock& stats = **stats_;
    guanaco::add(stats.pilot_selected, experts.size());
    for (size_t rank = 0; rank < guess_.experts.size(); ++rank) {
      const bool right = std::find(experts.begin(), experts.end(), guess_.experts[rank]) != experts.end();
      guanaco::add(stats.pilot_guessed, 1);
      guanaco::add(stats.pilot_right, right ? 1 : 0);
      if (guess_.judged[rank] != 0) judge_.judged(rank, right);
    }
  }
  if (learns() && router_failed_ && !is_batch && has_selected_ && selected_group_ < binding.group) {
    transition_.learn(selected_group_, selected_, binding.group, plan_.groups[binding.group].n_expert, experts);
  }
  guess_.made = false;
  has_selected_ = !is_batch && &binding != &graph_plan.bindings.back();
  if (has_selected_) {
    selected_ = experts;
    selected_group_ = binding.group;
  }
}

// The products of another layer whose selection this graph makes later.
const Binding* Pilot::next_of(const GraphPlan& graph_plan, const Binding& binding) const {
  for (const Binding& next : graph_plan.bindings) {
    if (next.ids_index > binding.ids_index && next.group != binding.group) return &next;
  }
  return nullptr;
}

void Pilot::cut_routers(GraphPlan* graph_plan) const {
  NodePositions positions;
  for (int i = 0; i < graph_plan->n_nodes; ++i) positions[api_.graph_node(graph_plan->graph, i)] = i;
  for (Binding& binding : graph_plan->bindings) {
    if (binding.ids_index >= 0) binding.cone = RouterCone::build(api_, positions, binding.ids);
  }
}

// Whether both layers' routers stand for the graph as it is. They are cut out once a graph, and anew when it changed.
bool Pilot::prepare(GraphPlan* graph_plan, const Binding& binding, const Binding& next) const {
  const auto is_cut = [&](const Binding& of) { return of.cone != nullptr && of.cone->still_valid(api_, graph_plan->graph); };
  if (!graph_plan->has_cones) {
    graph_plan->has_cones = true;
    cut_routers(graph_plan);
  } else if (binding.cone != nullptr && next.cone != nullptr && !(is_cut(binding) && is_cut(next))) {
    cut_routers(graph_plan);
  }
  return is_cut(binding) && is_cut(next);
}

bool Pilot::run(RouterCone* router, const Tensor* state) {
  const int all = plan_.threads_for(state->ne[1]);
  const int n_threads = router->weight_bytes() < kWorthAllThreads ? 1 : mini_->threads(all);
  return router->run(api_, mini_, state, n_threads, &scratch_);
}

void Pilot::look_ahead(GraphPlan* graph_plan, const Binding& binding, const ReplayRows& replayed, Store* store) {
  if (!is_on() || plan_.is_batch(binding.ids->ne[1])) return;
  if (turned_out_) judge_.idled(store->idle_ns());
  uint64_t nbytes = 0, elapsed_ns = 0;
  if (store->take_drive_rate(&nbytes, &elapsed_ns)) judge_.drive_read(nbytes, elapsed_ns);
  const bool by_router = plan_.pilot != PilotMode::kTransition && mini_->usable();
  if (by_router && plan_.testing && (*stats_)->pilot_control != 0) check_own_router(graph_plan, binding);
  const Binding* next = next_of(*graph_plan, binding);
  if (next == nullptr || next->ids->ne[1] != binding.ids->ne[1]) return;
  if (plan_.pilot == PilotMode::kAuto && !judge_.is_worth_guessing()) return;
  guess_.experts.clear();
  guess_.group = next->group;
  // A replayed selection has nothing to do with the state: only the trace's own prediction may stand for the router.
  // The router is run all the same, so that its cost is in the figures.
  bool made = by_router && guess_by_router(graph_plan, binding, *next);
  if (replayed.on) made = made && guess_by_replay(*next, replayed);
  router_failed_ = !made;
  if (!made && learns()) made = guess_by_transition(binding, *next);
  if (!made) return;
  guess_.made = true;
  guanaco::add((*stats_)->pilot_calls, 1);
  choose_reads(*next, store);
}

bool Pilot::guess_by_router(GraphPlan* graph_plan, const Binding& binding, const Binding& next) {
  if (!prepare(graph_plan, binding, next) || !run(next.cone.get(), binding.cone->state())) return false;
  add_by_rank(next.cone->ids());
  return !guess_.experts.empty();
}

// The control: a layer's own router on its own state selects what the engine selected.
void Pilot::check_own_router(GraphPlan* graph_plan, const Binding& binding) {
  StatsBlock& stats = **stats_;
  guanaco::add(stats.pilot_control_total, static_cast<uint64_t>(binding.ids->ne[0] * binding.ids->ne[1]));
  if (!prepare(graph_plan, binding, binding) || !run(binding.cone.get(), binding.cone->state())) return;
  const Tensor* found = binding.cone->ids();
  if (!same_size(found, binding.ids)) return;
  for (int64_t row = 0; row < binding.ids->ne[1]; ++row) {
    for (int64_t rank = 0; rank < binding.ids->ne[0]; ++rank) {
      const bool same = id_at(found, rank, row) == id_at(binding.ids, rank, row);
      guanaco::add(stats.pilot_control_right, same ? 1 : 0);
    }
  }
}

bool Pilot::guess_by_replay(const Binding& next, const ReplayRows& replayed) {
  guess_.experts.clear();
  for (int64_t rank = 0; rank < next.ids->ne[0]; ++rank) {
    for (int64_t row = 0; row < next.ids->ne[1]; ++row) {
      add(replay_.predicted(replayed.at(row), trace_layers_[next.group], static_cast<uint32_t>(rank)));
    }
  }
  return !guess_.experts.empty();
}

bool Pilot::guess_by_transition(const Binding& binding, const Binding& next) {
  guess_.experts.clear();
  if (!has_selected_ || selected_group_ != binding.group) return false;
  const size_t most = static_cast<size_t>(next.ids->ne[0] * next.ids->ne[1]);
  transition_.guess(binding.group, selected_, next.group, most, &guess_.experts);
  return !guess_.experts.empty();
}

void Pilot::add_by_rank(const Tensor* ids) {
  for (int64_t rank = 0; rank < ids->ne[0]; ++rank) {
    for (int64_t row = 0; row < ids->ne[1]; ++row) add(id_at(ids, rank, row));
  }
}

void Pilot::add(int32_t expert) {
  const bool valid = expert >= 0 && static_cast<uint32_t>(expert) < plan_.groups[guess_.group].n_expert;
  if (valid && std::find(guess_.experts.begin(), guess_.experts.end(), expert) == guess_.experts.end()) {
    guess_.experts.push_back(expert);
  }
}

void Pilot::choose_reads(const Binding& next, Store* store) {
  const bool all = plan_.pilot != PilotMode::kAuto;
  const uint64_t nbytes = store->expert_bytes(next.group);
  guess_.judged.assign(guess_.experts.size(), 0);
  reads_.clear();
  judge_.begin_layer();
  for (size_t rank = 0; rank < guess_.experts.size(); ++rank) {
    if (store->slot_of(next.group, guess_.experts[rank]) >= 0) continue;
    guess_.judged[rank] = 1;
    if (!all && !judge_.pays(rank, nbytes)) continue;
    judge_.spend(nbytes);
    reads_.push_back(guess_.experts[rank]);
  }
  judge_.guessed(!reads_.empty());
  if (!reads_.empty()) store->guess(next.group, next.part_order, reads_, judge_.most_bytes());
}

}  // namespace guanaco
