// Which rows of a decoding step are drafted tokens, and which of those to count on.
//
// Owns: how often the first, second, ... token of a draft was right of late, and what the router picked for the rows that
// nobody counts on until the engine has said which were right. Pure: told of steps, graphs and selections, it touches no
// cache. Of several sequences decoding at once nobody knows which rows are whose: then every row counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace guanaco {

class DraftedRows {
 public:
  // A step of decoding begins; the next graph of the model itself is its.
  void begin_step(size_t n_sequences);
  // A graph of the model itself, of `n_rows` tokens. Returns how many of them count, from the first on: the token that is
  // certain and those of its draft that are more often right than not.
  size_t begin_graph(size_t n_rows);
  // What the router of a layer picked, row by row, `n_used` experts each. Kept for the rows that do not count.
  void selected(uint32_t group, const int32_t* rows, size_t n_rows, size_t n_used);
  // So many tokens of the draft were right. `learn(group, experts, n_used)` for each layer of each of them that did not
  // count, in the order in which they would have been computed.
  template <typename Learn>
  void accepted(size_t n_right, const Learn& learn) {
    if (n_rows_ == 0) return;
    n_right_ = n_right;
    for (size_t row = n_counted_; row < n_rows_ && row <= n_right; ++row) {
      for (const Picks& picks : picks_) learn(picks.group, row_of(picks, row), picks.n_used);
    }
    picks_.clear();  // told once
  }

 private:
  struct Picks {
    uint32_t group = 0;
    size_t n_used = 0;
    std::vector<int32_t> experts;  // of rows n_counted_ and up
  };
  const int32_t* row_of(const Picks& picks, size_t row) const {
    return picks.experts.data() + (row - n_counted_) * picks.n_used;
  }

  std::vector<double> right_;  // [i]: of the draft's token i, how often it was right of late
  bool awaits_graph_ = false;
  // Of the step's graph, when it has a draft: its rows, and those that count.
  size_t n_rows_ = 0, n_counted_ = 0, n_right_ = 0;
  std::vector<Picks> picks_;
};

}  // namespace guanaco
