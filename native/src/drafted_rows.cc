#include "drafted_rows.h"

namespace guanaco {

namespace {

constexpr double kUnknown = 0.5, kEnough = 0.5;
constexpr double kNews = 1.0 / 16;  // weight of the last step

}  // namespace

void DraftedRows::begin_step(size_t n_sequences) {
  for (size_t i = 0; i + 1 < n_rows_; ++i) right_[i] += kNews * ((i < n_right_ ? 1.0 : 0.0) - right_[i]);
  n_rows_ = n_right_ = 0;
  picks_.clear();
  awaits_graph_ = n_sequences == 1;
}

size_t DraftedRows::begin_graph(size_t n_rows) {
  if (!awaits_graph_ || n_rows < 2) {
    awaits_graph_ = false;
    return n_rows;
  }
  awaits_graph_ = false;
  n_rows_ = n_rows;
  if (right_.size() + 1 < n_rows) right_.resize(n_rows - 1, kUnknown);
  n_counted_ = 1;
  while (n_counted_ < n_rows && right_[n_counted_ - 1] >= kEnough) ++n_counted_;
  return n_counted_;
}

void DraftedRows::selected(uint32_t group, const int32_t* rows, size_t n_rows, size_t n_used) {
  if (n_rows != n_rows_ || n_counted_ >= n_rows_) return;
  picks_.push_back({group, n_used, {rows + n_counted_ * n_used, rows + n_rows * n_used}});
}

}  // namespace guanaco
