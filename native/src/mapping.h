// The engine's mappings of the model files, and the dense weights put in their place.
//
// Owns: where each planned file is mapped, anonymous memory for dense ranges. The interposed mmap, munmap and
// posix_madvise end here. Refuses to touch a mapping of any other file or shape: those go to the kernel as they are.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "io.h"
#include "plan.h"
#include "stats.h"

namespace guanaco {

// Raw system calls: the interposed names must not call themselves, and may run before any constructor.
void* raw_mmap(void* address, size_t nbytes, int protection, int flags, int fd, off64_t offset);
int raw_munmap(void* address, size_t nbytes);

class Mappings {
 public:
  Mappings(const LoadPlan& plan, Stats* stats) : plan_(plan), stats_(stats) {}

  // Index of the planned file behind `fd`, or -1.
  int planned_file(int fd) const;
  // Records a whole-file mapping and replaces its dense ranges by filled anonymous memory.
  bool adopt(int file, char* base, size_t nbytes, const OpenFiles& files, ReadBackend* backend, std::string* error);
  // Records a mapping that stays as the engine made it (replay without streaming).
  void note(int file, char* base, size_t nbytes);
  void unmapped(const char* address, size_t nbytes);
  bool contains(const void* address) const;

  // The file and offset that `address` shows; false when it lies in no planned mapping.
  bool locate(const void* address, uint32_t* file, uint64_t* offset) const;
  // Where the mapping shows `offset` of `file`, or null.
  char* address_of(uint32_t file, uint64_t offset) const;

 private:
  struct Mapping {
    uint32_t file = 0;
    char* base = nullptr;
    size_t mapped_begin = 0;  // offsets still mapped
    size_t mapped_end = 0;
  };

  bool fill(uint32_t file, char* base, uint64_t begin, uint64_t end, const OpenFiles& files, ReadBackend* backend,
            std::string* error);

  const LoadPlan& plan_;
  Stats* const stats_;
  mutable std::mutex mutex_;
  std::vector<Mapping> mappings_;
};

}  // namespace guanaco
