// Looking ahead inside a graph: what is guessed, what is read for it, and that a wrong guess changes nothing.
#include "engine_rig.h"
#include "fake_engine.h"
#include "router_bed.h"

using guanaco::PilotMode;
using guanaco::Tensor;

namespace {

constexpr int64_t kExperts = 16, kTopK = 3;

// Layers whose routers compute, each from a state of its own that the test chooses.
struct PilotRig : EngineRig {
  explicit PilotRig(PilotMode mode, uint32_t n_layers = 3, int64_t n_tokens = 1, uint32_t slots = 24)
      : EngineRig(n_layers, slots), n_rows(n_tokens) {
    bed.plan.pilot = mode;
    bed.plan.staging_bytes = 1u << 20;
    bed.plan.testing = true;
    for (uint32_t group = 0; group < n_layers; ++group) {
      inputs.push_back(routers.random_leaf(kWidth, n_rows));
      states.push_back(routers.node(fake::kAdd, kWidth, n_rows, {inputs.back(), routers.leaf(kWidth, 1)}));
      Tensor* scores = routers.scores(states.back(), kExperts);
      biases.push_back(routers.bias);
      MoeLayer& layer = routers.graph.layers.emplace_back();
      layer.group = group;
      layer.ids = routers.top(scores, kTopK);
      layer.sorted = layer.ids->src[0];
      layers.push_back(&layer);
    }
  }
  ~PilotRig() { backend->automatic = true; }
  // The products come where the layers are; so the graph is put together when the weights are there.
  void start_with_products() {
    start();
    std::vector<Tensor*> nodes;
    nodes.swap(routers.graph.graph.nodes);
    size_t next = 0;
    for (MoeLayer* layer : layers) {
      while (true) {
        Tensor* node = nodes[next++];
        routers.graph.graph.nodes.push_back(node);
        if (node == layer->ids) break;
      }
      add_products(&routers.graph, layer, {0, 1, 2});
    }
    std::vector<fake::OwnRun> before;
    fake_engine_take_runs(&before);
  }
  void all_states(const std::vector<float>& values) {
    for (Tensor* input : inputs) routers.set(input, values);
  }
  std::vector<float> random_state() { return routers.random_values(static_cast<size_t>(kWidth * n_rows)); }
  int decode() {
    const int status = run(&routers.graph);
    for (MoeLayer* layer : layers) {
      const std::vector<int32_t> ids = RouterBed::ids(layer->ids);
      layer->wanted.clear();
      for (int64_t row = 0; row < n_rows; ++row) {
        layer->wanted.emplace_back(ids.begin() + row * kTopK, ids.begin() + (row + 1) * kTopK);
      }
    }
    return status;
  }
  void decode_right() {
    CHECK_EQ(decode(), 0);
    check_products(routers.graph);
    CHECK_EQ(stats->unmanaged.load(), 0);
  }
  uint64_t first_page_of(uint32_t group, uint32_t part, int32_t expert) const {
    const auto& info = bed.plan.groups[group].parts[part];
    return guanaco::page_floor(info.offset + static_cast<uint64_t>(expert) * info.slice_bytes);
  }

  const int64_t n_rows;
  RouterBed routers;
  std::vector<Tensor*> inputs, states, biases;
  std::vector<MoeLayer*> layers;
};

size_t n_distinct(const std::vector<int32_t>& ids) {
  std::vector<int32_t> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  return static_cast<size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
}

}  // namespace

