// Products that compute what is there while the rest is read: the same numbers, in the order of arrival.
#include "overlap_rig.h"

#include <map>
#include <set>

using guanaco::Tensor;

namespace {

struct OverlapRig : EngineRig {
  explicit OverlapRig(uint32_t slots = 8, bool overlap = true) : EngineRig(1, slots) {
    bed.plan.overlap = overlap;
    bed.plan.staging_bytes = 1u << 20;
    start();
    TestGraph graph;
    ComputingLayer warm(this, &graph, 0, {{2, 7}});
    CHECK_EQ(run(&graph), 0);
    runs();
    stats->overlapped = 0;
    backend->automatic = false;
  }
  ~OverlapRig() { backend->automatic = true; }
};

}  // namespace

TEST(overlap_computes_what_is_there_first) {
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  // Whenever somebody waits, the youngest read arrives.
  rig.backend->on_wait = [&] { rig.backend->finish(rig.backend->pending.size() - 1); };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output({{9, 2, 4, 7}}));
  const std::vector<fake::OwnRun> seen = runs();
  // Gate: the residents; then, as all of up and down is there before, 4 and 9 of gate in turn. Up and down: all there.
  REQUIRE(seen.size() == 3);
  std::vector<std::vector<std::string>> slices;
  for (const fake::OwnRun& run : seen) {
    REQUIRE(run.products.size() == 1);
    CHECK_EQ(run.n_threads, 1);
    slices.push_back(run.products[0].slices);
  }
  CHECK(slices[0] == (std::vector<std::string>{rig.bed.slice(0, 0, 2), rig.bed.slice(0, 0, 7)}));
  CHECK(slices[1] == (std::vector<std::string>{rig.bed.slice(0, 0, 4)}));
  CHECK(slices[2] == (std::vector<std::string>{rig.bed.slice(0, 0, 9)}));
  CHECK_EQ(rig.stats->overlapped.load(), 3);  // the last had nobody to wait for
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  CHECK(rig.scheduler.products.count(computing.layer.products[0]) == 0);  // the engine left it out
  CHECK(rig.bound(computing.layer.products[1]) && rig.bound(computing.layer.products[2]));
}

// Each product waits only for its own part; the order of arrival within it decides.
TEST(overlap_of_every_product) {
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  size_t n_arrived = 0;
  rig.backend->on_wait = [&] {
    rig.backend->finish(0);
    ++n_arrived;
  };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output({{9, 2, 4, 7}}));
  CHECK_EQ(n_arrived, 6);  // two experts, three parts
  const std::vector<fake::OwnRun> seen = runs();
  CHECK_EQ(seen.size(), 9);  // the residents, 9, 4; of each part
  CHECK_EQ(rig.stats->overlapped.load(), 9);
  CHECK(rig.scheduler.products.empty());
  CHECK_EQ(rig.scheduler.computed.size(), graph.graph.nodes.size());
}

TEST(overlap_of_nothing_resident) {
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 12, 4, 11}});
  rig.backend->on_wait = [&] { rig.backend->finish(0); };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output({{9, 12, 4, 11}}));
  CHECK_EQ(runs().size(), 12);
}

