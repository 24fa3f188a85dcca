#include "replay.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

namespace guanaco {

namespace {

constexpr uint32_t kMaxLayers = 4096;

}  // namespace

std::vector<uint32_t> trace_layers(const std::vector<ExpertGroup>& groups) {
  std::map<uint32_t, uint32_t> first_group;  // by layer
  for (uint32_t g = 0; g < groups.size(); ++g) first_group.emplace(groups[g].layer, g);
  std::vector<uint32_t> layers(groups.size(), kNoTraceLayer);
  uint32_t ordinal = 0;
  for (const auto& [layer, group] : first_group) layers[group] = ordinal++;
  return layers;
}

bool Replay::open(const std::string& path, std::string* error) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  uint32_t header[6] = {};
  bool good = file != nullptr && std::fread(header, sizeof header, 1, file) == 1 &&
              std::memcmp(header, "GNRP", 4) == 0 && (header[1] == 1 || header[1] == 2);
  n_layer_ = header[2];
  n_expert_ = header[3];
  top_k_ = header[4];
  n_tokens_ = header[5];
  good = good && n_layer_ <= kMaxLayers && top_k_ <= n_expert_ && n_expert_ <= 32767;
  const uint64_t count = good ? uint64_t{n_layer_} * top_k_ * n_tokens_ : 0;
  good = good && count > 0 && count < (uint64_t{1} << 31);
  if (good) {
    ids_.resize(count);
    good = std::fread(ids_.data(), sizeof(int16_t), count, file) == count &&
           std::all_of(ids_.begin(), ids_.end(),
                       [this](int16_t id) { return id >= 0 && static_cast<uint32_t>(id) < n_expert_; });
  }
  if (good && header[1] == 2) {  // predictions follow
    good = std::fread(&n_ranks_, sizeof n_ranks_, 1, file) == 1 && n_ranks_ > 0 && n_ranks_ <= n_expert_;
    const uint64_t n_predictions = good ? uint64_t{n_layer_} * n_ranks_ * n_tokens_ : 0;
    good = good && n_predictions < (uint64_t{1} << 31);
    if (good) {
      predictions_.resize(n_predictions);
      good = std::fread(predictions_.data(), sizeof(int16_t), n_predictions, file) == n_predictions &&
             std::all_of(predictions_.begin(), predictions_.end(),
                         [this](int16_t id) { return id >= -1 && id < static_cast<int32_t>(n_expert_); });
    }
  }
  if (file != nullptr) std::fclose(file);
  if (!good) {
    ids_.clear();
    predictions_.clear();
    *error = path + " is not a replay file";
  }
  return good;
}

bool Replay::fits(const std::vector<ExpertGroup>& groups, std::string* error) const {
  for (const ExpertGroup& group : groups) {
    if (group.n_expert >= n_expert_) continue;
    *error = "the replay file is of a model with " + std::to_string(n_expert_) + " experts a layer, and layer " +
             std::to_string(group.layer) + " of this one has " + std::to_string(group.n_expert);
    return false;
  }
  return true;
}

void Replay::overwrite(const EngineApi& api, Stats* stats, uint32_t ordinal, int64_t n_tokens, Tensor* ids) {
  if ((*stats)->replay_on == 0 || ordinal >= n_layer_ || ids->data == nullptr) return;
  if (!api.is_on_host(ids)) return;
  const ReplayRows where = rows(**stats, n_tokens, ids->ne[1]);
  for (int64_t row = 0; row < ids->ne[1]; ++row) {
    const uint64_t token = where.at(row);
    if (token >= n_tokens_) {
      (*stats)->replay_exhausted = 1;
      return;
    }
    const int16_t* source = &ids_[(token * n_layer_ + ordinal) * top_k_];
    char* target = static_cast<char*>(ids->data) + static_cast<size_t>(row) * ids->nb[1];
    for (int64_t k = 0; k < ids->ne[0] && k < static_cast<int64_t>(top_k_); ++k) {
      const int32_t id = source[k];
      std::memcpy(target + static_cast<size_t>(k) * ids->nb[0], &id, sizeof id);
    }
  }
}

int32_t Replay::predicted(uint64_t token, uint32_t ordinal, uint32_t rank) const {
  if (predictions_.empty() || token >= n_tokens_ || ordinal >= n_layer_ || rank >= n_ranks_) return -1;
  return predictions_[(token * n_layer_ + ordinal) * n_ranks_ + rank];
}

ReplayRows Replay::rows(const StatsBlock& stats, int64_t n_tokens, int64_t n_rows) const {
  ReplayRows where;
  where.on = is_open() && stats.replay_on != 0;
  const uint64_t strands = stats.replay_strands;
  if (strands > 0) where.length = n_tokens_;
  if (strands > 0 && static_cast<uint64_t>(n_tokens) <= strands) where.stride = n_tokens_ / strands;
  where.first = stats.replay_position + static_cast<uint64_t>(n_tokens - n_rows) * where.stride;
  return where;
}

void Replay::advance(Stats* stats, int64_t n_tokens) {
  if ((*stats)->replay_on == 0) return;
  const bool is_step = static_cast<uint64_t>(n_tokens) <= (*stats)->replay_strands;
  (*stats)->replay_position += is_step ? 1 : static_cast<uint64_t>(n_tokens);
}

}  // namespace guanaco
