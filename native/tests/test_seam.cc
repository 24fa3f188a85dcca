// The seam with every read succeeding: each product sees the slots of the experts its ids name.
#include "engine_rig.h"

using guanaco::Tensor;

namespace {

void check_all_bound(EngineRig* rig, const TestGraph& graph) {
  rig->check_products(graph);
  for (const MoeLayer& layer : graph.layers) {
    for (const Tensor* product : layer.products) CHECK(rig->bound(product));
  }
  CHECK_EQ(rig->stats->unmanaged.load(), 0);
}

}  // namespace

TEST(seam_products_see_their_experts) {
  EngineRig rig(2, 9);
  rig.start();
  CHECK_EQ(rig.stats->groups_expected.load(), 2);
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{3, 5}});
  MoeLayer& second = rig.add_layer(&graph, 1, {{15, 0}});
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  CHECK_EQ(rig.stats->groups_bound.load(), 2);
  for (int32_t step = 0; step < 20; ++step) {
    graph.select(&first, {{step % 16, (step * 5 + 1) % 16}});
    graph.select(&second, {{(step * 3) % 16, (step * 3 + 7) % 16}});
    CHECK_EQ(rig.run(&graph), 0);
    check_all_bound(&rig, graph);
  }
  CHECK_EQ(rig.stats->graphs.load(), 21);
  CHECK_EQ(rig.stats->tokens.load(), 21);
  CHECK_EQ(rig.stats->prefetch_calls.load(), 42);  // one selection a layer, however many products share it
  CHECK_EQ(rig.stats->accesses.load(), 84);
  CHECK(rig.stats->hits.load() > 0 && rig.stats->evictions.load() > 0);
  CHECK_EQ(rig.stats->groups_bound.load(), 2);
  CHECK_EQ(rig.scheduler.computed.size(), graph.graph.nodes.size());
}

TEST(seam_leaves_the_routers_ids_alone) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{9, 2}, {2, 11}});
  std::vector<int32_t> seen;
  graph.on_compute(graph.graph.nodes.back(), [&] {
    const int32_t* ids = static_cast<const int32_t*>(layer.ids->data);
    seen = {ids[0], ids[1], ids[16], ids[17]};
  });
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  CHECK_EQ(seen, (std::vector<int32_t>{9, 2, 2, 11}));
  CHECK_EQ(rig.stats->accesses.load(), 3);  // distinct experts
  CHECK_EQ(rig.stats->tokens.load(), 2);
}

// The engine's work buffer grows with the experts of a product's weights: no more than the slots in use are shown.
TEST(seam_shows_few_experts) {
  EngineRig rig(1, 12);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{0, 1, 2, 3, 4, 5, 6, 7}});
  CHECK_EQ(rig.run(&graph), 0);
  TestGraph decode;
  MoeLayer& few = rig.add_layer(&decode, 0, {{4, 6}});
  CHECK_EQ(rig.run(&decode), 0);
  check_all_bound(&rig, decode);
  for (const Tensor* product : few.products) CHECK_EQ(rig.scheduler.products[product].n_expert, 3);
  CHECK_EQ(layer.products.size(), 3);
}

TEST(seam_user_callback_sees_every_node) {
  EngineRig rig(2, 8);
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  MoeLayer& second = rig.add_layer(&graph, 1, {{3, 4}});
  struct Seen {
    std::vector<Tensor*> asked, shown;
    std::vector<Tensor*> wanted;
  } seen;
  seen.wanted = {graph.graph.nodes[0], second.ids, second.products[1], graph.graph.nodes.back()};
  rig.user.user_data = &seen;
  rig.user.function = [](Tensor* tensor, bool ask, void* data) {
    Seen* self = static_cast<Seen*>(data);
    (ask ? self->asked : self->shown).push_back(tensor);
    return !ask || std::find(self->wanted.begin(), self->wanted.end(), tensor) != self->wanted.end();
  };
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  CHECK(seen.asked == graph.graph.nodes);
  CHECK(seen.shown == seen.wanted);
  CHECK(rig.scheduler.computed == graph.graph.nodes);
}

