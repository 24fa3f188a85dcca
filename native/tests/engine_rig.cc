#include "engine_rig.h"

#include <sys/mman.h>

using fake::FullTensor;
using guanaco::kPage;
using guanaco::Tensor;

namespace {

// Parts of one layer: an aligned slice, one that is not a multiple of a page, a small one.
constexpr uint64_t kSliceBytes[] = {2 * kPage, kPage + 96, kPage};
constexpr uint64_t kHeaderBytes = 4000;

std::vector<int32_t> flat(const Rows& rows) {
  std::vector<int32_t> result;
  for (const auto& row : rows) result.insert(result.end(), row.begin(), row.end());
  return result;
}

void set_shape(Tensor* tensor, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb0, size_t nb1) {
  const int64_t ne[] = {ne0, ne1, ne2, 1};
  std::copy(ne, ne + 4, tensor->ne);
  tensor->nb[0] = nb0;
  tensor->nb[1] = nb1;
  tensor->nb[2] = nb1 * static_cast<size_t>(ne1);
  tensor->nb[3] = tensor->nb[2] * static_cast<size_t>(ne2);
}

}  // namespace

Tensor* TestGraph::node(fake::Op op, std::vector<Tensor*> sources) {
  Tensor* tensor = leaf();
  tensor->op = op;
  std::copy(sources.begin(), sources.end(), tensor->src);
  graph.nodes.push_back(tensor);
  return tensor;
}

Tensor* TestGraph::leaf() {
  FullTensor* tensor = &tensors.emplace_back();
  static_cast<Tensor&>(*tensor) = Tensor{};
  set_shape(tensor, 1, 1, 1, 4, 4);
  return tensor;
}

MoeLayer& TestGraph::router(uint32_t group, const Rows& wanted, uint32_t n_expert) {
  MoeLayer& layer = layers.emplace_back();
  layer.group = group;
  layer.wanted = wanted;
  const int64_t n_rows = static_cast<int64_t>(wanted.size());
  node(fake::kAdd);
  layer.sorted = node(fake::kArgsort, {graph.nodes.back()});
  std::vector<int32_t>& storage = numbers.emplace_back(n_expert * wanted.size(), -77);
  layer.sorted->type = guanaco::kTypeI32;
  set_shape(layer.sorted, n_expert, n_rows, 1, 4, n_expert * sizeof(int32_t));
  layer.sorted->data = storage.data();
  layer.ids = node(fake::kView, {layer.sorted});
  layer.ids->type = guanaco::kTypeI32;
  set_shape(layer.ids, static_cast<int64_t>(wanted[0].size()), n_rows, 1, 4, n_expert * sizeof(int32_t));
  layer.ids->view_src = layer.sorted;
  layer.ids->data = storage.data();
  on_compute(layer.sorted, [&layer, &storage, n_expert] {
    for (size_t row = 0; row < layer.wanted.size(); ++row) {
      const std::vector<int32_t>& experts = layer.wanted[row];
      std::copy(experts.begin(), experts.end(), storage.begin() + static_cast<long>(row * n_expert));
    }
  });
  return layer;
}

MoeLayer& TestGraph::input_ids(uint32_t group, const Rows& wanted) {
  MoeLayer& layer = layers.emplace_back();
  layer.group = group;
  layer.wanted = wanted;
  layer.ids = leaf();
  layer.ids->type = guanaco::kTypeI32;
  const size_t n = wanted[0].size();
  set_shape(layer.ids, static_cast<int64_t>(n), static_cast<int64_t>(wanted.size()), 1, 4, n * 4);
  layer.ids->data = numbers.emplace_back(flat(wanted)).data();
  return layer;
}

Tensor* TestGraph::product(Tensor* weights, Tensor* ids) { return node(fake::kMulMatId, {weights, leaf(), ids}); }

void TestGraph::on_compute(Tensor* node, std::function<void()> action) {
  actions_.push_back(std::move(action));
  static_cast<FullTensor*>(node)->action = &actions_.back();
}

void TestGraph::select(MoeLayer* layer, const Rows& wanted) {
  layer->wanted = wanted;
  if (layer->sorted != nullptr) return;
  const std::vector<int32_t> values = flat(wanted);
  std::copy(values.begin(), values.end(), static_cast<int32_t*>(layer->ids->data));
}

void TestGraph::clear() {
  graph.nodes.clear();
  graph.split_begins = {0};
  graph.split_inputs.clear();
  layers.clear();
  // The tensors stay: the engine may hand out the same memory again, a test must not read what is gone.
}

