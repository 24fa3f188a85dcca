// Whether a guess pays, and what tends to follow: arithmetic alone.
#include "check.h"
#include "pilot_judge.h"
#include "transition.h"

using guanaco::PilotJudge;
using guanaco::Transition;

namespace {

using Experts = std::vector<int32_t>;

// 1 GB/s and a millisecond without demand: a million bytes fit.
PilotJudge informed(double precision) {
  PilotJudge judge;
  judge.drive_read(1000000, 1000000);
  judge.idled(1000000);
  for (int i = 0; i < 1000; ++i) {
    for (size_t rank = 0; rank < PilotJudge::kRanks; ++rank) judge.judged(rank, i % 100 < 100 * precision);
  }
  judge.begin_layer();
  return judge;
}

Experts guess(Transition* transition, uint32_t group, const Experts& from, uint32_t next, size_t most = 8) {
  Experts experts = {77};  // replaced
  transition->guess(group, from, next, most, &experts);
  return experts;
}

}  // namespace

TEST(judge_trusts_at_first) {
  PilotJudge judge;
  judge.begin_layer();
  CHECK(judge.pays(0, 1u << 30));
  CHECK(judge.is_worth_guessing());
  CHECK(judge.most_bytes() > 0);
  judge.drive_read(5, 0);
  judge.drive_read(0, 5);
  CHECK_EQ(judge.bytes_per_ns(), 0.0);
}

TEST(judge_learns_at_once_that_it_was_wrong) {
  PilotJudge judge;
  judge.drive_read(1000000, 1000000);
  judge.idled(1000000);
  judge.begin_layer();
  int n_wrong = 0;
  for (; judge.pays(0, 1000); ++n_wrong) judge.judged(0, false);
  CHECK_EQ(n_wrong, 15);
  CHECK(judge.pays(1, 1000));
}

TEST(judge_reads_what_fits_the_idle_time) {
  PilotJudge judge = informed(0.6);
  int n_reads = 0;
  for (; judge.pays(0, 300000); ++n_reads) judge.spend(300000);
  CHECK_EQ(n_reads, 3);  // the fourth would be hidden to a third, and is wrong too often
  judge.begin_layer();
  CHECK(judge.pays(0, 300000));
  PilotJudge sure = informed(1.0);
  n_reads = 0;
  for (; sure.pays(0, 300000); ++n_reads) sure.spend(300000);
  CHECK_EQ(n_reads, 4);  // what is always right may reach past it
}

TEST(judge_of_a_drive_that_delivers_in_bursts) {
  PilotJudge judge;
  for (int slice = 0; slice < 10; ++slice) {  // 15 MB in each tenth of a second
    for (int i = 0; i < 7; ++i) judge.drive_read(2000000, 1300000);
    judge.drive_read(1000000, 90900000);
  }
  CHECK(judge.bytes_per_ns() > 0.12);
  CHECK(judge.bytes_per_ns() < 0.18);
  judge.drive_read(100'000'000'000, 100'000'000'000);  // a long prompt counts as a quarter of a second
  for (int i = 0; i < 100; ++i) judge.drive_read(2000000, 20000000);
  CHECK(judge.bytes_per_ns() < 0.3);
}

TEST(judge_tells_ranks_apart) {
  PilotJudge judge = informed(0.9);
  for (int i = 0; i < 500; ++i) judge.judged(5, false);
  CHECK(judge.pays(4, 1000));
  CHECK(!judge.pays(5, 1000));
  CHECK(judge.precision(5) < 0.01);
  for (int i = 0; i < 500; ++i) judge.judged(5, true);
  CHECK(judge.pays(5, 1000));  // what was refused is judged all the same, and can come back
  for (int i = 0; i < 500; ++i) judge.judged(400, false);
  CHECK(judge.precision(PilotJudge::kRanks - 1) < 0.01);
  CHECK(!judge.pays(77, 1000));
}

