// Reads of expert parts into memory: in chunks, with retries and staging buffers, demand before guesses.
//
// Owns: the reads that are queued or in flight, the staging buffers, and what the drive was seen to deliver. Leaves to
// the store what a part is read for and where to. Refuses to start a guess while anything demanded is missing, and to
// have more than a few bytes of guesses with the drive, so that demand never waits long behind them. Used from one
// thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "io.h"
#include "plan.h"
#include "stats.h"

namespace guanaco {

struct PartRead {
  uint32_t group = 0, slot = 0, part = 0;
  int32_t expert = -1;
  char* destination = nullptr;  // of the first block; slices of whole blocks keep their place in it
};

struct PartDone {
  PartRead read;
  int error = 0;            // 0, or why it was given up
  bool is_guess = false;    // nobody had demanded it
  bool is_cancelled = false;  // it may not be whole
};

class PartReads {
 public:
  PartReads(const LoadPlan& plan, const OpenFiles& files, ReadBackend* backend, Stats* stats);
  ~PartReads();
  // Waits until the drive writes no more; what arrives is forgotten.
  void drain();
  PartReads(const PartReads&) = delete;
  PartReads& operator=(const PartReads&) = delete;

  // Maps and pre-faults the staging buffers.
  bool allocate(std::string* error);

  // Queues a part; start() hands it to the drive.
  void demand(const PartRead& read) { queue(read, false); }
  void guess(const PartRead& read) { queue(read, true); }
  // What of a guess has not been handed to the drive goes to the end of the demand. False when there is no such guess.
  bool promote(uint32_t group, uint32_t slot, uint32_t part);
  // Nothing more of a slot's guesses is read. Parts of which nothing is with the drive end at once; returns the bytes
  // that were read for the others.
  uint64_t cancel(uint32_t group, uint32_t slot, std::vector<PartDone>* done);
  // So many bytes of guesses may be with the drive at a time; one read always may.
  void limit_guesses(uint64_t most_bytes) { most_guess_bytes_ = most_bytes; }
  // True when the drive could take a guess now and none is queued.
  bool wants_guess() const { return n_demand_ == 0 && guesses_.empty() && guess_bytes_ < most_guess_bytes_; }

  void start();
  // Takes in what has arrived; with `block`, waits until something has. A demanded part is tried several times.
  void collect(bool block, std::vector<PartDone>* done);
  // Nothing demanded is queued and nothing at all is with the drive.
  bool is_idle() const { return backend_->in_flight() == 0 && demand_.empty(); }
  bool has_demand() const { return n_demand_ > 0; }

  uint64_t pending_bytes() const { return pending_bytes_; }
  // When the last demanded part was seen to have arrived, on now_ns()'s clock.
  uint64_t demand_ended_ns() const { return demand_ended_ns_; }
  // What the drive delivered while it was busy all the time, since the last call; false when that was too little.
  bool take_drive_rate(uint64_t* nbytes, uint64_t* elapsed_ns);

 private:
  struct Entry {
    PartRead read;
    uint64_t first = 0, next = 0, end = 0;  // block-rounded range in the file; from `next` on nothing is with the drive
    uint64_t slice_end = 0;
    uint32_t in_flight = 0;  // chunks
    uint32_t tries = 0;
    int error = 0;
    int32_t staging = -1;
    bool in_use = false, is_guess = false, is_cancelled = false;
  };

  const ExpertPart& part_of(const Entry& entry) const { return plan_.groups[entry.read.group].parts[entry.read.part]; }
  // What one chunk counts for while it is in flight.
  uint64_t chunk_bytes(const Entry& entry) const;
  bool holds(const Entry& entry, uint32_t group, uint32_t slot) const;
  void queue(const PartRead& read, bool is_guess);
  bool take_staging(Entry* entry, size_t n_left);
  void add_chunk(uint32_t index);
  void forget_guess(uint32_t index);
  void end(uint32_t index, std::vector<PartDone>* done);
  void note_wait(uint64_t start_ns);

  const LoadPlan& plan_;
  const OpenFiles& files_;
  ReadBackend* const backend_;
  Stats* const stats_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_entries_;
  std::deque<uint32_t> demand_, guesses_;  // not handed to the drive, or not all of it
  std::vector<Read> batch_;                // gathered for one submission
  std::vector<Completion> completions_;
  char* staging_ = nullptr;
  uint64_t staging_span_ = 0, staging_map_bytes_ = 0;
  std::vector<int32_t> free_staging_;
  size_t n_staging_ = 0;
  uint32_t n_demand_ = 0;  // parts, queued or in flight
  uint64_t guess_bytes_ = 0, most_guess_bytes_ = 4u << 20;
  uint64_t pending_bytes_ = 0, delivered_bytes_ = 0;
  uint64_t demand_ended_ns_ = 0;
  uint64_t busy_since_ns_ = 0, busy_from_bytes_ = 0;  // the drive has had something to do since; 0: not known
  uint64_t rate_bytes_ = 0, rate_ns_ = 0;
};

uint64_t now_ns();
char* map_anonymous(uint64_t nbytes);
// Commits the pages now, so that a budget that cannot be had fails before the port opens.
bool prefault(char* base, uint64_t nbytes);

}  // namespace guanaco
