// Reading expert bytes: two back ends with one behaviour, chosen by a real probe.
//
// Owns: open model files, reads in flight, retries of short reads. Leaves the meaning of a read (slot, part) to the
// store. A back end is used from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan.h"

namespace guanaco {

struct Read {
  int fd = -1;
  uint64_t offset = 0;    // multiple of 4096 in direct modes
  uint64_t nbytes = 0;    // multiple of 4096 in direct modes; may reach past the end of the file
  uint64_t required = 0;  // bytes from `offset` that must arrive; the rest may lie past the end
  void* destination = nullptr;
  uint64_t tag = 0;
};

struct Completion {
  uint64_t tag = 0;
  int error = 0;  // 0, or an errno value; ENODATA when the file ended early
};

class ReadBackend {
 public:
  virtual ~ReadBackend() = default;
  // Queues the reads and starts them. Never blocks on the drive unless the queue is full.
  virtual void submit(const std::vector<Read>& reads) = 0;
  // Takes finished reads; with `block`, waits until there is at least one (none in flight: returns at once).
  virtual void collect(bool block, std::vector<Completion>* done) = 0;
  virtual size_t in_flight() const = 0;
};

// Null when not one thread can be started.
std::unique_ptr<ReadBackend> make_thread_backend(uint32_t n_threads, bool drop_cache);
// Null when the kernel, a seccomp filter or a limit refuses io_uring.
std::unique_ptr<ReadBackend> make_uring_backend(uint32_t depth);

struct OpenFiles {
  std::vector<int> fds;          // for expert reads, O_DIRECT where `direct`
  bool direct = false;
  ~OpenFiles();
};

// Opens every file of the plan and checks that it is still the one that was planned.
bool open_files(const LoadPlan& plan, OpenFiles* files, std::string* error);
// True when the file behind `fd` has the size and modification time of the plan.
bool same_file(const PlanFile& planned, int fd, std::string* error);

struct SelectedIo {
  std::unique_ptr<ReadBackend> backend;
  IoMode mode = IoMode::kThreads;
};
// Picks the mode asked for, or the best that a probe read shows to work.
bool select_io(const LoadPlan& plan, const OpenFiles& files, SelectedIo* io, std::string* error);
const char* io_mode_name(IoMode mode);

// Blocking read of a whole range with several requests in flight, in order of offset.
bool read_range(ReadBackend* backend, int fd, uint64_t offset, uint64_t nbytes, uint64_t required, char* destination,
                uint64_t chunk_bytes, std::string* error);

}  // namespace guanaco
