// A router on its own selects what it selects in the graph, whatever state it is asked about.
#include "fake_engine.h"
#include "router_bed.h"

using guanaco::EngineApi;
using guanaco::MiniGraph;
using guanaco::RouterCone;
using guanaco::Tensor;

namespace {

constexpr int64_t kExperts = 12, kTopK = 3;

struct ConeRig {
  ConeRig() {
    std::string error;
    REQUIRE(api.load(reinterpret_cast<const void*>(&fake_engine_decode), nullptr, "", &error));
    input = bed.random_leaf(kWidth, 1);
    state = bed.node(fake::kAdd, kWidth, 1, {input, bed.leaf(kWidth, 1)});
  }
  std::unique_ptr<RouterCone> cut(Tensor* ids) { return RouterCone::build(api, bed.positions(), ids); }
  // What the graph selects when its state has these values.
  std::vector<int32_t> in_graph(const Tensor* ids, const std::vector<float>& values) {
    const std::vector<float> before(static_cast<float*>(input->data), static_cast<float*>(input->data) + values.size());
    bed.set(input, values);
    guanaco::Scheduler scheduler;
    CHECK_EQ(fake_engine_decode(&scheduler, &bed.graph.graph), 0);
    const std::vector<int32_t> result = RouterBed::ids(ids);
    bed.set(input, before);
    return result;
  }
  std::vector<int32_t> alone(RouterCone* cone, const std::vector<float>& values) {
    Tensor other = *state;
    other.data = bed.leaf(kWidth, static_cast<int64_t>(values.size()) / kWidth, values)->data;
    CHECK(cone->run(api, &mini, &other, 1, &scratch));
    return RouterBed::ids(cone->ids());
  }
  void check_agrees(RouterCone* cone, const Tensor* ids) {
    for (int round = 0; round < 20; ++round) {
      const std::vector<float> values = bed.random_values(static_cast<size_t>(kWidth * state->ne[1]));
      const std::vector<int32_t> selected = in_graph(ids, values);
      in_graph(ids, bed.random_values(values.size()));  // the graph goes on
      CHECK_EQ(alone(cone, values), selected);
    }
  }

  EngineApi api;
  MiniGraph mini{api};
  RouterBed bed;
  Tensor* input = nullptr;
  Tensor* state = nullptr;
  std::vector<char> scratch;
};

}  // namespace

TEST(router_cone_begins_before_the_norm) {
  ConeRig rig;
  Tensor* ids = rig.bed.top(rig.bed.scores(rig.state, kExperts), kTopK);
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  CHECK(cone->state() == rig.state);
  CHECK_EQ(cone->weight_bytes(), kWidth * kExperts * 4);
  rig.check_agrees(cone.get(), ids);
}

TEST(router_cone_without_a_norm) {
  ConeRig rig;
  Tensor* logits = rig.bed.node(fake::kMulMat, kExperts, 1, {rig.bed.random_leaf(kWidth, kExperts), rig.state});
  Tensor* ids = rig.bed.top(logits, kTopK);
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  CHECK(cone->state() == rig.state);
  rig.check_agrees(cone.get(), ids);
}

// Where two states meet behind the norm, the router's own input is as far back as it can be asked.
TEST(router_cone_of_a_sum_of_states) {
  ConeRig rig;
  Tensor* left = rig.bed.node(fake::kRmsNorm, kWidth, 1, {rig.state});
  Tensor* right = rig.bed.node(fake::kMul, kWidth, 1, {rig.state, rig.bed.random_leaf(kWidth, 1)});
  Tensor* met = rig.bed.node(fake::kAdd, kWidth, 1, {left, right});
  Tensor* logits = rig.bed.node(fake::kMulMat, kExperts, 1, {rig.bed.random_leaf(kWidth, kExperts), met});
  const auto cone = rig.cut(rig.bed.top(logits, kTopK));
  REQUIRE(cone != nullptr);
  CHECK(cone->state() == met);
}