EngineRig::EngineRig(uint32_t n_layers, uint32_t slots, uint32_t n_expert) {
  uint64_t at = kHeaderBytes;
  std::vector<uint64_t> offsets;
  for (uint32_t i = 0; i < n_layers * 3; ++i) {
    offsets.push_back(at);
    at += kSliceBytes[i % 3] * n_expert + 64;  // dense tensors between
  }
  bed.file(at, true);
  bed.size_class(slots, {kSliceBytes[0], kSliceBytes[1], kSliceBytes[2]});
  for (uint32_t layer = 0; layer < n_layers; ++layer) {
    const uint64_t* begin = &offsets[layer * 3];
    bed.group(layer, 0, n_expert,
              {{begin[0], kSliceBytes[0]}, {begin[1], kSliceBytes[1]}, {begin[2], kSliceBytes[2]}});
  }
}

EngineRig::~EngineRig() {
  if (base_ != nullptr) guanaco::raw_munmap(base_, bed.plan.files[0].size_bytes);
}

void EngineRig::start() {
  std::string error;
  REQUIRE(bed.open_real(&error));
  REQUIRE(api.load(reinterpret_cast<const void*>(&fake_engine_decode), nullptr, "", &error));
  const uint64_t nbytes = bed.plan.files[0].size_bytes;
  void* at = guanaco::raw_mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, bed.files.fds[0], 0);
  REQUIRE(at != MAP_FAILED);
  base_ = static_cast<char*>(at);
  mappings.note(0, base_, nbytes);
  make_weights(base_);
  if (!bed.plan.replay_path.empty()) REQUIRE(replay.open(bed.plan.replay_path, &error));
  backend = std::make_unique<ScriptedBackend>(bed);
  seam = std::make_unique<guanaco::Seam>(bed.plan, api, mappings, &stats, &replay);
  if (!bed.plan.manage) return;
  if (bed.plan.io == guanaco::IoMode::kPageCache) {
    pagecache = std::make_unique<guanaco::PageCacheStore>(bed.plan, bed.files, mappings, &stats);
    seam->use_pagecache(pagecache.get());
  } else {
    store = std::make_unique<guanaco::Store>(bed.plan, bed.files, backend.get(), &stats);
    REQUIRE(store->allocate(&error));
    seam->use_store(store.get());
  }
}

void EngineRig::make_weights(char* base) {
  weights_.clear();
  for (const auto& group : bed.plan.groups) {
    for (const auto& part : group.parts) {
      FullTensor* tensor = &weights_.emplace_back();
      static_cast<Tensor&>(*tensor) = Tensor{};
      // Two rows an expert.
      set_shape(tensor, static_cast<int64_t>(part.slice_bytes / 2), 2, group.n_expert, 1, part.slice_bytes / 2);
      tensor->buffer = &host_;
      tensor->data = base + part.offset;
    }
  }
}

void EngineRig::add_products(TestGraph* graph, MoeLayer* layer, const std::vector<uint32_t>& parts) {
  for (const uint32_t part : parts) {
    if (part == 2) graph->node(fake::kAdd);
    layer->products.push_back(graph->product(weights(layer->group, part), layer->ids));
    layer->parts.push_back(part);
  }
}

MoeLayer& EngineRig::add_layer(TestGraph* graph, uint32_t group, const Rows& wanted) {
  MoeLayer& layer = graph->router(group, wanted, bed.plan.groups[group].n_expert);
  add_products(graph, &layer, {0, 1, 2});
  graph->node(fake::kAdd);
  return layer;
}

int EngineRig::run(TestGraph* graph) {
  scheduler.computed.clear();
  scheduler.products.clear();
  const std::vector<Tensor*> nodes = graph->graph.nodes;
  std::vector<Tensor> before;
  for (const Tensor* node : nodes) before.push_back(*node);
  const int status = seam->compute(&scheduler, &graph->graph, user);
  // Whatever happened, the graph is as the engine built it and its callback is the user's.
  for (size_t i = 0; i < nodes.size(); ++i) {
    CHECK(std::equal(std::begin(before[i].src), std::end(before[i].src), nodes[i]->src));
    CHECK_EQ(nodes[i]->op, before[i].op);
  }
  CHECK(scheduler.callback == user.function);
  CHECK(scheduler.user_data == user.user_data);
  return status;
}

void EngineRig::check_products(const TestGraph& graph) { check_products(graph, scheduler); }

void EngineRig::check_products(const TestGraph& graph, const guanaco::Scheduler& ran_by) const {
  for (const MoeLayer& layer : graph.layers) {
    for (size_t i = 0; i < layer.products.size(); ++i) {
      const auto found = ran_by.products.find(layer.products[i]);
      REQUIRE(found != ran_by.products.end());
      const std::vector<std::string>& slices = found->second.slices;
      const std::vector<int32_t> experts = flat(layer.wanted);
      REQUIRE(slices.size() == experts.size());
      for (size_t k = 0; k < experts.size(); ++k) {
        CHECK(slices[k] == bed.slice(layer.group, layer.parts[i], experts[k]));
      }
    }
  }
}

bool EngineRig::bound(const Tensor* product) { return !mappings.contains(scheduler.products.at(product).weights); }
