// What is written down of a running graph: selections as the cache was asked, what was resident, the router's scores.
#include "recorder.h"

#include <fstream>
#include <iterator>

#include "engine_rig.h"
#include "router_scores.h"

using guanaco::kWasResident;
using guanaco::Recorder;
using guanaco::Tensor;

namespace {

struct Entry {
  uint32_t graph, group;
  Rows rows;
  std::vector<int32_t> experts;
  std::vector<bool> resident;
  uint32_t n_transient;
  std::vector<float> scores;
  bool is_batch = false;
};

std::vector<Entry> read_back(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  REQUIRE(bytes.size() >= 8 && bytes.compare(0, 4, "GNRC") == 0);
  const char* at = bytes.data() + 8;
  const char* const end = bytes.data() + bytes.size();
  const auto word = [&] {
    REQUIRE(at + 4 <= end);
    uint32_t value = 0;
    std::memcpy(&value, at, 4);
    at += 4;
    return value;
  };
  std::vector<Entry> entries;
  while (at < end) {
    Entry entry;
    entry.graph = word();
    entry.group = word();
    const uint32_t n_rows = word(), n_used = word(), n_experts = word();
    entry.n_transient = word();
    const uint32_t flags = word();
    const bool has_scores = (flags & guanaco::kHasScores) != 0;
    entry.is_batch = (flags & guanaco::kIsBatch) != 0;
    for (uint32_t row = 0; row < n_rows; ++row) {
      entry.rows.emplace_back();
      for (uint32_t k = 0; k < n_used; ++k) entry.rows.back().push_back(static_cast<int32_t>(word()));
    }
    for (uint32_t i = 0; i < n_experts; ++i) {
      const uint32_t expert = word();
      entry.experts.push_back(static_cast<int32_t>(expert & ~kWasResident));
      entry.resident.push_back((expert & kWasResident) != 0);
    }
    for (uint32_t i = 0; has_scores && i < n_rows * n_used; ++i) {
      const uint32_t bits = word();
      float score = 0;
      std::memcpy(&score, &bits, 4);
      entry.scores.push_back(score);
    }
    entries.push_back(entry);
  }
  return entries;
}

// Gives a layer's sort something to sort by: `scores` of each row, by expert.
void score(MoeLayer* layer, std::vector<float>* scores, int64_t n_expert) {
  Tensor* ranked = layer->sorted->src[0];
  ranked->type = guanaco::kTypeF32;
  ranked->ne[0] = n_expert;
  ranked->ne[1] = static_cast<int64_t>(scores->size()) / n_expert;
  ranked->nb[0] = sizeof(float);
  ranked->nb[1] = static_cast<size_t>(n_expert) * sizeof(float);
  ranked->data = scores->data();
}

std::vector<float> falling(const Rows& rows, int64_t n_expert) {
  std::vector<float> scores(rows.size() * static_cast<size_t>(n_expert), 0.0f);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t k = 0; k < rows[row].size(); ++k) {
      const size_t place = row * static_cast<size_t>(n_expert) + static_cast<size_t>(rows[row][k]);
      scores[place] = 1.0f / static_cast<float>(k + 1);
    }
  }
  return scores;
}

}  // namespace

TEST(recorder_writes_what_the_cache_was_asked) {
  EngineRig rig(2, 8);
  rig.bed.plan.record_path = rig.bed.dir.path("recording");
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{3, 5}, {5, 7}});
  rig.add_layer(&graph, 1, {{15, 0}, {15, 1}});
  CHECK_EQ(rig.run(&graph), 0);
  graph.select(&first, {{7, 9}, {9, 3}});
  CHECK_EQ(rig.run(&graph), 0);
  const std::vector<Entry> entries = read_back(rig.bed.plan.record_path);  // while it runs on
  REQUIRE(entries.size() == 4);
  CHECK_EQ(entries[0].graph, 0);
  CHECK_EQ(entries[0].group, 0);
  CHECK_EQ(entries[0].rows[1], (std::vector<int32_t>{5, 7}));
  CHECK_EQ(entries[0].experts, (std::vector<int32_t>{3, 5, 7}));
  CHECK(entries[0].resident == (std::vector<bool>{false, false, false}));
  CHECK_EQ(entries[1].group, 1);
  CHECK_EQ(entries[1].experts, (std::vector<int32_t>{15, 0, 1}));
  CHECK_EQ(entries[2].graph, 1);
  CHECK_EQ(entries[2].experts, (std::vector<int32_t>{7, 9, 3}));
  CHECK(entries[2].resident == (std::vector<bool>{true, false, true}));
  CHECK(entries[3].resident == (std::vector<bool>{true, true, true}));
  CHECK_EQ(entries[3].scores.size(), 0);
  CHECK(!entries[0].is_batch && !entries[3].is_batch);
}

