#include "graph_plan.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

namespace guanaco {

PartIndex::PartIndex(const LoadPlan& plan) {
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    for (uint32_t p = 0; p < plan.groups[g].parts.size(); ++p) {
      const ExpertPart& part = plan.groups[g].parts[p];
      entries_.push_back({part.file, part.offset, part.offset + part.slice_bytes * plan.groups[g].n_expert, g, p});
    }
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  });
}

bool PartIndex::find(uint32_t file, uint64_t offset, uint32_t* group, uint32_t* part) const {
  auto at = std::upper_bound(entries_.begin(), entries_.end(), std::make_pair(file, offset),
                             [](const std::pair<uint32_t, uint64_t>& key, const Entry& entry) {
                               return key.first != entry.file ? key.first < entry.file : key.second < entry.begin;
                             });
  if (at == entries_.begin()) return false;
  --at;
  if (at->file != file || offset >= at->end) return false;
  *group = at->group;
  *part = at->part;
  return true;
}

namespace {

bool is_selection(const Tensor* ids) { return ids->type == kTypeI32 && ids->ne[2] == 1 && ids->ne[3] == 1; }

class Builder {
 public:
  Builder(const LoadPlan& plan, const EngineApi& api, const Mappings& mappings, const PartIndex& index, Graph* graph,
          GraphPlan* result)
      : plan_(plan), api_(api), mappings_(mappings), index_(index), graph_(graph), result_(result) {}

  void build() {
    result_->graph = graph_;
    result_->n_nodes = api_.graph_n_nodes(graph_);
    result_->bindings.clear();
    result_->events.clear();
    result_->unmanaged = 0;
    result_->has_cones = false;
    result_->products.clear();
    for (int i = 0; i < result_->n_nodes; ++i) {
      Tensor* node = api_.graph_node(graph_, i);
      position_[node] = i;
      if (node->op == api_.op_mul_mat_id) {
        result_->products.push_back({i, node->src[0], node->src[2]});
        add_product(node, i);
      } else {
        count_foreign_reader(node);
      }
    }
    for (uint32_t b = 0; b < result_->bindings.size(); ++b) add_events(b);
    std::stable_sort(result_->events.begin(), result_->events.end(),
                     [](const Event& a, const Event& b) { return a.node_index < b.node_index; });
  }

 private:
  bool locate(const Tensor* tensor, uint32_t* group, uint32_t* part, uint64_t* delta) const {
    uint32_t file = 0;
    uint64_t offset = 0;
    if (tensor == nullptr || tensor->data == nullptr || !mappings_.locate(tensor->data, &file, &offset) ||
        !index_.find(file, offset, group, part)) {
      return false;
    }
    *delta = offset - plan_.groups[*group].parts[*part].offset;
    return true;
  }

  void add_product(Tensor* node, int node_index) {
    uint32_t group = 0, part = 0;
    uint64_t delta = 0;
    Tensor* weights = node->src[0];
    if (!locate(weights, &group, &part, &delta)) {  // an adapter's, or on a card
      result_->unmanaged += is_copy(weights) ? 1 : 0;
      return;
    }
    const ExpertGroup& info = plan_.groups[group];
    const Tensor* ids = node->src[2];
    const bool understood = ids != nullptr && is_selection(ids) && weights->ne[2] == info.n_expert &&
                            weights->ne[3] == 1 && weights->nb[2] == info.parts[part].slice_bytes &&
                            delta < info.parts[part].slice_bytes;
    if (!understood) {
      ++result_->unmanaged;
      return;
    }
    Binding& binding = binding_of(group, node->src[2]);
    PartUse use;
    use.node = node;
    use.weights = weights;
    use.ids = node->src[2];
    use.node_index = node_index;
    use.part = part;
    use.delta = delta;
    use.shadow = std::make_unique<char[]>(api_.tensor_bytes);
    binding.uses.push_back(std::move(use));
    if (std::find(binding.part_order.begin(), binding.part_order.end(), part) == binding.part_order.end()) {
      binding.part_order.push_back(part);
    }
  }

