// Whether drafting pays: arithmetic alone.
#include "check.h"
#include "draft_judge.h"

using guanaco::DraftJudge;

namespace {

// Decodes with steps that take so long, and drafts of which so many tokens are right.
class Decoding {
 public:
  explicit Decoding(bool always = false) : judge_(always) {}

  // Returns how many of the steps drafted.
  int steps(int n_steps, double with_ms, double n_right, double without_ms, size_t n_sequences = 1) {
    int n_drafts = 0;
    for (int i = 0; i < n_steps; ++i) {
      const bool drafts = judge_.begin(now_ns_, n_sequences);
      right_ += drafts ? n_right : 0;
      const auto whole = static_cast<size_t>(right_);
      right_ -= static_cast<double>(whole);
      if (drafts) judge_.accepted(whole);
      now_ns_ += static_cast<uint64_t>((drafts ? with_ms : without_ms) * 1e6);
      n_drafts += drafts ? 1 : 0;
    }
    return n_drafts;
  }
  void prompt(double ms) {
    judge_.interrupted();
    now_ns_ += static_cast<uint64_t>(ms * 1e6);
  }

 private:
  DraftJudge judge_;
  uint64_t now_ns_ = 1000000;
  double right_ = 0;
};

}  // namespace

TEST(drafts_that_pay_go_on) {
  Decoding decoding;
  // 2.5 tokens in 15 ms against 1 in 10.
  CHECK(decoding.steps(1000, 15, 1.5, 10) > 950);
}

TEST(drafts_that_do_not_pay_end) {
  Decoding decoding;
  // 1.2 tokens in 15 ms against 1 in 10: little of the time is lost by looking now and then.
  CHECK(decoding.steps(200, 15, 0.2, 10) < 45);
  CHECK(decoding.steps(5000, 15, 0.2, 10) < 100);
}

TEST(both_ways_are_looked_at_first) {
  Decoding decoding;
  CHECK_EQ(decoding.steps(16, 10, 0, 10), 16);
  CHECK_EQ(decoding.steps(8, 10, 0, 10), 0);
}

TEST(what_pays_may_change) {
  Decoding decoding;
  decoding.steps(2000, 15, 0.2, 10);
  decoding.steps(1200, 15, 2, 10);
  CHECK(decoding.steps(1000, 15, 2, 10) > 900);
  decoding.steps(1200, 15, 0.1, 10);
  CHECK(decoding.steps(1000, 15, 0.1, 10) < 100);
}

TEST(more_sequences_are_another_case) {
  Decoding decoding;
  decoding.steps(1000, 15, 1.5, 10);
  // Of four, each drafted token costs as much as any other: nothing is won.
  CHECK(decoding.steps(1000, 60, 1.5, 20, 4) < 100);
  CHECK(decoding.steps(1000, 15, 1.5, 10) > 950);
  CHECK(decoding.steps(1000, 60, 1.5, 20, 100) < 100);
}

TEST(what_is_not_decoding_does_not_count) {
  Decoding decoding;
  for (int i = 0; i < 100; ++i) {
    decoding.steps(10, 15, 1.5, 10);
    decoding.prompt(i % 2 == 0 ? 100000 : 1);
  }
  CHECK(decoding.steps(1000, 15, 1.5, 10) > 950);
}

TEST(who_wants_to_drafts_always) {
  Decoding decoding(true);
  CHECK_EQ(decoding.steps(1000, 50, 0, 10), 1000);
}
