// Attention over the past against values worked out by hand.
#include <cmath>

#include "attention.h"
#include "policy_rig.h"

using guanaco::Attention;

namespace {

const guanaco::PolicyShape kOneLayer{{8}, {0}, {8}, {1}};

bool near(double a, double b) { return std::abs(a - b) < 1e-4; }

void route(Attention* attention, uint32_t group, const std::vector<int32_t>& experts, bool token_starts,
           size_t n_transient = 0) {
  attention->selected({group, experts.data(), experts.size(), n_transient}, token_starts);
}

}  // namespace

TEST(attention_nothing_before_the_second_token) {
  Attention attention(kOneLayer);
  CHECK_EQ(attention.votes(0, 0), 0.0);
  route(&attention, 0, {3}, true);
  for (uint32_t key = 0; key < 8; ++key) CHECK_EQ(attention.votes(0, key), 0.0);
}

// 0, 1, 2, and 0 again: what followed the first 0 gets most.
TEST(attention_follows_the_token_after_the_like) {
  Attention attention(kOneLayer);
  for (const int32_t expert : {0, 1, 2, 0}) route(&attention, 0, {expert}, true);
  // Likeness 1, 0, 0; exp(1.3 (x - 1)): 1, 0.27253, 0.27253, sum 1.54506; smeared: 0.64722, 0.43528, 0.35050.
  CHECK(near(attention.votes(0, 1), 0.45165));
  CHECK(near(attention.votes(0, 2), 0.30375));
  CHECK(near(attention.votes(0, 0), 0.24459));  // of the current token, which follows the last
  CHECK_EQ(attention.votes(0, 3), 0.0);
}

// A batch is its tokens one after the other: the last one is the current one, the others are remembered.
TEST(attention_of_a_batch_is_that_of_its_tokens) {
  Attention one_by_one(kOneLayer), at_once(kOneLayer);
  for (const int32_t expert : {5, 0, 1, 2}) route(&one_by_one, 0, {expert}, true);
  route(&at_once, 0, {5}, true);
  const std::vector<int32_t> batch = {0, 1, 2};
  at_once.selected({0, batch.data(), 3, 3, {batch.data(), 3, 1}}, true);
  route(&one_by_one, 0, {0}, true);
  route(&at_once, 0, {0}, true);
  for (uint32_t key = 0; key < 8; ++key) CHECK(near(at_once.votes(0, key), one_by_one.votes(0, key)));
  CHECK(at_once.votes(0, 1) > 0.4);
}

// More tokens than are remembered, and a last layer that runs the last of them only.
TEST(attention_of_a_long_batch) {
  Attention attention({{4, 4}, {0, 0}, {8}, {1, 1}});
  std::vector<int32_t> rows(600, 3);
  rows[598] = 1;
  rows[599] = 2;
  attention.selected({0, rows.data() + 597, 3, 3, {rows.data(), 600, 1}}, true);
  attention.selected({1, rows.data() + 599, 1, 0, {rows.data() + 598, 2, 1}}, false);
  route(&attention, 0, {1}, true);
  CHECK(attention.votes(0, 2) > 0.1);  // the token after the other 1, among many unlike ones
  CHECK(attention.votes(1, 5) > 0.0);  // what that other 1 used in the next layer: 1, the fifth key is 1 of layer 1
}

TEST(attention_layers_still_to_come_take_the_like_tokens_themselves) {
  Attention attention({{4, 4}, {0, 0}, {8}, {1, 1}});
  for (const int32_t token : {0, 1, 2}) {
    route(&attention, 0, {token}, true);
    route(&attention, 1, {token}, false);
  }
  route(&attention, 0, {0}, true);
  // Of layer 1 (keys 4 to 7) expert 0 was used by token 0, which has the weight 0.45165; of layer 0 expert 1 by the
  // token after that.
  CHECK(near(attention.votes(1, 4), 0.45165));
  CHECK(near(attention.votes(1, 5), 0.30375));
  CHECK(near(attention.votes(0, 1), 0.45165));
}