TEST(judge_of_a_busy_drive) {
  PilotJudge judge = informed(0.8);
  for (int i = 0; i < 200; ++i) judge.idled(10);
  judge.begin_layer();
  CHECK(!judge.pays(0, 300000));
  CHECK_EQ(judge.most_bytes(), 1u << 20);  // never nothing: the first of them is only hidden in part
  for (int i = 0; i < 200; ++i) judge.idled(1000000000);
  CHECK_EQ(judge.most_bytes(), 16u << 20);
  judge.begin_layer();
  CHECK(judge.pays(0, 300000));
}

TEST(judge_guesses_now_and_then_when_it_never_paid) {
  PilotJudge judge;
  int n_guesses = 0;
  for (int layer = 0; layer < 256 + 1600; ++layer) {
    if (!judge.is_worth_guessing()) continue;
    ++n_guesses;
    judge.guessed(false);
  }
  CHECK_EQ(n_guesses, 256 + 100);
  judge.guessed(true);
  for (int layer = 0; layer < 256; ++layer) CHECK(judge.is_worth_guessing());
}

TEST(transition_guesses_what_followed) {
  Transition transition(0.9);
  CHECK(guess(&transition, 0, {1}, 1).empty());
  for (int i = 0; i < 3; ++i) transition.learn(0, {1, 2}, 1, 16, {5, 9});
  transition.learn(0, {1}, 1, 16, {7, 9});
  CHECK_EQ(guess(&transition, 0, {1}, 1), (Experts{9, 5, 7}));
  CHECK_EQ(guess(&transition, 0, {2}, 1), (Experts{5, 9}));  // as often: the lower number first
  CHECK_EQ(guess(&transition, 0, {1, 2}, 1, 2), (Experts{9, 5}));
  CHECK(guess(&transition, 0, {3}, 1).empty());   // never seen
  CHECK(guess(&transition, 0, {40}, 1).empty());
  CHECK(guess(&transition, 1, {1}, 2).empty());
  CHECK(guess(&transition, 0, {}, 1).empty());
}

TEST(transition_stops_at_the_mass) {
  const auto count = [](double mass) {
    Transition transition(mass);
    for (int i = 0; i < 6; ++i) transition.learn(3, {0}, 4, 8, {1});
    for (int i = 0; i < 3; ++i) transition.learn(3, {0}, 4, 8, {2});
    transition.learn(3, {0}, 4, 8, {3});
    return guess(&transition, 3, {0}, 4).size();
  };
  CHECK_EQ(count(0.5), 1);
  CHECK_EQ(count(0.7), 2);
  CHECK_EQ(count(0.95), 3);
  CHECK_EQ(count(1.0), 3);  // nothing that never followed
}

TEST(transition_forgets_slowly) {
  Transition transition(1.0);
  for (int i = 0; i < 70000; ++i) transition.learn(0, {1}, 1, 4, {0});  // more than a count can hold
  for (int i = 0; i < 70000; ++i) transition.learn(0, {1}, 1, 4, {3});
  CHECK_EQ(guess(&transition, 0, {1}, 1), (Experts{3, 0}));
}

TEST(transition_of_another_graph) {
  Transition transition(1.0);
  transition.learn(0, {1}, 1, 16, {5});
  transition.learn(0, {1}, 2, 16, {6});  // the layer between is gone
  CHECK(guess(&transition, 0, {1}, 1).empty());
  CHECK_EQ(guess(&transition, 0, {1}, 2), (Experts{6}));
  CHECK_EQ(transition.nbytes(), 32);
}

TEST(transition_keeps_to_its_memory) {
  Transition transition(1.0, 3 * 16 * 2);
  for (int32_t from = 0; from < 10; ++from) transition.learn(0, {from}, 1, 16, {from});
  CHECK_EQ(transition.nbytes(), 96);
  CHECK_EQ(guess(&transition, 0, {2}, 1), (Experts{2}));
  CHECK(guess(&transition, 0, {3}, 1).empty());
  transition.learn(0, {2}, 1, 16, {8});  // what is known is learned further
  CHECK_EQ(guess(&transition, 0, {2}, 1), (Experts{2, 8}));
}