TEST(recorder_marks_a_prompts_experts) {
  EngineRig rig(1, 16, 32);
  rig.bed.plan.batch_tokens = 2;
  rig.bed.plan.record_path = rig.bed.dir.path("recording");
  rig.start();
  TestGraph prompt;
  rig.add_layer(&prompt, 0, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK_EQ(rig.run(&prompt), 0);
  const std::vector<Entry> entries = read_back(rig.bed.plan.record_path);
  REQUIRE(entries.size() == 1);
  CHECK_EQ(entries[0].experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  CHECK_EQ(entries[0].n_transient, 6);
  CHECK(entries[0].is_batch);
}

TEST(recorder_leaves_out_what_was_not_served) {
  EngineRig rig(1, 2);
  rig.bed.plan.record_path = rig.bed.dir.path("recording");
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{1, 2, 3}});  // more than there are slots
  CHECK_EQ(rig.run(&graph), 0);
  TestGraph good;
  rig.add_layer(&good, 0, {{1, 2}});
  CHECK_EQ(rig.run(&good), 0);
  CHECK_EQ(layer.products.size(), 3);
  const std::vector<Entry> entries = read_back(rig.bed.plan.record_path);
  REQUIRE(entries.size() == 1);
  CHECK_EQ(entries[0].graph, 1);
}

TEST(recorder_of_the_page_cache_mode) {
  EngineRig rig(1, 4);
  rig.bed.plan.io = guanaco::IoMode::kPageCache;
  rig.bed.plan.record_path = rig.bed.dir.path("recording");
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(rig.run(&graph), 0);
  const std::vector<Entry> entries = read_back(rig.bed.plan.record_path);
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].resident == (std::vector<bool>{false, false}));
  CHECK(entries[1].resident == (std::vector<bool>{true, true}));
}

TEST(recorder_writes_the_routers_scores) {
  EngineRig rig(1, 8);
  rig.bed.plan.record_path = rig.bed.dir.path("recording");
  rig.start();
  const Rows rows = {{3, 5}, {5, 7}};
  std::vector<float> scores = falling(rows, 16);
  TestGraph graph;
  score(&rig.add_layer(&graph, 0, rows), &scores, 16);
  CHECK_EQ(rig.run(&graph), 0);
  const std::vector<Entry> entries = read_back(rig.bed.plan.record_path);
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].scores == (std::vector<float>{1.0f, 0.5f, 1.0f, 0.5f}));
}

TEST(router_scores_that_do_not_explain_the_selection) {
  EngineRig rig(1, 8);
  rig.start();
  const Rows rows = {{3, 5}};
  std::vector<float> scores = falling(rows, 16);
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, rows);
  score(&layer, &scores, 16);
  std::vector<float> found;
  const std::vector<int32_t> ids = {3, 5};
  CHECK(guanaco::read_router_scores(rig.api, layer.ids, 16, ids, &found));
  CHECK(found == (std::vector<float>{1.0f, 0.5f}));
  scores[9] = 0.75f;  // would have been selected
  CHECK(!guanaco::read_router_scores(rig.api, layer.ids, 16, ids, &found));
  CHECK_EQ(found.size(), 0);
  scores[9] = 0.5f;  // a tie is nobody's fault
  CHECK(guanaco::read_router_scores(rig.api, layer.ids, 16, ids, &found));
  CHECK(!guanaco::read_router_scores(rig.api, layer.ids, 15, ids, &found));  // of other experts
  layer.sorted->op = fake::kAdd;
  CHECK(!guanaco::read_router_scores(rig.api, layer.ids, 16, ids, &found));  // not the top of a sort
  layer.sorted->op = fake::kArgsort;
  layer.sorted->src[0]->data = nullptr;
  CHECK(!guanaco::read_router_scores(rig.api, layer.ids, 16, ids, &found));
}

TEST(recorder_that_cannot_write_ends_itself) {
  const std::vector<int32_t> ids = {1};
  const std::vector<size_t> missed = {0};
  const std::vector<float> none;
  {
    Recorder recorder("/nowhere/recording");
    CHECK(!recorder.is_on());
    recorder.served({0, 1, ids, ids, 0, missed, none});
    recorder.end_graph();
  }
  {
    Recorder recorder("/dev/full");
    CHECK(recorder.is_on());
    recorder.served({0, 1, ids, ids, 0, missed, none});
    recorder.end_graph();
    CHECK(!recorder.is_on());
    recorder.served({0, 1, ids, ids, 0, missed, none});
    recorder.end_graph();
  }
  Recorder nothing("");
  CHECK(!nothing.is_on());
}