TEST(attention_likeness_fades_and_is_carried) {
  Attention attention({{4, 4}, {0, 0}, {8}, {2, 1}});
  route(&attention, 0, {0, 1}, true);
  route(&attention, 1, {0}, false);
  route(&attention, 0, {0, 2}, true);  // half like token 0
  route(&attention, 1, {1}, false);    // 0.9 x 0.5
  route(&attention, 0, {3}, true);     // token 1 carries 0.6 x 0.45, then 0.9 of it; token 0 nothing
  const double alike = std::exp(1.3 * (0.0 - 0.243)), total = 1.0 + alike;
  const double first = alike / total, second = 1.0 / total + 0.4 * first;
  CHECK(near(attention.votes(1, 4), first / (first + second)));
  CHECK(near(attention.votes(1, 5), second / (first + second)));
}

TEST(attention_forgets_after_its_window) {
  Attention attention({{64}, {0}, {8}, {1}});
  route(&attention, 0, {1}, true);
  for (int i = 0; i < 254; ++i) route(&attention, 0, {32 + i % 32}, true);
  route(&attention, 0, {1}, true);  // token 255: the first is still known, and the likest
  CHECK(attention.votes(0, 32) > 0.1);
  const double before = attention.votes(0, 1);
  route(&attention, 0, {2}, true);  // token 256: the first is gone
  CHECK(before > 0.0 && attention.votes(0, 1) > 0.0);
  for (int i = 0; i < 255; ++i) route(&attention, 0, {2}, true);
  CHECK_EQ(attention.votes(0, 1), 0.0);
  CHECK(near(attention.votes(0, 2), 1.0));
}

TEST(attention_learns_k_from_the_first_token) {
  Attention known({{8}, {0}, {8}, {2}}), learned({{8}, {0}, {8}, {0}});
  for (Attention* attention : {&known, &learned}) {
    route(attention, 0, {5, 0, 1}, true, 1);  // the tail of a prompt says nothing of k
    route(attention, 0, {0, 1}, true);
    route(attention, 0, {0, 2}, true);
    route(attention, 0, {0, 1, 2, 3}, true);  // two sequences at once
  }
  for (uint32_t key = 0; key < 8; ++key) CHECK_EQ(known.votes(0, key), learned.votes(0, key));
  CHECK_EQ(known.votes(0, 5), 0.0);
}

TEST(attention_main_votes_are_most_of_the_votes) {
  Attention attention({{16}, {0}, {8}, {2}});
  for (int i = 0; i < 300; ++i) route(&attention, 0, {i % 5, 5 + i % 7}, true);
  double main_votes = 0.0, votes = 0.0;
  for (uint32_t key = 0; key < 16; ++key) {
    CHECK(attention.main_votes(0, key) <= attention.votes(0, key) + 1e-12);
    main_votes += attention.main_votes(0, key);
    votes += attention.votes(0, key);
  }
  CHECK(near(votes, 2.0));
  CHECK(main_votes > 1.8);
}

TEST(recall_keeps_what_followed_last_time) {
  PolicyRig recall("recall", kOneLayer), cycle("cycle", kOneLayer);
  for (PolicyRig* rig : {&recall, &cycle}) {
    for (const int32_t expert : {0, 1, 2}) rig->use(0, {expert}, {expert});
    rig->use(0, {0}, {});
  }
  CHECK_EQ(cycle.victims(3), (Slots{1, 2, 0}));
  CHECK_EQ(recall.victims(3), (Slots{2, 0, 1}));
  CHECK(near(recall.policy->worth(0, 1), -1 / (0.25 * 0.125 + 0.45 * 0.028227 + 0.45165 + 1e-5)));
}

TEST(recall_use_is_at_most_nearly_certain) {
  PolicyRig rig("recall", kOneLayer);
  for (int i = 0; i < 200; ++i) rig.use(0, {0}, i == 0 ? Slots{0} : Slots{});
  CHECK(near(rig.policy->worth(0, 0), -1 / 0.98));
}