TEST(router_cone_of_several_tokens) {
  ConeRig rig;
  rig.input = rig.bed.random_leaf(kWidth, 3);
  rig.state = rig.bed.node(fake::kAdd, kWidth, 3, {rig.input, rig.bed.leaf(kWidth, 1)});
  Tensor* ids = rig.bed.top(rig.bed.scores(rig.state, kExperts), kTopK);
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  rig.check_agrees(cone.get(), ids);
  Tensor* one_row = rig.bed.leaf(kWidth, 1);
  CHECK(!cone->run(rig.api, &rig.mini, one_row, 1, &rig.scratch));
}

TEST(router_cone_follows_chains_of_views) {
  ConeRig rig;
  Tensor* whole = rig.bed.node(fake::kAdd, 2 * kWidth, 1, {rig.bed.random_leaf(2 * kWidth, 1), rig.bed.leaf(2 * kWidth, 1)});
  // The state is the second half of a tensor; the norm reads it through a view of its own.
  rig.state = rig.bed.view(fake::kView, whole, kWidth, 1, kWidth);
  rig.input = whole->src[0];
  Tensor* same = rig.bed.view(fake::kReshape, rig.state, kWidth, 1);
  Tensor* normed = rig.bed.node(fake::kRmsNorm, kWidth, 1, {rig.state});
  Tensor* sum = rig.bed.node(fake::kAdd, kWidth, 1, {normed, same});
  Tensor* flat = rig.bed.view(fake::kReshape, rig.bed.node(fake::kMul, kWidth, 1, {sum, rig.bed.random_leaf(kWidth, 1)}), kWidth, 1);
  Tensor* bias = rig.bed.view(fake::kView, rig.bed.random_leaf(2 * kExperts, 1), kExperts, 1, 5);
  Tensor* logits = rig.bed.node(fake::kMulMat, kExperts, 1, {rig.bed.random_leaf(kWidth, kExperts), flat});
  Tensor* scores = rig.bed.view(fake::kReshape, rig.bed.node(fake::kAdd, kExperts, 1, {logits, bias}), kExperts, 1);
  Tensor* ids = rig.bed.view(fake::kView, rig.bed.top(scores, kTopK + 1), kTopK, 1);
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  // Two branches meet, so that the router's input is the state it is asked with.
  rig.state = flat;
  CHECK(cone->state() == flat);
  const std::vector<float> before = rig.bed.random_values(2 * kWidth);
  const std::vector<int32_t> selected = rig.in_graph(ids, before);
  const float* at_router = static_cast<const float*>(flat->data);
  CHECK_EQ(rig.alone(cone.get(), std::vector<float>(at_router, at_router + kWidth)), selected);
}

TEST(router_cone_of_a_state_that_is_a_view) {
  ConeRig rig;
  Tensor* whole = rig.bed.node(fake::kAdd, 2 * kWidth, 1, {rig.bed.random_leaf(2 * kWidth, 1), rig.bed.leaf(2 * kWidth, 1)});
  rig.state = rig.bed.view(fake::kView, whole, kWidth, 1, kWidth);
  Tensor* normed = rig.bed.node(fake::kRmsNorm, kWidth, 1, {rig.state});
  Tensor* first_of_state = rig.bed.view(fake::kView, rig.state, 1, 1);
  Tensor* logits = rig.bed.node(fake::kMulMat, kExperts, 1, {rig.bed.random_leaf(kWidth, kExperts), normed});
  // A gate of the scores by the state itself: the same bytes, seen by way of the whole tensor.
  Tensor* repeated = rig.bed.node(fake::kAdd, kExperts, 1, {logits, rig.bed.random_leaf(kExperts, 1)});
  Tensor* ids = rig.bed.top(repeated, kTopK);
  repeated->src[2] = first_of_state;
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  CHECK(cone->state() == rig.state);
  rig.input = whole->src[0];
  const std::vector<float> values = rig.bed.random_values(2 * kWidth);
  const std::vector<int32_t> selected = rig.in_graph(ids, values);
  CHECK_EQ(rig.alone(cone.get(), std::vector<float>(values.begin() + kWidth, values.end())), selected);
  // A view that begins before the state is not the state's.
  repeated->src[2] = rig.bed.view(fake::kView, whole, kWidth, 1, 0);
  std::swap(rig.bed.graph.graph.nodes.back(), rig.bed.graph.graph.nodes[2]);
  CHECK(rig.cut(ids) == nullptr);
}