// Who collects statistics (llama-imatrix) reads a product's weights, ids and kind.
TEST(seam_user_callback_sees_the_engines_own_weights_and_ids) {
  EngineRig rig(2, 8);
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  rig.add_layer(&graph, 1, {{3, 4}, {4, 9}});
  struct Look {
    std::vector<std::pair<const Tensor*, const Tensor*>> own;  // by node: weights, ids
    const std::vector<Tensor*>* nodes;
    size_t n_right = 0, n_wrong = 0;
  } look;
  look.nodes = &graph.graph.nodes;
  for (const Tensor* node : graph.graph.nodes) look.own.emplace_back(node->src[0], node->src[2]);
  rig.user.user_data = &look;
  rig.user.function = [](Tensor* tensor, bool, void* data) {
    Look* self = static_cast<Look*>(data);
    if (tensor->op != fake::kMulMatId) return tensor->op != 0;
    const auto at = std::find(self->nodes->begin(), self->nodes->end(), tensor) - self->nodes->begin();
    const auto& own = self->own[static_cast<size_t>(at)];
    ++(tensor->src[0] == own.first && tensor->src[2] == own.second ? self->n_right : self->n_wrong);
    return true;
  };
  for (int round = 0; round < 2; ++round) {
    CHECK_EQ(rig.run(&graph), 0);
    check_all_bound(&rig, graph);
  }
  CHECK_EQ(look.n_wrong, 0);
  CHECK_EQ(look.n_right, 2 * 2 * 6);  // rounds, ask and shown, products
}

TEST(seam_user_callback_stops_the_graph) {
  EngineRig rig(2, 3);
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{1, 2}});
  rig.add_layer(&graph, 1, {{3, 4}});
  struct Stop {
    Tensor* at;
    bool active;
  } stop{first.products[1], true};
  rig.user.user_data = &stop;
  rig.user.function = [](Tensor* tensor, bool ask, void* data) {
    const Stop* self = static_cast<const Stop*>(data);
    return ask ? tensor == self->at : !self->active;
  };
  CHECK_EQ(rig.run(&graph), 0);  // as without the seam: a refusal is no failure
  CHECK(rig.scheduler.computed.back() == first.products[1]);
  stop.active = false;
  CHECK_EQ(rig.run(&graph), 0);  // nothing is left pinned: the slots are just enough
  check_all_bound(&rig, graph);
}

TEST(seam_engine_status_passes_through) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  rig.scheduler.status = -2;
  CHECK_EQ(rig.run(&graph), -2);
  rig.scheduler.status = 0;
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
}

TEST(seam_graph_without_experts) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  graph.node(fake::kAdd);
  graph.node(fake::kAdd, {graph.graph.nodes[0]});
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(rig.scheduler.computed.size(), 2);
  CHECK_EQ(rig.stats->prefetch_calls.load(), 0);
  TestGraph empty;
  CHECK_EQ(rig.run(&empty), 0);
}

// Slots for one layer's selection only: each layer has to be given back before the next.
TEST(seam_releases_layer_by_layer) {
  EngineRig rig(3, 2);
  rig.start();
  TestGraph graph;
  for (uint32_t group = 0; group < 3; ++group) rig.add_layer(&graph, group, {{7, 8}});
  for (int round = 0; round < 3; ++round) {
    CHECK_EQ(rig.run(&graph), 0);
    check_all_bound(&rig, graph);
  }
  CHECK_EQ(rig.stats->misses.load(), 18);
}

TEST(seam_two_selections_over_one_layer) {
  EngineRig rig(1, 6);
  rig.start();
  TestGraph graph;
  // Gate and up by the router's ids; down by a copy of them that another node makes.
  MoeLayer& router = graph.router(0, {{5, 9}}, 16);
  rig.add_products(&graph, &router, {0, 1});
  MoeLayer& recast = graph.input_ids(0, {{0, 0}});
  graph.graph.nodes.push_back(recast.ids);
  recast.ids->op = fake::kAdd;
  graph.on_compute(recast.ids, [&] { graph.select(&recast, router.wanted); });
  rig.add_products(&graph, &recast, {2});
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  graph.select(&router, {{1, 2}});
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  CHECK_EQ(rig.stats->misses.load(), 4);
}

