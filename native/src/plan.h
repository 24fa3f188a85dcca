// The load plan as the parent wrote it: files, dense ranges, expert groups, size classes and I/O settings.
//
// Owns: parsing and bounds of the plan file. Leaves deciding to the Python planner; refuses a plan that is not
// consistent in itself (an index out of range, a slice outside its file, a slot too small for its parts).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace guanaco {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2u << 20;

constexpr uint64_t page_floor(uint64_t x) { return x & ~(kPage - 1); }
constexpr uint64_t page_ceil(uint64_t x) { return (x + kPage - 1) & ~(kPage - 1); }

struct PlanFile {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  std::string path;
};

struct DenseRange {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

struct SizeClass {
  uint32_t slots = 0;
  uint64_t stride_bytes = 0;
  std::vector<uint64_t> part_offsets;
};

struct ExpertPart {
  std::string role;
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t slice_bytes = 0;
  std::string tensor_name;

  // Slices of whole blocks all begin at the same place in a block: they are read where they belong.
  bool is_aligned() const { return slice_bytes % kPage == 0; }
};

struct ExpertGroup {
  uint32_t layer = 0;
  uint32_t size_class = 0;
  uint32_t n_expert = 0;
  bool expected = true;  // run by a plain decode, so it must have been bound after the probe
  uint32_t top_k = 0;    // experts a token uses; 0: unknown
  std::vector<double> prior;  // [expert] uses a token to expect at first; empty: unknown
  std::vector<ExpertPart> parts;

  uint64_t expert_bytes() const;
};

// Where early reads of the next layer's experts come from: its own router, learned transitions, or whatever pays.
enum class PilotMode { kOff, kGate, kTransition, kAuto };
enum class IoMode { kAuto, kUring, kThreads, kBuffered, kPageCache };

struct LoadPlan {
  IoMode io = IoMode::kAuto;
  uint32_t io_threads = 8;
  uint32_t queue_depth = 64;
  uint64_t read_chunk_bytes = 1u << 20;
  uint64_t staging_bytes = 0;
  uint32_t batch_tokens = 16;  // graphs with more tokens than this do not displace what decoding uses
  bool draft_always = false;   // draft although it does not pay
  bool testing = false;        // honour the test controls in shared memory
  std::string policy = "lru";
  PilotMode pilot = PilotMode::kOff;
  double pilot_mass = 0.9;  // transitions are followed until this much of their probability is covered
  bool overlap = true;      // experts that are there compute while others are read
  uint32_t threads = 1;     // the engine's, for a token
  uint32_t batch_threads = 0;  // for more than one; 0: as many
  std::string stats_path;
  std::string replay_path;
  std::string record_path;  // where routing is recorded; empty: nowhere
  std::string heat_path;    // the file for a HeatMap
  std::string engine;
  bool manage = true;  // false: replay only, nothing is streamed
  std::vector<PlanFile> files;
  std::vector<DenseRange> dense;
  std::vector<SizeClass> classes;
  std::vector<ExpertGroup> groups;

  uint64_t arena_bytes() const;
  int threads_for(int64_t n_tokens) const {
    return static_cast<int>(n_tokens > 1 && batch_threads > 0 ? batch_threads : threads);
  }
  bool is_batch(int64_t n_tokens) const { return n_tokens > static_cast<int64_t>(batch_tokens); }
};

// Reads and checks `path`. On failure returns false and sets `error` to one line that names what is wrong.
bool read_plan(const char* path, LoadPlan* plan, std::string* error);
bool parse_plan(const std::string& text, LoadPlan* plan, std::string* error);

}  // namespace guanaco
