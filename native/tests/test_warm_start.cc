// Experts read before anybody asks: which, how many, and what a request finds.
#include "warm_start.h"

#include "store_rig.h"

using guanaco::ExpertId;
using guanaco::kPage;
using guanaco::likeliest_experts;
using guanaco::WarmStart;

namespace {

std::vector<int32_t> flat(const std::vector<ExpertId>& ids) {
  std::vector<int32_t> result;
  for (const ExpertId& id : ids) result.insert(result.end(), {id.group, id.expert});
  return result;
}

// Two layers of eight experts, top-2.
void two_layers(StoreRig* rig, uint32_t slots) {
  rig->bed.file(1u << 20, false);
  rig->bed.size_class(slots, {2 * kPage});
  for (uint32_t layer = 0; layer < 2; ++layer) {
    rig->bed.group(layer, 0, 8, {{layer * 16 * kPage, 2 * kPage}});
    rig->bed.plan.groups[layer].top_k = 2;
  }
}

}  // namespace

TEST(warm_start_takes_the_likeliest_of_all_layers) {
  StoreRig rig;
  two_layers(&rig, 16);
  rig.bed.plan.groups[0].prior = {0.1, 0.9, 0.1, 0.1, 0.3, 0.1, 0.3, 0.1};
  rig.bed.plan.groups[1].prior = {0.5, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1};
  // Not those that are no likelier than a quarter, the average of two of eight.
  CHECK_EQ(flat(likeliest_experts(rig.bed.plan)), (std::vector<int32_t>{0, 1, 1, 3, 1, 0, 0, 4, 0, 6}));
  rig.bed.plan.groups[1].expected = false;  // not run by a plain decode
  CHECK_EQ(flat(likeliest_experts(rig.bed.plan)), (std::vector<int32_t>{0, 1, 0, 4, 0, 6}));
  rig.bed.plan.groups[0].prior.clear();
  CHECK_EQ(likeliest_experts(rig.bed.plan).size(), 0);
}

TEST(warm_start_reads_no_more_than_two_tokens_use) {
  StoreRig rig;
  two_layers(&rig, 16);
  for (auto& group : rig.bed.plan.groups) group.prior.assign(8, 0.5);
  CHECK_EQ(likeliest_experts(rig.bed.plan).size(), 8);
  for (auto& group : rig.bed.plan.groups) group.top_k = 0;  // not known: nothing is safe to read
  CHECK_EQ(likeliest_experts(rig.bed.plan).size(), 0);
}

TEST(warm_start_fills_empty_slots_and_a_request_hits) {
  StoreRig rig;
  two_layers(&rig, 5);
  rig.bed.plan.groups[0].prior = {0.9, 0.8, 0, 0, 0, 0, 0, 0};
  rig.bed.plan.groups[1].prior = {0, 0, 0, 0, 0, 0, 0.7, 0.6};
  rig.start();
  rig.serve(0, {0, 5});  // the probe's
  WarmStart warm(rig.bed.plan, &rig.stats);
  CHECK(warm.has_any());
  int steps = 0;
  for (; warm.step(rig.store.get()) && steps < 1000; ++steps) rig.backend->finish_all();
  CHECK(steps < 1000);
  CHECK_EQ(rig.stats->preloaded.load(), 3);
  CHECK_EQ(rig.residents(0), (Experts{0, 1, 5}));
  CHECK_EQ(rig.residents(1), (Experts{6, 7}));
  CHECK_EQ(rig.stats->evictions.load(), 0);
  const uint64_t read = rig.stats->bytes_read;
  rig.serve(1, {6, 7});
  CHECK_EQ(rig.stats->bytes_read.load(), read);
  CHECK_EQ(rig.stats->hits.load(), 2);
}

TEST(warm_start_takes_no_slot_that_is_in_use) {
  StoreRig rig;
  two_layers(&rig, 2);
  rig.bed.plan.groups[0].prior = {0, 0, 0, 0.9, 0.9, 0, 0, 0};
  rig.start();
  rig.serve(0, {0, 1});
  WarmStart warm(rig.bed.plan, &rig.stats);
  while (warm.step(rig.store.get())) rig.backend->finish_all();
  CHECK_EQ(rig.stats->preloaded.load(), 0);
  CHECK_EQ(rig.residents(0), (Experts{0, 1}));
}