TEST(pilot_reads_what_the_next_router_wants) {
  PilotRig rig(PilotMode::kGate);
  rig.start_with_products();
  rig.all_states(rig.random_state());
  std::vector<bool> was_there;
  rig.scheduler.before_node = [&](const Tensor* node) {
    if (node != rig.states[1]) return;
    // The routers of all layers see one state, so the next selection is the guess.
    Tensor other = *rig.states[0];
    const auto cone = guanaco::RouterCone::build(rig.api, rig.routers.positions(), rig.layers[1]->ids);
    guanaco::MiniGraph mini(rig.api);
    std::vector<char> scratch;
    REQUIRE(cone != nullptr && cone->run(rig.api, &mini, &other, 1, &scratch));
    for (const int32_t expert : RouterBed::ids(cone->ids())) was_there.push_back(rig.store->slot_of(1, expert) >= 0);
  };
  rig.decode_right();
  CHECK(was_there == (std::vector<bool>{true, true, true}));
  CHECK_EQ(rig.stats->pilot_calls.load(), 2);  // nothing follows the last layer
  CHECK_EQ(rig.stats->pilot_guessed.load(), 2 * kTopK);
  CHECK_EQ(rig.stats->pilot_right.load(), 2 * kTopK);
  CHECK_EQ(rig.stats->pilot_selected.load(), 2 * kTopK);
  CHECK_EQ(rig.stats->pilot_slices.load(), 2 * kTopK * 3);
  CHECK_EQ(rig.stats->pilot_useful.load(), 2 * kTopK);
  CHECK_EQ(rig.stats->misses.load(), kTopK);
  CHECK_EQ(rig.stats->pilot_control_total.load(), 0);
}

TEST(pilot_wrong_guesses_change_nothing) {
  for (const uint32_t slots : {4u, 7u, 24u}) {
    PilotRig rig(PilotMode::kGate, 3, 1, slots);
    rig.start_with_products();
    for (int step = 0; step < 60; ++step) {
      for (Tensor* input : rig.inputs) rig.routers.set(input, rig.random_state());
      rig.decode_right();
    }
    CHECK(rig.stats->pilot_right < rig.stats->pilot_guessed);
    CHECK(rig.stats->pilot_wasted > 0);
    CHECK_EQ(rig.stats->pilot_selected.load(), 120 * kTopK);
  }
}

TEST(pilot_guesses_for_several_sequences) {
  PilotRig rig(PilotMode::kGate, 2, 4);
  rig.start_with_products();
  rig.all_states(rig.random_state());
  rig.decode_right();
  const size_t n = n_distinct(RouterBed::ids(rig.layers[1]->ids));
  CHECK_EQ(rig.stats->pilot_guessed.load(), n);
  CHECK_EQ(rig.stats->pilot_right.load(), n);
}

TEST(pilot_leaves_prompts_alone) {
  PilotRig rig(PilotMode::kGate, 2, 4);
  rig.bed.plan.batch_tokens = 3;
  rig.start_with_products();
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_calls.load(), 0);
  CHECK_EQ(rig.stats->pilot_slices.load(), 0);
}

TEST(pilot_off) {
  PilotRig rig(PilotMode::kOff);
  rig.start_with_products();
  rig.stats->pilot_control = 1;
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_calls.load(), 0);
  CHECK_EQ(rig.stats->pilot_control_total.load(), 0);
  std::vector<fake::OwnRun> seen;
  fake_engine_take_runs(&seen);
  CHECK(seen.empty());
}

TEST(pilot_guess_in_flight_is_waited_for) {
  PilotRig rig(PilotMode::kGate);
  rig.start_with_products();
  rig.backend->automatic = false;
  size_t n_waits = 0;
  rig.backend->on_wait = [&] {
    ++n_waits;
    rig.backend->finish(rig.backend->pending.size() - 1);
  };
  for (int step = 0; step < 20; ++step) {
    rig.all_states(rig.random_state());
    rig.decode_right();
  }
  CHECK(n_waits > 20);
  CHECK(rig.stats->pilot_useful > 20);
}

TEST(pilot_failed_guess_fails_no_graph) {
  PilotRig rig(PilotMode::kGate, 2);
  rig.start_with_products();
  rig.all_states(rig.random_state());
  rig.decode_right();
  const std::vector<int32_t> guessed = rig.layers[1]->wanted[0];
  for (Tensor* input : rig.inputs) rig.routers.set(input, rig.random_state());
  rig.decode_right();
  const std::vector<float> first = rig.random_state();
  rig.routers.set(rig.inputs[0], first);
  // Every read fails that layer 1 does not need this time.
  rig.decode_right();
  const std::vector<int32_t> needed = rig.layers[1]->wanted[0];
  for (int32_t expert = 0; expert < 16; ++expert) {
    if (std::find(needed.begin(), needed.end(), expert) != needed.end()) continue;
    for (uint32_t part = 0; part < 3; ++part) rig.backend->errors[{0, rig.first_page_of(1, part, expert)}] = -1;
  }
  for (int step = 0; step < 20; ++step) {
    rig.routers.set(rig.inputs[0], rig.random_state());
    rig.decode_right();
  }
  CHECK_EQ(rig.stats->read_errors.load(), 0);
  CHECK_EQ(rig.stats->error_length.load(), 0);
  CHECK(rig.stats->pilot_wasted > 0);
}