TEST(seam_ids_known_before_the_graph) {
  EngineRig rig(3, 2);
  rig.start();
  TestGraph graph;
  for (uint32_t group = 0; group < 3; ++group) {
    MoeLayer& layer = graph.input_ids(group, {{static_cast<int32_t>(group), 12}});
    rig.add_products(&graph, &layer, {0, 1, 2});
  }
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  for (MoeLayer& layer : graph.layers) graph.select(&layer, {{6, 4}});
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
}

// With layers on a card the scheduler copies a selection to the host when the split of its products begins.
TEST(seam_ids_copied_at_the_beginning_of_a_split) {
  EngineRig rig(3, 2);
  rig.start();
  TestGraph graph;
  for (uint32_t group = 0; group < 3; ++group) {
    if (group > 0) graph.graph.split_begins.push_back(graph.graph.nodes.size());
    graph.graph.split_inputs.emplace_back();
    graph.node(fake::kAdd);  // the router, on the card
    graph.graph.split_begins.push_back(graph.graph.nodes.size());
    MoeLayer& layer = graph.input_ids(group, {{-5, -5}});
    const int32_t expert = static_cast<int32_t>(group);
    graph.graph.split_inputs.emplace_back([&graph, &layer, expert] { graph.select(&layer, {{expert, 9}}); });
    rig.add_products(&graph, &layer, {0, 1, 2});
  }
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
}

TEST(seam_ids_on_a_card) {
  EngineRig rig(1, 6);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{13, 1}, {1, 6}});
  // The view's bytes are elsewhere; `data` is an address on the card.
  std::vector<int32_t> on_card(32, -1);
  fake::Buffer card{false, reinterpret_cast<const char*>(on_card.data())};
  layer.sorted->buffer = &card;
  layer.ids->data = reinterpret_cast<void*>(uintptr_t{0x40});
  layer.ids->view_offs = 8;
  graph.on_compute(layer.sorted, [&] {
    const int32_t values[] = {13, 1};
    std::copy(values, values + 2, on_card.begin() + 2);
    const int32_t more[] = {1, 6};
    std::copy(more, more + 2, on_card.begin() + 2 + 16);
  });
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
}

TEST(seam_view_that_begins_inside_a_slice) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = graph.router(0, {{14, 3}}, 16);
  std::vector<Tensor*> products;
  for (uint32_t part = 0; part < 3; ++part) {
    fake::FullTensor* half = &graph.tensors.emplace_back();
    static_cast<Tensor&>(*half) = *rig.weights(0, part);
    half->view_src = rig.weights(0, part);
    half->ne[1] = 1;
    half->view_offs = half->nb[1];
    half->data = static_cast<char*>(half->data) + half->nb[1];
    products.push_back(graph.product(half, layer.ids));
  }
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  for (uint32_t part = 0; part < 3; ++part) {
    CHECK(rig.bound(products[part]));
    const std::string whole = rig.bed.slice(0, part, 3);
    CHECK(rig.scheduler.products[products[part]].slices.at(1) == whole.substr(whole.size() / 2));
  }
}

// Down may still be on its way while gate and up compute.
TEST(seam_overlaps_the_last_part) {
  EngineRig rig(1, 4);
  rig.bed.plan.staging_bytes = 1u << 20;
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{14, 3}});
  const auto& groups = rig.bed.plan.groups;
  rig.backend->automatic = false;
  const auto finish_until = [&](uint64_t offset) {  // reads of the parts before it
    for (size_t i = 0; i < rig.backend->pending.size();) {
      if (rig.backend->pending[i].offset < offset) {
        rig.backend->finish(i);
      } else {
        ++i;
      }
    }
  };
  size_t n_held = 0;
  rig.scheduler.before_node = [&](Tensor* node) {
    if (node == layer.products[0]) {
      n_held = rig.backend->pending.size();
      rig.backend->finish_all();
    }
  };
  // Gate arrives in the moment it is waited for; up and down only once gate computes.
  rig.backend->on_wait = [&] { finish_until(groups[0].parts[1].offset - guanaco::kPage); };
  CHECK_EQ(rig.run(&graph), 0);
  check_all_bound(&rig, graph);
  CHECK(n_held > 0);
}