TEST(router_cone_refuses) {
  const auto cut = [](auto change) {
    ConeRig rig;
    Tensor* scores = rig.bed.scores(rig.state, kExperts);
    return change(&rig, scores);
  };
  // An adapter's low-rank product beside the router's.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          Tensor* low = rig->bed.node(fake::kMulMat, 2, 1, {rig->bed.random_leaf(kWidth, 2), rig->state});
          Tensor* high = rig->bed.node(fake::kMulMat, kExperts, 1, {rig->bed.random_leaf(2, kExperts), low});
          return rig->cut(rig->bed.top(rig->bed.node(fake::kAdd, kExperts, 1, {scores, high}), kTopK));
        }) == nullptr);
  // Weights on a card.
  fake::Buffer card{false, nullptr};
  CHECK(cut([&](ConeRig* rig, Tensor* scores) {
          rig->bed.router_weight->buffer = &card;
          return rig->cut(rig->bed.top(scores, kTopK));
        }) == nullptr);
  CHECK(cut([&](ConeRig* rig, Tensor* scores) {
          rig->bed.bias->buffer = &card;
          return rig->cut(rig->bed.top(scores, kTopK));
        }) == nullptr);
  // A weight that is nowhere yet.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          rig->bed.bias->data = nullptr;
          return rig->cut(rig->bed.top(scores, kTopK));
        }) == nullptr);
  // No router at all: ids from a table.
  CHECK(cut([](ConeRig* rig, Tensor*) {
          Tensor* ids = rig->bed.node(fake::kGetRows, kTopK, 1, {rig->bed.random_leaf(kTopK, 8), rig->bed.leaf(1, 1)});
          return rig->cut(ids);
        }) == nullptr);
  // Another layer's experts upstream.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          Tensor* product = rig->bed.node(fake::kMulMatId, kExperts, 1, {rig->bed.random_leaf(4, 4), rig->state, rig->state});
          return rig->cut(rig->bed.top(rig->bed.node(fake::kAdd, kExperts, 1, {scores, product}), kTopK));
        }) == nullptr);
  // Something that writes into the model's memory.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          Tensor* cache = rig->bed.leaf(kExperts, 1);
          Tensor* copied = rig->bed.view(fake::kCpy, cache, kExperts, 1);
          copied->src[0] = scores;
          copied->src[1] = cache;
          return rig->cut(rig->bed.top(copied, kTopK));
        }) == nullptr);
  // More than a router can be.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          for (int i = 0; i < 80; ++i) scores = rig->bed.node(fake::kAdd, kExperts, 1, {scores, rig->bed.leaf(kExperts, 1)});
          return rig->cut(rig->bed.top(scores, kTopK));
        }) == nullptr);
  // A state of another type, or one that is not in the graph.
  CHECK(cut([](ConeRig* rig, Tensor* scores) {
          rig->state->type = 1;
          return rig->cut(rig->bed.top(scores, kTopK));
        }) == nullptr);
  CHECK(cut([](ConeRig* rig, Tensor*) {
          Tensor* logits = rig->bed.node(fake::kMulMat, kExperts, 1, {rig->bed.random_leaf(kWidth, kExperts), rig->input});
          return rig->cut(rig->bed.top(logits, kTopK));
        }) == nullptr);
}

// A cast names itself as its second source.
TEST(router_cone_of_a_node_that_names_itself) {
  ConeRig rig;
  Tensor* scores = rig.bed.scores(rig.state, kExperts);
  Tensor* cast = rig.bed.node(fake::kCpy, kExperts, 1, {scores});
  cast->src[1] = cast;
  Tensor* ids = rig.bed.top(cast, kTopK);
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  rig.check_agrees(cone.get(), ids);
}

