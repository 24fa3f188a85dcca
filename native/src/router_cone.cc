#include "router_cone.h"

#include <algorithm>
#include <cstring>

namespace guanaco {

namespace {

constexpr size_t kMostNodes = 64;
constexpr int kMostSteps = 12;  // between a router's input and the norm that made it
constexpr size_t kAlignment = 64;

bool is_any(const EngineApi& api, const Tensor* tensor, std::initializer_list<const char*> ops) {
  const char* name = api.op_name(tensor->op);
  return name != nullptr &&
         std::any_of(ops.begin(), ops.end(), [&](const char* op) { return std::strcmp(name, op) == 0; });
}

bool same_shape(const Tensor* a, const Tensor* b) {
  return std::memcmp(a->ne, b->ne, sizeof a->ne) == 0 && std::memcmp(a->nb, b->nb, sizeof a->nb) == 0;
}

bool is_contiguous_f32(const Tensor* tensor) {
  size_t stride = sizeof(float);
  for (int i = 0; i < kMaxDims; ++i) {
    if (tensor->nb[i] != stride) return false;
    stride *= static_cast<size_t>(tensor->ne[i]);
  }
  return tensor->type == kTypeF32;
}

}  // namespace

class RouterCone::Builder {
 public:
  Builder(const EngineApi& api, const NodePositions& positions) : api_(api), positions_(positions) {}

  std::unique_ptr<RouterCone> build(Tensor* ids) {
    if (!find_router(ids) || n_routers_ != 1) return nullptr;
    state_ = find_state(router_->src[1]);
    if (state_ == nullptr || !is_contiguous_f32(state_)) return nullptr;
    visited_.clear();
    if (!collect(ids) || order_.empty()) return nullptr;
    std::sort(order_.begin(), order_.end(),
              [&](const Tensor* a, const Tensor* b) { return positions_.at(a) < positions_.at(b); });
    cone_ = std::make_unique<RouterCone>();
    cone_->state_ = state_;
    cone_->state_position_ = positions_.at(state_);
    cone_->weight_bytes_ = api_.compute.nbytes(router_->src[0]);
    cone_->input_ = new_copy(state_);
    cone_->input_->op = api_.op_none;
    std::fill(std::begin(cone_->input_->src), std::end(cone_->input_->src), nullptr);
    cone_->input_->view_src = nullptr;
    cone_->input_->view_offs = 0;
    take_place(state_);
    for (Tensor* original : order_) {
      if (!clone(original)) return nullptr;
    }
    cone_->ids_ = copies_.at(ids);
    return std::move(cone_);
  }

 private:
  bool in_graph(const Tensor* tensor) const { return tensor != nullptr && positions_.count(tensor) != 0; }

  bool first_visit(const Tensor* tensor) {
    if (std::find(visited_.begin(), visited_.end(), tensor) != visited_.end()) return false;
    visited_.push_back(tensor);
    return true;
  }

  // The product of a weight and the layer's state, upstream of the selection. An adapter adds others: not understood.
  // False when there is too much to look at.
  bool find_router(Tensor* tensor) {
    if (!in_graph(tensor) || !first_visit(tensor)) return true;
    if (visited_.size() > kMostNodes) return false;
    if (is_any(api_, tensor, {"MUL_MAT"}) && !in_graph(tensor->src[0])) {
      router_ = tensor;
      ++n_routers_;
      return true;
    }
    return std::all_of(std::begin(tensor->src), std::end(tensor->src),
                       [&](Tensor* source) { return source == nullptr || find_router(source); });
  }

  // From the router's input back to what its norm was applied to; the input itself when no norm comes first.
  Tensor* find_state(Tensor* input) const {
    if (!in_graph(input)) return nullptr;
    Tensor* at = input;
    for (int step = 0; step < kMostSteps && at != nullptr; ++step) {
      if (is_any(api_, at, {"RMS_NORM", "NORM", "L2_NORM"})) return in_graph(at->src[0]) ? at->src[0] : input;
      if (!is_any(api_, at, {"MUL", "ADD", "SCALE", "RESHAPE", "VIEW", "CONT"})) return input;
      Tensor* next = nullptr;
      for (Tensor* source : at->src) {
        if (!in_graph(source)) continue;
        if (next != nullptr) return input;  // two states meet: too far
        next = source;
      }
      at = next;
    }
    return input;
  }

  // Where a view of the state's bytes begins in them; false when it is none.
  bool is_view_of_state(const Tensor* tensor, size_t* offset) const {
    if (tensor->view_src == nullptr) return false;
    size_t begin = 0;
    if (tensor->view_src != state_) {
      if (tensor->view_src != state_->view_src) return false;
      begin = state_->view_offs;
    }
    if (tensor->view_offs < begin) return false;
    *offset = tensor->view_offs - begin;
    return *offset + api_.compute.nbytes(tensor) <= api_.compute.nbytes(state_);
  }

