// How long one turn of a spin loop takes here: between 5 and 60 ns, by processor.
#include <chrono>

#include "guanaco/guanaco.h"

namespace {

constexpr int kTurns = 4000;
constexpr int kTries = 5;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

}  // namespace

extern "C" GUANACO_API unsigned long guanaco_spin_turn_ps(void) {
  unsigned long best_ps = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {  // the shortest: others were interrupted
    const auto start = std::chrono::steady_clock::now();
    for (int turn = 0; turn < kTurns; ++turn) relax();
    const auto elapsed = std::chrono::steady_clock::now() - start;
    const auto ps = static_cast<unsigned long>(std::chrono::nanoseconds(elapsed).count()) * 1000 / kTurns;
    if (best_ps == 0 || ps < best_ps) best_ps = ps;
  }
  return best_ps == 0 ? 1 : best_ps;
}