TEST(seam_replays_before_anybody_reads) {
  EngineRig rig(2, 8);
  std::string trace = "GNRP";
  for (const uint32_t word : {1u, 2u, 16u, 2u, 3u}) trace.append(reinterpret_cast<const char*>(&word), 4);
  for (int16_t id = 1; id <= 12; ++id) trace.append(reinterpret_cast<const char*>(&id), 2);
  rig.bed.plan.replay_path = rig.bed.dir.write("trace", trace);
  for (const bool manage : {true, false}) {
    EngineRig other(2, 8);
    other.bed.plan.replay_path = rig.bed.plan.replay_path;
    other.bed.plan.manage = manage;  // a peer replays and streams nothing
    other.start();
    other.stats->replay_on = 1;
    TestGraph graph;
    MoeLayer& first = other.add_layer(&graph, 0, {{0, 0}});
    MoeLayer& second = other.add_layer(&graph, 1, {{0, 0}});
    const std::vector<Rows> want_first = {{{1, 2}}, {{5, 6}}, {{9, 10}}};
    const std::vector<Rows> want_second = {{{3, 4}}, {{7, 8}}, {{11, 12}}};
    for (size_t token = 0; token < 3; ++token) {
      // The router goes on choosing expert 0: what counts is what the trace wrote over it.
      graph.on_compute(first.sorted, [] {});
      graph.on_compute(second.sorted, [] {});
      CHECK_EQ(other.run(&graph), 0);
      first.wanted = want_first[token];
      second.wanted = want_second[token];
      other.check_products(graph);
      CHECK_EQ(other.bound(first.products[0]), manage);
      CHECK_EQ(static_cast<const int32_t*>(second.ids->data)[1], want_second[token][0][1]);
    }
    CHECK_EQ(other.stats->replay_exhausted.load(), 0);
    CHECK_EQ(other.stats->replay_position.load(), 3);
  }
}

// The trace's layer is the group's, however many selections a graph has and whichever layers it runs.
TEST(seam_replays_by_layer) {
  EngineRig rig(2, 8);
  std::string trace = "GNRP";
  for (const uint32_t word : {1u, 2u, 16u, 2u, 2u}) trace.append(reinterpret_cast<const char*>(&word), 4);
  for (int16_t id = 1; id <= 8; ++id) trace.append(reinterpret_cast<const char*>(&id), 2);
  rig.bed.plan.replay_path = rig.bed.dir.write("trace", trace);
  rig.start();
  rig.stats->replay_on = 1;
  TestGraph graph;
  MoeLayer& router = graph.router(0, {{0, 0}}, 16);
  rig.add_products(&graph, &router, {0, 1});
  MoeLayer& recast = graph.input_ids(0, {{0, 0}});
  rig.add_products(&graph, &recast, {2});
  MoeLayer& second = rig.add_layer(&graph, 1, {{0, 0}});
  CHECK_EQ(rig.run(&graph), 0);
  router.wanted = recast.wanted = {{1, 2}};
  second.wanted = {{3, 4}};
  check_all_bound(&rig, graph);
  TestGraph only_second;
  MoeLayer& alone = rig.add_layer(&only_second, 1, {{0, 0}});
  CHECK_EQ(rig.run(&only_second), 0);
  alone.wanted = {{7, 8}};
  check_all_bound(&rig, only_second);
}

TEST(seam_page_cache_mode) {
  EngineRig rig(2, 4);
  rig.bed.plan.io = guanaco::IoMode::kPageCache;
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  MoeLayer& second = rig.add_layer(&graph, 1, {{3, 4}});
  for (int round = 0; round < 3; ++round) CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);
  CHECK(!rig.bound(second.products[0]));  // from the mapping, which is the point of this mode
  CHECK_EQ(rig.stats->groups_bound.load(), 2);
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  CHECK_EQ(rig.stats->misses.load(), 4);
  CHECK_EQ(rig.stats->hits.load(), 8);
  TestGraph large;
  rig.add_layer(&large, 0, {{1, 2, 3, 4, 5}});
  CHECK_EQ(rig.run(&large), 0);
  rig.check_products(large);
  CHECK_EQ(rig.stats->unmanaged.load(), 3);
}