  bool collect(Tensor* tensor) {
    if (tensor == state_) return true;
    if (!in_graph(tensor)) {  // a weight, or an input of the graph
      return tensor->data != nullptr && tensor->op == api_.op_none && api_.is_on_host(tensor);
    }
    if (tensor == state_->view_src) return false;  // more than the state
    if (!first_visit(tensor)) return true;
    order_.push_back(tensor);
    if (order_.size() > kMostNodes || tensor->op == api_.op_mul_mat_id) return false;
    for (Tensor* source : tensor->src) {
      if (source != nullptr && !collect(source)) return false;
    }
    size_t offset = 0;
    return tensor->view_src == nullptr || is_view_of_state(tensor, &offset) || collect(tensor->view_src);
  }

  Tensor* new_copy(const Tensor* original) {
    cone_->storage_.push_back(std::make_unique<char[]>(api_.tensor_bytes));
    Tensor* copy = reinterpret_cast<Tensor*>(cone_->storage_.back().get());
    std::memcpy(static_cast<void*>(copy), original, api_.tensor_bytes);
    copy->buffer = nullptr;
    copies_[original] = copy;
    return copy;
  }

  size_t take_place(const Tensor* original) {
    const size_t place = cone_->scratch_bytes_;
    const size_t nbytes = api_.compute.nbytes(original);
    cone_->scratch_bytes_ = (place + nbytes + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }

  bool clone(Tensor* original) {
    Clone made;
    made.position = positions_.at(original);
    made.original = original;
    made.view_src = original->view_src;
    std::copy(std::begin(original->src), std::end(original->src), made.src);
    made.copy = new_copy(original);
    for (Tensor*& source : made.copy->src) source = source == nullptr ? nullptr : mapped(source);
    size_t offset = 0;
    if (is_view_of_state(original, &offset)) {
      made.copy->view_src = cone_->input_;
      made.copy->view_offs = offset;
      made.bytes = Bytes::kView;
    } else if (in_graph(original->view_src)) {
      made.copy->view_src = mapped(original->view_src);
      made.bytes = Bytes::kView;
    } else if (original->view_src != nullptr) {
      // A view of a weight may be read where it is; anything else would write into the model's memory.
      if (!is_any(api_, original, {"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})) return false;
      made.bytes = Bytes::kWeight;
    } else {
      made.place = take_place(original);
    }
    cone_->nodes_.push_back(made.copy);
    cone_->clones_.push_back(made);
    return true;
  }

  Tensor* mapped(Tensor* original) const {
    const auto found = copies_.find(original);
    return found == copies_.end() ? original : found->second;
  }

  const EngineApi& api_;
  const NodePositions& positions_;
  std::unique_ptr<RouterCone> cone_;
  Tensor* router_ = nullptr;
  Tensor* state_ = nullptr;
  int n_routers_ = 0;
  std::vector<const Tensor*> visited_;
  std::vector<Tensor*> order_;
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

std::unique_ptr<RouterCone> RouterCone::build(const EngineApi& api, const NodePositions& positions, Tensor* ids) {
  return Builder(api, positions).build(ids);
}

bool RouterCone::still_valid(const EngineApi& api, Graph* graph) const {
  if (api.graph_node(graph, state_position_) != state_) return false;
  return std::all_of(clones_.begin(), clones_.end(), [&](const Clone& clone) {
    const Tensor* node = api.graph_node(graph, clone.position);
    return node == clone.original && node->op == clone.copy->op && same_shape(node, clone.copy) &&
           std::equal(clone.src, clone.src + kMaxSrc, node->src) && node->view_src == clone.view_src &&
           std::memcmp(node->op_params, clone.copy->op_params, sizeof node->op_params) == 0;
  });
}

void RouterCone::place_in(char* base) {
  placed_in_ = base;
  input_->data = base;
  for (const Clone& clone : clones_) {
    if (clone.bytes == Bytes::kOwn) clone.copy->data = base + clone.place;
    if (clone.bytes == Bytes::kView) {
      clone.copy->data = static_cast<char*>(clone.copy->view_src->data) + clone.copy->view_offs;
    }
  }
}

bool RouterCone::run(const EngineApi& api, MiniGraph* mini, const Tensor* state, int n_threads,
                     std::vector<char>* scratch) {
  if (state->type != kTypeF32 || !same_shape(state, input_) || state->data == nullptr) return false;
  if (scratch->size() < scratch_bytes_ + kAlignment) scratch->resize(scratch_bytes_ + kAlignment);
  const uintptr_t unaligned = reinterpret_cast<uintptr_t>(scratch->data());
  char* const base = scratch->data() + (kAlignment - unaligned % kAlignment) % kAlignment;
  if (base != placed_in_) place_in(base);
  const size_t nbytes = api.compute.nbytes(input_);
  if (api.is_on_host(state)) {
    std::memcpy(input_->data, state->data, nbytes);
  } else {
    api.tensor_get(state, input_->data, 0, nbytes);
  }
  return mini->run(nodes_, n_threads);
}

}  // namespace guanaco