TEST(pilot_control_selects_what_the_engine_selected) {
  for (const int64_t n_tokens : {1, 3}) {
    PilotRig rig(PilotMode::kGate, 3, n_tokens);
    rig.start_with_products();
    rig.stats->pilot_control = 1;
    for (int step = 0; step < 5; ++step) {
      for (Tensor* input : rig.inputs) rig.routers.set(input, rig.random_state());
      rig.decode_right();
    }
    CHECK_EQ(rig.stats->pilot_control_total.load(), 5 * 3 * kTopK * n_tokens);
    CHECK_EQ(rig.stats->pilot_control_right.load(), rig.stats->pilot_control_total.load());
    rig.bed.plan.testing = false;
    rig.decode_right();
    CHECK_EQ(rig.stats->pilot_control_total.load(), 5 * 3 * kTopK * n_tokens);
  }
}

TEST(pilot_control_counts_what_it_does_not_understand) {
  PilotRig rig(PilotMode::kGate, 2);
  // An adapter beside the second router.
  Tensor* scores = rig.layers[1]->sorted->src[0];
  auto& nodes = rig.routers.graph.graph.nodes;
  Tensor* low = rig.routers.node(fake::kMulMat, 2, 1, {rig.routers.random_leaf(kWidth, 2), rig.states[1]});
  Tensor* high = rig.routers.node(fake::kMulMat, kExperts, 1, {rig.routers.random_leaf(2, kExperts), low});
  Tensor* sum = rig.routers.node(fake::kAdd, kExperts, 1, {scores, high});
  nodes.resize(nodes.size() - 3);
  nodes.insert(nodes.end() - 2, {low, high, sum});
  rig.layers[1]->sorted->src[0] = sum;
  rig.start_with_products();
  rig.stats->pilot_control = 1;
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_control_total.load(), 2 * kTopK);
  CHECK_EQ(rig.stats->pilot_control_right.load(), kTopK);
  CHECK_EQ(rig.stats->pilot_calls.load(), 0);
}

// The same products behind other routers: cut out anew.
TEST(pilot_notices_that_a_router_changed) {
  PilotRig rig(PilotMode::kGate);
  rig.start_with_products();
  rig.stats->pilot_control = 1;
  for (int step = 0; step < 4; ++step) {
    rig.all_states(rig.random_state());
    rig.decode_right();
    CHECK_EQ(rig.stats->pilot_control_right.load(), rig.stats->pilot_control_total.load());
    CHECK_EQ(rig.stats->pilot_right.load(), rig.stats->pilot_guessed.load());
    CHECK_EQ(rig.stats->pilot_calls.load(), static_cast<uint64_t>(2 * (step + 1)));
    Tensor* sum = rig.layers[1]->sorted->src[0];
    sum->src[1] = rig.routers.random_leaf(kExperts, 1);
    rig.layers[2]->sorted->src[0]->op_params[0] = step;
  }
}

TEST(pilot_needs_an_engine_that_lends_its_functions) {
  PilotRig rig(PilotMode::kGate);
  rig.start_with_products();
  rig.api.compute.complete = false;
  rig.all_states(rig.random_state());
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_calls.load(), 0);
}

TEST(pilot_forgets_its_guess_when_the_graph_fails) {
  PilotRig rig(PilotMode::kGate, 3);
  rig.start_with_products();
  rig.all_states(rig.random_state());
  rig.decode_right();
  const uint64_t selected = rig.stats->pilot_selected;
  rig.all_states(rig.random_state());
  for (int32_t expert = 0; expert < 16; ++expert) rig.backend->errors[{0, rig.first_page_of(0, 2, expert)}] = -1;
  CHECK_EQ(rig.decode(), guanaco::kStatusFailed);
  CHECK_EQ(rig.stats->pilot_selected.load(), selected);
  rig.backend->errors.clear();
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_selected.load(), selected + 2 * kTopK);
}