TEST(router_cone_validity) {
  ConeRig rig;
  Tensor* scores = rig.bed.scores(rig.state, kExperts);
  Tensor* ids = rig.bed.top(scores, kTopK);
  Tensor* behind = rig.bed.node(fake::kAdd, kWidth, 1, {rig.state, rig.bed.leaf(kWidth, 1)});
  const auto cone = rig.cut(ids);
  REQUIRE(cone != nullptr);
  auto& nodes = rig.bed.graph.graph.nodes;
  const auto is_valid_with = [&](auto change) {
    const std::vector<Tensor*> before = nodes;
    std::vector<Tensor> contents;
    for (const Tensor* node : nodes) contents.push_back(*node);
    change();
    const bool valid = cone->still_valid(rig.api, &rig.bed.graph.graph);
    nodes = before;
    for (size_t i = 0; i < nodes.size(); ++i) *nodes[i] = contents[i];
    return valid;
  };
  CHECK(is_valid_with([] {}));
  CHECK(is_valid_with([&] { behind->op = fake::kMul; }));
  CHECK(is_valid_with([&] { scores->data = nullptr; }));  // where it lies is not asked
  CHECK(!is_valid_with([&] { scores->op = fake::kMul; }));
  CHECK(!is_valid_with([&] { scores->src[1] = rig.bed.leaf(kExperts, 1); }));
  CHECK(!is_valid_with([&] { scores->op_params[3] = 1; }));
  CHECK(!is_valid_with([&] { scores->ne[1] = 2; }));
  CHECK(!is_valid_with([&] { ids->nb[1] = 4; }));
  CHECK(!is_valid_with([&] { ids->view_src = scores; }));
  CHECK(!is_valid_with([&] { std::swap(nodes[2], nodes[3]); }));
  CHECK(!is_valid_with([&] { nodes[0] = behind; }));  // the state
}

// One at a time, so that the memory of all is that of the largest.
TEST(router_cones_share_their_memory) {
  ConeRig rig;
  Tensor* first_ids = rig.bed.top(rig.bed.scores(rig.state, kExperts), kTopK);
  Tensor* second_ids = rig.bed.top(rig.bed.scores(rig.state, 4 * kExperts), kTopK);
  const auto first = rig.cut(first_ids), second = rig.cut(second_ids);
  REQUIRE(first != nullptr && second != nullptr);
  for (int round = 0; round < 5; ++round) {
    rig.check_agrees(first.get(), first_ids);
    rig.check_agrees(second.get(), second_ids);
  }
  const size_t nbytes = rig.scratch.size();
  CHECK(nbytes < 2048);
  rig.check_agrees(first.get(), first_ids);
  CHECK_EQ(rig.scratch.size(), nbytes);
}

TEST(router_cone_asked_about_a_state_it_cannot_read) {
  ConeRig rig;
  const auto cone = rig.cut(rig.bed.top(rig.bed.scores(rig.state, kExperts), kTopK));
  REQUIRE(cone != nullptr);
  Tensor other = *rig.state;
  other.data = nullptr;
  CHECK(!cone->run(rig.api, &rig.mini, &other, 1, &rig.scratch));
  other = *rig.state;
  other.type = guanaco::kTypeI32;
  CHECK(!cone->run(rig.api, &rig.mini, &other, 1, &rig.scratch));
  fake_engine_fault(fake::Fault::kCompute);
  CHECK(!cone->run(rig.api, &rig.mini, rig.state, 1, &rig.scratch));
  fake_engine_fault(fake::Fault::kNone);
  CHECK(cone->run(rig.api, &rig.mini, rig.state, 1, &rig.scratch));
  // On a card: fetched.
  const std::vector<float> values = rig.bed.random_values(kWidth);
  fake::Buffer card{false, reinterpret_cast<const char*>(values.data())};
  const std::vector<int32_t> expected = rig.alone(cone.get(), values);
  other = *rig.state;
  other.buffer = &card;
  other.data = reinterpret_cast<void*>(uintptr_t{0x40});
  CHECK(cone->run(rig.api, &rig.mini, &other, 1, &rig.scratch));
  CHECK_EQ(RouterBed::ids(cone->ids()), expected);
}
