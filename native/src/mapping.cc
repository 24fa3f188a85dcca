#include "mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace guanaco {

void* raw_mmap(void* address, size_t nbytes, int protection, int flags, int fd, off64_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, nbytes, protection, flags, fd, offset));
}

int raw_munmap(void* address, size_t nbytes) { return static_cast<int>(syscall(SYS_munmap, address, nbytes)); }

namespace {

// Pages that hold dense bytes, merged. An edge page may show the rim of an expert slice too: its copy is equal.
std::vector<std::pair<uint64_t, uint64_t>> dense_pages(const LoadPlan& plan, uint32_t file) {
  std::vector<std::pair<uint64_t, uint64_t>> pages;
  for (const DenseRange& range : plan.dense) {
    if (range.file == file) pages.emplace_back(page_floor(range.offset), page_ceil(range.offset + range.nbytes));
  }
  std::sort(pages.begin(), pages.end());
  std::vector<std::pair<uint64_t, uint64_t>> merged;
  for (const auto& [begin, end] : pages) {
    if (!merged.empty() && begin <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, end);
    } else {
      merged.emplace_back(begin, end);
    }
  }
  return merged;
}

}  // namespace

int Mappings::planned_file(int fd) const {
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    if (plan_.files[i].device == info.st_dev && plan_.files[i].inode == info.st_ino) return static_cast<int>(i);
  }
  return -1;
}

bool Mappings::adopt(int file, char* base, size_t nbytes, const OpenFiles& files, ReadBackend* backend,
                     std::string* error) {
  const uint32_t index = static_cast<uint32_t>(file);
  for (const auto& [begin, end] : dense_pages(plan_, index)) {
    if (begin >= nbytes) continue;
    if (!fill(index, base, begin, std::min<uint64_t>(end, page_ceil(nbytes)), files, backend, error)) return false;
  }
  note(file, base, nbytes);
  return true;
}

void Mappings::note(int file, char* base, size_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  mappings_.push_back({static_cast<uint32_t>(file), base, 0, nbytes});
}

bool Mappings::fill(uint32_t file, char* base, uint64_t begin, uint64_t end, const OpenFiles& files,
                    ReadBackend* backend, std::string* error) {
  char* const at = base + begin;
  if (raw_mmap(at, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) {
    *error = std::string("cannot get memory for dense weights: ") + std::strerror(errno);
    return false;
  }
  madvise(at, end - begin, MADV_HUGEPAGE);
  // In steps, so that progress shows and the queue stays short.
  constexpr uint64_t kStep = 64u << 20;
  const uint64_t file_bytes = plan_.files[file].size_bytes;
  for (uint64_t done = begin; done < end; done += kStep) {
    const uint64_t nbytes = std::min(kStep, end - done);
    const uint64_t required = std::min(nbytes, file_bytes - done);
    if (!read_range(backend, files.fds[file], done, nbytes, required, base + done, plan_.read_chunk_bytes, error)) {
      *error = "reading dense weights of " + plan_.files[file].path + " at " + std::to_string(done) +
               " failed: " + *error;
      return false;
    }
    add((*stats_)->dense_bytes_read, required);
  }
  mprotect(at, end - begin, PROT_READ);
  return true;
}

void Mappings::unmapped(const char* address, size_t nbytes) {
  std::vector<Mapping> left;  // an allocator may call munmap when it is freed: after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const char* const stop = address + page_ceil(nbytes);
  const auto is_hit = [&](const Mapping& mapping) {
    return stop > mapping.base + mapping.mapped_begin && address < mapping.base + mapping.mapped_end;
  };
  // Nearly every munmap of the process is about other memory: nothing is allocated for those.
  if (std::none_of(mappings_.begin(), mappings_.end(), is_hit)) return;
  for (const Mapping& mapping : mappings_) {
    if (!is_hit(mapping)) {
      left.push_back(mapping);
      continue;
    }
    // The loader unmaps the ends of a file first, in whole pages: a part of the last page may stay behind the hole.
    const char* const begin = mapping.base + mapping.mapped_begin;
    const char* const end = mapping.base + mapping.mapped_end;
    if (address > begin) {
      left.push_back({mapping.file, mapping.base, mapping.mapped_begin, static_cast<size_t>(address - mapping.base)});
    }
    if (stop < end) {
      left.push_back({mapping.file, mapping.base, static_cast<size_t>(stop - mapping.base), mapping.mapped_end});
    }
  }
  mappings_.swap(left);
}

bool Mappings::contains(const void* address) const {
  uint32_t file = 0;
  uint64_t offset = 0;
  return locate(address, &file, &offset);
}

bool Mappings::locate(const void* address, uint32_t* file, uint64_t* offset) const {
  const char* at = static_cast<const char*>(address);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Mapping& mapping : mappings_) {
    if (at >= mapping.base + mapping.mapped_begin && at < mapping.base + mapping.mapped_end) {
      *file = mapping.file;
      *offset = static_cast<uint64_t>(at - mapping.base);
      return true;
    }
  }
  return false;
}

char* Mappings::address_of(uint32_t file, uint64_t offset) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Mapping& mapping : mappings_) {
    if (mapping.file == file && offset >= mapping.mapped_begin && offset < mapping.mapped_end) {
      return mapping.base + offset;
    }
  }
  return nullptr;
}

}  // namespace guanaco