TEST(pilot_by_transitions) {
  PilotRig rig(PilotMode::kTransition);
  rig.start_with_products();
  const std::vector<float> a = rig.random_state(), b = rig.random_state();
  for (int step = 0; step < 6; ++step) {
    rig.all_states(step % 2 == 0 ? a : b);
    rig.decode_right();
    if (step == 1) CHECK(rig.stats->pilot_right <= rig.stats->pilot_guessed);
  }
  CHECK(rig.stats->pilot_calls >= 2 * 4);
  const uint64_t guessed = rig.stats->pilot_guessed, right = rig.stats->pilot_right;
  rig.all_states(a);
  rig.decode_right();
  CHECK_EQ(rig.stats->pilot_guessed - guessed, 2 * kTopK);
  CHECK(rig.stats->pilot_right - right >= 4);
  std::vector<fake::OwnRun> seen;
  fake_engine_take_runs(&seen);
  CHECK(seen.empty());  // no router was run
}

TEST(pilot_auto_learns_transitions_where_it_understands_no_router) {
  PilotRig rig(PilotMode::kAuto, 2);
  rig.start_with_products();
  rig.api.compute.complete = false;
  rig.all_states(rig.random_state());
  for (int step = 0; step < 3; ++step) rig.decode_right();
  CHECK_EQ(rig.stats->pilot_calls.load(), 2);
  CHECK_EQ(rig.stats->pilot_right.load(), rig.stats->pilot_guessed.load());
}

TEST(pilot_by_the_trace) {
  PilotRig rig(PilotMode::kGate, 2);
  std::string trace = "GNRP";
  const auto words = [&](std::initializer_list<uint32_t> all) {
    for (const uint32_t word : all) trace.append(reinterpret_cast<const char*>(&word), sizeof word);
  };
  const auto ids = [&](std::initializer_list<int16_t> all) {
    for (const int16_t id : all) trace.append(reinterpret_cast<const char*>(&id), sizeof id);
  };
  words({2, 2, 16, 3, 2});
  ids({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  words({2});
  ids({-1, -1, 4, 15, -1, -1, 9, -1});  // of layer 1: one right and one wrong, then one right
  rig.bed.plan.replay_path = rig.bed.dir.write("trace", trace);
  rig.start_with_products();
  rig.stats->replay_on = 1;
  CHECK_EQ(rig.decode(), 0);
  CHECK_EQ(rig.stats->pilot_useful.load(), 1);
  CHECK_EQ(rig.stats->pilot_wasted.load(), 1);
  CHECK_EQ(rig.stats->pilot_guessed.load(), 2);
  CHECK_EQ(rig.stats->pilot_right.load(), 1);
  CHECK_EQ(rig.decode(), 0);
  CHECK_EQ(rig.stats->pilot_guessed.load(), 3);
  CHECK_EQ(rig.stats->pilot_right.load(), 2);
  CHECK_EQ(rig.stats->pilot_selected.load(), 2 * kTopK);
  CHECK_EQ(rig.decode(), 0);  // past its end: the routers' own selections, and nothing predicted
  CHECK_EQ(rig.stats->pilot_guessed.load(), 3);
  std::vector<fake::OwnRun> seen;
  fake_engine_take_runs(&seen);
  CHECK_EQ(seen.size(), 3);  // the router was run for each, so that its cost is in the figures
}

// Unrelated states: what is guessed is hardly ever right. It stops reading, and in the end nearly stops guessing.
TEST(pilot_auto_stops_when_guesses_are_wrong) {
  PilotRig rig(PilotMode::kAuto, 2, 1, 12);
  rig.start_with_products();
  const auto decode_some = [&](int n) {
    for (int step = 0; step < n; ++step) {
      for (Tensor* input : rig.inputs) rig.routers.set(input, rig.random_state());
      rig.decode_right();
    }
  };
  decode_some(400);
  const uint64_t slices = rig.stats->pilot_slices;
  CHECK(slices > 0);
  decode_some(300);
  CHECK(rig.stats->pilot_slices - slices < 60);
  const uint64_t calls = rig.stats->pilot_calls;
  decode_some(160);
  CHECK(rig.stats->pilot_calls - calls < 40);
}
