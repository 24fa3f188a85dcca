// Rows of a step that are drafts: arithmetic, and what becomes of the experts of those that nobody counts on.
#include "check.h"
#include "drafted_rows.h"
#include "engine_rig.h"

using guanaco::DraftedRows;

namespace {

struct Learned {
  uint32_t group;
  std::vector<int32_t> experts;
  bool operator==(const Learned& other) const { return group == other.group && experts == other.experts; }
};

std::vector<Learned> accept(DraftedRows* drafts, size_t n_right) {
  std::vector<Learned> learned;
  drafts->accepted(n_right, [&](uint32_t group, const int32_t* experts, size_t n) {
    learned.push_back({group, {experts, experts + n}});
  });
  return learned;
}

// So many steps with two drafted tokens, of which so many are right; returns how many rows count in the next.
size_t steps(DraftedRows* drafts, int n, size_t n_right) {
  for (int i = 0; i < n; ++i) {
    drafts->begin_step(1);
    drafts->begin_graph(3);
    accept(drafts, n_right);
  }
  drafts->begin_step(1);
  return drafts->begin_graph(3);
}

}  // namespace

TEST(drafted_rows_count_while_they_are_right) {
  DraftedRows drafts;
  CHECK_EQ(steps(&drafts, 0, 0), 3);
  CHECK_EQ(steps(&drafts, 20, 2), 3);
  CHECK_EQ(steps(&drafts, 40, 1), 2);
  CHECK_EQ(steps(&drafts, 40, 0), 1);
  CHECK_EQ(steps(&drafts, 40, 2), 3);
}

TEST(rows_all_count_when_nobody_knows_whose_they_are) {
  DraftedRows drafts;
  CHECK_EQ(steps(&drafts, 40, 0), 1);
  drafts.begin_step(2);
  CHECK_EQ(drafts.begin_graph(6), 6);
  CHECK_EQ(drafts.begin_graph(3), 3);  // a prompt: no step has begun
  drafts.begin_step(1);
  CHECK_EQ(drafts.begin_graph(1), 1);  // no draft
  CHECK_EQ(drafts.begin_graph(3), 3);
}

TEST(drafted_rows_that_were_right_are_learned) {
  DraftedRows drafts;
  CHECK_EQ(steps(&drafts, 40, 0), 1);
  const std::vector<int32_t> first{1, 2, 3, 4, 5, 6}, second{7, 8, 9, 10, 11, 12};
  drafts.selected(0, first.data(), 3, 2);
  drafts.selected(1, second.data(), 3, 2);
  drafts.selected(2, second.data(), 2, 2);  // a layer that leaves rows out
  CHECK(accept(&drafts, 1) == (std::vector<Learned>{{0, {3, 4}}, {1, {9, 10}}}));
  CHECK(accept(&drafts, 2).empty());  // told once
  drafts.begin_step(1);
  drafts.begin_graph(3);
  drafts.selected(0, first.data(), 3, 2);
  drafts.begin_step(1);  // nothing was said of it
  CHECK(accept(&drafts, 2).empty());
}

TEST(seam_wrong_drafts_pass_through) {
  EngineRig rig(1, 8, 32);
  rig.start();
  DraftedRows drafts;
  rig.seam->use_drafts(&drafts);
  TestGraph decode, drafted;
  MoeLayer& token = rig.add_layer(&decode, 0, {{0, 1}});
  MoeLayer& draft = rig.add_layer(&drafted, 0, {{0, 1}, {8, 9}});
  const auto step = [&](TestGraph* graph, size_t n_right) {
    drafts.begin_step(1);
    CHECK_EQ(rig.run(graph), 0);
    rig.check_products(*graph);
    rig.seam->drafts_accepted(n_right);
  };
  step(&drafted, 0);  // unknown: it counts, and is wrong
  for (int32_t expert = 0; expert < 8; expert += 2) {  // fills the slots
    decode.select(&token, {{expert, expert + 1}});
    step(&decode, 0);
  }
  for (int32_t expert = 10; expert < 32; expert += 2) {
    drafted.select(&draft, {{0, 1}, {expert, expert + 1}});
    step(&drafted, 0);
  }
  // Only the first wrong draft took slots of what is in use.
  int n_resident = 0;
  for (int32_t expert = 0; expert < 8; ++expert) n_resident += rig.store->slot_of(0, expert) >= 0 ? 1 : 0;
  CHECK_EQ(n_resident, 6);
  // One that turns out right stays, and counts as used.
  drafted.select(&draft, {{0, 1}, {20, 21}});
  step(&drafted, 1);
  drafted.select(&draft, {{0, 1}, {30, 31}});
  step(&drafted, 0);
  CHECK(rig.store->slot_of(0, 20) >= 0 && rig.store->slot_of(0, 21) >= 0);
}