TEST(overlap_leaves_to_the_engine) {
  const auto runs_of = [](auto change, bool overlap = true) {
    OverlapRig rig(8, overlap);
    TestGraph graph;
    ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
    change(&rig, &computing);
    rig.backend->on_wait = [&] { rig.backend->finish_all(); };
    CHECK_EQ(rig.run(&graph), 0);
    rig.check_products(graph);
    CHECK_EQ(rig.scheduler.products.size(), 3);
    return runs().size();
  };
  CHECK_EQ(runs_of([](OverlapRig* rig, ComputingLayer*) {  // all is there
             rig->backend->automatic = true;
             TestGraph before;
             rig->add_layer(&before, 0, {{9, 4}});
             CHECK_EQ(rig->run(&before), 0);
             runs();
           }), 0);
  CHECK_EQ(runs_of([](OverlapRig*, ComputingLayer*) {}, false), 0);
  CHECK_EQ(runs_of([](OverlapRig* rig, ComputingLayer*) { rig->bed.plan.threads = 2; }), 0);
  fake::Buffer card{false, nullptr};
  CHECK_EQ(runs_of([&](OverlapRig*, ComputingLayer* c) { c->layer.products[1]->buffer = &card; }), 0);
  CHECK_EQ(runs_of([&](OverlapRig*, ComputingLayer* c) { c->layer.products[2]->src[1]->buffer = &card; }), 0);
  CHECK_EQ(runs_of([](OverlapRig*, ComputingLayer* c) { c->layer.products[2]->data = nullptr; }), 0);
  CHECK_EQ(runs_of([](OverlapRig*, ComputingLayer* c) { c->layer.products[2]->src[1]->type = 1; }), 0);
  CHECK_EQ(runs_of([](OverlapRig*, ComputingLayer* c) { c->layer.products[2]->src[1]->ne[1] = 2; }), 0);
}

TEST(overlap_needs_an_engine_that_lends_its_functions) {
  EngineRig rig(1, 8);
  rig.start();
  rig.api.compute.complete = false;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);
  CHECK_EQ(computing.output(), expected_output({{9, 2, 4, 7}}));
  CHECK_EQ(runs().size(), 0);
}

// A batch: the rows of every expert that is there, whichever tokens they are of.
TEST(overlap_of_several_tokens) {
  const Rows wanted = {{9, 2}, {4, 7}, {2, 9}, {7, 4}, {2, 4}};
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, wanted);
  rig.backend->on_wait = [&] { rig.backend->finish(rig.backend->pending.size() - 1); };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(wanted));
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  const std::vector<fake::OwnRun> seen = runs();
  REQUIRE(seen.size() == 3);
  const auto slice = [&](int32_t expert) { return rig.bed.slice(0, 0, expert); };
  const auto slices = [&](size_t run) { return seen.at(run).products.at(0).slices; };
  // As above, in the order of the cache's experts, each with all its rows.
  CHECK(slices(0) == (std::vector<std::string>{slice(2), slice(2), slice(2), slice(7), slice(7)}));
  CHECK(slices(1) == (std::vector<std::string>{slice(4), slice(4), slice(4)}));
  CHECK(slices(2) == (std::vector<std::string>{slice(9), slice(9)}));
}

// More rows than are computed at once: in pieces, none of which ends inside an expert's rows. The engine may compute
// them by another kernel when there are many.
TEST(overlap_of_a_large_batch) {
  Rows wanted;
  for (size_t token = 0; token < guanaco::Overlap::kMostRows; ++token) {
    wanted.push_back({token % 3 == 0 ? 9 : token % 3 == 1 ? 4 : 2, token % 8 == 0 ? 11 : 7});
  }
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, wanted);
  rig.backend->on_wait = [&] { rig.backend->finish(0); };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(wanted));
  std::map<std::string, size_t> runs_of;  // by slice
  size_t n_rows = 0, most_rows = 0;
  for (const fake::OwnRun& run : runs()) {
    const std::vector<std::string>& slices = run.products.at(0).slices;
    n_rows += slices.size();
    most_rows = std::max(most_rows, slices.size());
    for (const std::string& slice : std::set<std::string>(slices.begin(), slices.end())) ++runs_of[slice];
  }
  CHECK_EQ(n_rows, 3 * 2 * wanted.size());
  CHECK(most_rows <= guanaco::Overlap::kMostRows);
  CHECK_EQ(runs_of.size(), 3 * 5);
  for (const auto& [slice, n] : runs_of) CHECK_EQ(n, 1);
}

