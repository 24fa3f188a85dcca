#include "transition.h"

#include <algorithm>
#include <numeric>

namespace guanaco {

namespace {

constexpr uint32_t kLargestSum = 60000;  // then a row is halved: old habits fade, and a count fits 16 bits

}  // namespace

void Transition::learn(uint32_t group, const std::vector<int32_t>& from, uint32_t next_group, uint32_t n_next,
                       const std::vector<int32_t>& to) {
  Matrix& matrix = matrices_[group];
  if (matrix.next_group != next_group || matrix.n_next != n_next) {  // another kind of graph: what was learned is void
    for (const std::vector<uint16_t>& counts : matrix.rows) nbytes_ -= counts.size() * sizeof(uint16_t);
    matrix = Matrix{next_group, n_next, {}, {}};
  }
  for (const int32_t expert : from) {
    const size_t row = static_cast<size_t>(expert);
    if (matrix.rows.size() <= row) {
      matrix.rows.resize(row + 1);
      matrix.sums.resize(row + 1);
    }
    std::vector<uint16_t>& counts = matrix.rows[row];
    if (counts.empty()) {
      const uint64_t row_bytes = n_next * sizeof(uint16_t);
      if (nbytes_ + row_bytes > most_bytes_) continue;
      counts.assign(n_next, 0);
      nbytes_ += row_bytes;
    }
    for (const int32_t next : to) ++counts[static_cast<size_t>(next)];
    matrix.sums[row] += static_cast<uint32_t>(to.size());
    if (matrix.sums[row] > kLargestSum) {
      for (uint16_t& count : counts) count = static_cast<uint16_t>(count / 2);
      matrix.sums[row] = std::accumulate(counts.begin(), counts.end(), 0u);
    }
  }
}

void Transition::guess(uint32_t group, const std::vector<int32_t>& from, uint32_t next_group, size_t most,
                       std::vector<int32_t>* experts) {
  experts->clear();
  const auto found = matrices_.find(group);
  if (found == matrices_.end() || found->second.next_group != next_group) return;
  const Matrix& matrix = found->second;
  scores_.assign(matrix.n_next, 0);
  double total = 0;
  for (const int32_t expert : from) {
    const size_t row = static_cast<size_t>(expert);
    if (row >= matrix.rows.size() || matrix.sums[row] == 0) continue;
    const double scale = 1.0 / matrix.sums[row];
    for (uint32_t next = 0; next < matrix.n_next; ++next) scores_[next] += scale * matrix.rows[row][next];
    total += 1;
  }
  if (total == 0) return;
  std::vector<int32_t> order(matrix.n_next);
  std::iota(order.begin(), order.end(), 0);
  const size_t n = std::min(most, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<long>(n), order.end(), [&](int32_t a, int32_t b) {
    const double left = scores_[static_cast<size_t>(a)], right = scores_[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  });
  double sum = 0;
  for (size_t i = 0; i < n && sum < mass_ * total && scores_[static_cast<size_t>(order[i])] > 0; ++i) {
    experts->push_back(order[i]);
    sum += scores_[static_cast<size_t>(order[i])];
  }
}

}  // namespace guanaco
