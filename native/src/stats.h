// Counters in shared memory: written by the worker's graph thread, read by the parent at any time.
//
// Owns: the layout that engine/native.py mirrors (checked by a test on both sides). All fields are 64-bit words so
// that a reader sees whole values; text is written before its length.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "guanaco/guanaco.h"

namespace guanaco {

constexpr uint64_t kStatsMagic = 0x314154534e475547ull;  // "GUGNSTA1"
constexpr uint64_t kStatsVersion = GUANACO_ABI_VERSION;
constexpr int kErrorBytes = 1024;

enum class LoadState : uint64_t { kIdle = 0, kLoadingDense = 1, kReady = 2, kFailed = 3 };

using Word = std::atomic<uint64_t>;

struct StatsBlock {
  Word magic, version;
  Word state;           // LoadState
  Word io_mode;         // IoMode in use; 0 while unknown
  Word arena_bytes, slots;
  Word dense_bytes_total, dense_bytes_read;
  Word groups_expected, groups_bound;
  Word accesses, hits, misses;       // one per (token batch, layer, distinct expert)
  Word bytes_read;                   // from the drive for experts, block-rounded as read
  Word evictions, prefetch_calls;    // calls: times a layer's selection was served
  Word unmanaged;                    // expert products left to the file mapping
  Word read_errors, read_retries;
  Word wait_ns;                      // time the graph thread waited for reads
  Word graphs;
  Word tokens;                       // rows of the widest selection of each graph
  Word evict_hot, evict_reread;  // evictions: of an expert in the top use class; of one that was read again soon
  Word hot_slots, pinned;        // slots in the top use class, experts with a permanent pin; now and then
  Word least_pin_budget, most_pin_budget;  // permanent pins a layer may have
  Word preloaded, preload_ended;  // experts read before they were asked for; 1 when no more of them will be
  // The pilot: guesses made, slices read for them, and what came of it. `right` of `guessed` were selected, out of
  // `selected` experts that the layers looked ahead to did select. Useful, wasted: reads started for a guess.
  Word pilot_calls, pilot_slices, pilot_guessed, pilot_right, pilot_selected, pilot_useful, pilot_wasted;
  Word pilot_wasted_bytes;
  Word overlapped;                   // experts that computed while others of their layer were read
  Word waves;                        // selections that did not fit the slots and were computed in waves
  Word pilot_control_right, pilot_control_total;  // under `pilot_control`: ids a layer's own router selected again
  Word draft_steps, draft_rests;     // steps of decoding with a drafter; of these without drafts, which did not pay
  Word draft_accepted;               // drafted tokens that were right
  Word draft_accesses, draft_hits;   // of accesses and hits, what only drafts that are mostly wrong asked for
  Word running;                      // number of the graph that is being computed, from 1; 0: none
  Word error_length;
  char error[kErrorBytes];
  // Controls, written by the parent. Replay: a benchmark tool. Faults and `pilot_control` need `testing`.
  Word replay_on, replay_position, replay_exhausted;
  Word fail_reads;   // the next N expert reads report EIO; each is tried again
  Word mutation;     // 1: ids off by one slot, 2: two slots exchanged
  Word fail_slices;  // the next N slices fail for good
  Word pilot_control;  // 1: run each layer's own router on its own state too and count what it gets right
  Word warm_start;     // 1: the model is ready, read likely experts until the first request
  Word give_up;        // number of a graph whose results nobody waits for: it fails where it is
  Word replay_strands;  // clients whose tokens are replayed each from a stretch of its own; 0: one after the other
  Word reserved[10];
};

class Stats {
 public:
  // Maps `path` (created by the parent, at least sizeof(StatsBlock)); falls back to private memory.
  explicit Stats(const std::string& path);
  ~Stats();
  Stats(const Stats&) = delete;
  Stats& operator=(const Stats&) = delete;

  StatsBlock& operator*() { return *block_; }
  StatsBlock* operator->() { return block_; }

  // Records the latest error for the parent and logs it.
  void set_error(const std::string& message);
  void fail_load(const std::string& message);

 private:
  StatsBlock* block_ = nullptr;
};

// Whether the graph that is being computed is one to give up.
inline bool is_given_up(const StatsBlock& stats) {
  const uint64_t number = stats.give_up.load(std::memory_order_relaxed);
  return number != 0 && number == stats.running.load(std::memory_order_relaxed);
}

inline void add(Word& word, uint64_t n) { word.fetch_add(n, std::memory_order_relaxed); }

}  // namespace guanaco