TEST(overlap_of_an_expert_with_more_rows_than_are_computed_at_once) {
  const Rows wanted(guanaco::Overlap::kMostRows + 5, {9, 2});
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, wanted);
  rig.backend->on_wait = [&] { rig.backend->finish(0); };
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(wanted));
  for (const fake::OwnRun& run : runs()) CHECK_EQ(run.products.at(0).slices.size(), wanted.size());
}

TEST(overlap_fails_with_a_reason) {
  for (const uint64_t part : {0u, 1u, 2u}) {
    OverlapRig rig;
    TestGraph graph;
    ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
    const auto& info = rig.bed.plan.groups[0].parts[part];
    rig.backend->errors[{0, guanaco::page_floor(info.offset + 4 * info.slice_bytes)}] = -1;
    rig.backend->on_wait = [&] { rig.backend->finish(0); };
    CHECK_EQ(rig.run(&graph), guanaco::kStatusFailed);  // run() checks that the graph is as the engine built it
    const std::string error(rig.stats->error, rig.stats->error_length);
    CHECK_CONTAINS(error, "expert 4 of blk.0.ffn_");
    rig.backend->errors.clear();
    CHECK_EQ(rig.run(&graph), 0);
    CHECK_EQ(computing.output(), expected_output({{9, 2, 4, 7}}));
    runs();
  }
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  rig.backend->on_wait = [&] { rig.backend->finish_all(); };
  fake_engine_fault(fake::Fault::kCompute);
  CHECK_EQ(rig.run(&graph), guanaco::kStatusFailed);
  CHECK_CONTAINS(std::string(rig.stats->error, rig.stats->error_length), "could not compute");
  fake_engine_fault(fake::Fault::kNone);
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output({{9, 2, 4, 7}}));
  runs();
}

// Nodes between the products read their results as if the engine had computed them, and a callback sees them.
TEST(overlap_results_are_there_for_the_next_node) {
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  const std::vector<float> expected = expected_output({{9, 2, 4, 7}});
  std::vector<float> seen_by_node, seen_by_user;
  const Tensor* up = computing.layer.products[1];
  graph.on_compute(graph.graph.nodes[5], [&] {
    const float* values = static_cast<const float*>(up->data);
    seen_by_node.assign(values, values + 16);
  });
  struct Seen {
    const Tensor* up;
    std::vector<float>* values;
  } seen{up, &seen_by_user};
  rig.user.user_data = &seen;
  rig.user.function = [](Tensor* tensor, bool ask, void* data) {
    const Seen* self = static_cast<const Seen*>(data);
    if (!ask && tensor == self->up) {
      const float* values = static_cast<const float*>(tensor->data);
      self->values->assign(values, values + 16);
    }
    return true;
  };
  rig.backend->on_wait = [&] { rig.backend->finish(0); };
  CHECK_EQ(rig.run(&graph), 0);
  const std::vector<float> of_up(expected.begin() + 16, expected.begin() + 32);
  CHECK_EQ(seen_by_node, of_up);
  CHECK_EQ(seen_by_user, of_up);
  CHECK_EQ(computing.output(), expected);
  runs();
}

// Two products over the same part, as when a fused weight is seen in halves.
TEST(overlap_of_a_view_that_begins_inside_a_slice) {
  OverlapRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, {{9, 2, 4, 7}});
  fake::FullTensor* half = &graph.tensors.emplace_back();
  static_cast<Tensor&>(*half) = *rig.weights(0, 0);
  half->view_src = rig.weights(0, 0);
  half->ne[1] = 1;
  half->view_offs = half->nb[1];
  half->data = static_cast<char*>(half->data) + half->nb[1];
  computing.layer.products[0]->src[0] = half;
  rig.backend->on_wait = [&] { rig.backend->finish(0); };
  CHECK_EQ(rig.run(&graph), 0);
  const std::vector<fake::OwnRun> seen = runs();
  REQUIRE(!seen.empty());
  const std::string whole = rig.bed.slice(0, 0, 2);
  CHECK(seen[0].products.at(0).slices.at(0) == whole.substr(whole.size() / 2));
}