  // The scheduler copies weights whole to compute elsewhere ("backend#tensor#number"): right, but far too much is read.
  bool is_copy(const Tensor* weights) const {
    const std::string name(weights->name, strnlen(weights->name, sizeof weights->name));
    const size_t begin = name.find('#'), end = name.rfind('#');
    if (begin == end) return false;
    const std::string copied = name.substr(begin + 1, end - begin - 1);
    return std::any_of(plan_.groups.begin(), plan_.groups.end(), [&](const ExpertGroup& group) {
      return std::any_of(group.parts.begin(), group.parts.end(),
                         [&](const ExpertPart& expert_part) { return expert_part.tensor_name == copied; });
    });
  }

  // Another operation that reads expert bytes takes them from the file mapping: right, but worth knowing.
  void count_foreign_reader(const Tensor* node) {
    for (int s = 0; s < 2; ++s) {
      uint32_t group = 0, part = 0;
      uint64_t delta = 0;
      const bool is_view_of_it = node->view_src != nullptr;
      if (!is_view_of_it && locate(node->src[s], &group, &part, &delta)) ++result_->unmanaged;
    }
  }

  Binding& binding_of(uint32_t group, Tensor* ids) {
    for (Binding& binding : result_->bindings) {
      if (binding.group == group && binding.ids == ids) return binding;
    }
    Binding binding;
    binding.group = group;
    binding.ids = ids;
    const auto found = position_.find(ids);
    binding.ids_index = found == position_.end() ? -1 : found->second;
    binding.ids_shadow = std::make_unique<char[]>(api_.tensor_bytes);
    result_->bindings.push_back(std::move(binding));
    return result_->bindings.back();
  }

  void add_events(uint32_t b) {
    Binding& binding = result_->bindings[b];
    if (binding.ids_index >= 0) {
      result_->events.push_back({EventKind::kIds, binding.ids, binding.ids_index, b, 0});
    } else if (binding.uses[0].node_index > 0) {
      const int before = binding.uses[0].node_index - 1;
      result_->events.push_back({EventKind::kRelease, api_.graph_node(graph_, before), before, b, 0});
    }
    std::vector<uint32_t> seen;
    for (uint32_t u = 0; u < binding.uses.size(); ++u) {
      const PartUse& use = binding.uses[u];
      const bool first_of_part = std::find(seen.begin(), seen.end(), use.part) == seen.end();
      // Later parts may still be on their way while earlier ones compute: wait at the node before their first use.
      if (first_of_part && !seen.empty() && use.node_index - 1 > binding.ids_index) {
        const int before = use.node_index - 1;
        result_->events.push_back({EventKind::kWait, api_.graph_node(graph_, before), before, b, u});
      }
      if (first_of_part) seen.push_back(use.part);
      result_->events.push_back({EventKind::kUse, use.node, use.node_index, b, u});
    }
  }

  const LoadPlan& plan_;
  const EngineApi& api_;
  const Mappings& mappings_;
  const PartIndex& index_;
  Graph* const graph_;
  GraphPlan* const result_;
  std::unordered_map<const Tensor*, int> position_;
};

}  // namespace

void build_graph_plan(const LoadPlan& plan, const EngineApi& api, const Mappings& mappings, const PartIndex& index,
                      Graph* graph, GraphPlan* result) {
  Builder(plan, api, mappings, index, graph, result).build();
}

bool still_valid(const EngineApi& api, const GraphPlan& plan, Graph* graph) {
  if (plan.graph != graph || plan.n_nodes != api.graph_n_nodes(graph)) return false;
  // All products, adapters' too: another graph at this address may have as many of them.
  size_t n_seen = 0;
  for (int i = 0; i < plan.n_nodes; ++i) {
    const Tensor* node = api.graph_node(graph, i);
    if (node->op != api.op_mul_mat_id) continue;
    if (n_seen == plan.products.size()) return false;
    const Product& product = plan.products[n_seen++];
    if (product.node_index != i || product.weights != node->src[0] || product.ids != node->src[2]) return false;
  }
  if (n_seen != plan.products.size()) return false;
  for (const Binding& binding : plan.bindings) {
    if (!is_selection(binding.ids)) return false;
    for (const PartUse& use : binding.uses) {
      if (api.graph_node(graph, use.node_index) != use.node) return false;
    }
  }
  for (const Event& event : plan.events) {
    if (api.graph_node(graph, event.node_index) != event.node) return false;
  }
  return true;
}

}  // namespace guanaco
