// Counters in shared memory: written by the worker's graph thread, read by the parent at any time.
//
// Owns: the layout that engine/native.py mirrors (checked by a test on both sides). All fields are 64-bit words so
// that a reader sees whole values; text is written before its length.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace guanaco {

constexpr uint64_t kStatsMagic = 0x314154534e475547ull;  // "GUGNSTA1"
constexpr uint64_t kStatsVersion = 1;
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
  Word tokens;                       // rows of the first MoE layer of each graph
  Word error_length;
  char error[kErrorBytes];
  // Controls, written by the parent. Replay: a benchmark tool. The others are honoured only under `testing`.
  Word replay_on, replay_position, replay_exhausted;
  Word fail_reads;   // the next N expert reads report EIO; each is tried again
  Word mutation;     // 1: ids off by one slot, 2: two slots exchanged
  Word fail_slices;  // the next N slices fail for good
  Word reserved[15];
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

  // Records the first error of a kind for the parent and logs it.
  void set_error(const std::string& message);
  void fail_load(const std::string& message);

 private:
  StatsBlock* block_ = nullptr;
};

inline void add(Word& word, uint64_t n) { word.fetch_add(n, std::memory_order_relaxed); }

}  // namespace guanaco
