// The router's scores of the experts it selected, where they lie in the graph right before the selection.
//
// Owns: finding them. They are what the experts were sorted by: probabilities, with the selection bias where there is
// one, or logits. Refuses a selection that is not the top of a sort, or that the scores do not explain.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_api.h"

namespace guanaco {

// One score for each of `rows`, the ids of the selection `ids` that was just computed. False, with `scores` empty,
// when they are not to be had.
bool read_router_scores(const EngineApi& api, const Tensor* ids, uint32_t n_expert, const std::vector<int32_t>& rows,
                        std::vector<float>* scores);

}  // namespace guanaco
