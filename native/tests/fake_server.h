// The engine's server as far as the library stands in front of it: who waits for results, and a drafter.
#pragma once

#include <cstdint>

namespace fake {

#define FAKE_VISIBLE __attribute__((visibility("default")))

// Waits for the result of a request while results of another come every `every_ms`; its own after `own_ms` (0: never).
// Returns how long it took in milliseconds, negative when there was none.
FAKE_VISIBLE int receive(int timeout_s, int every_ms, int own_ms);

// Decodes so many steps of one sequence; drafts are never right and take as long as a step. Returns how often it drafted.
FAKE_VISIBLE int decode_with_drafts(int n_steps, int step_us);

}  // namespace fake
