#include "stats.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "log.h"

namespace guanaco {

namespace {

void* map_block(int fd, int flags) {
  // The raw call: this library interposes mmap. The offset must be a whole word: it is passed on the stack.
  const long at = syscall(SYS_mmap, nullptr, sizeof(StatsBlock), PROT_READ | PROT_WRITE, flags, fd, 0L);
  return at == -1 ? nullptr : reinterpret_cast<void*>(at);
}

}  // namespace

Stats::Stats(const std::string& path) {
  const int fd = path.empty() ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  void* at = nullptr;
  if (fd >= 0 && fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) >= sizeof(StatsBlock)) {
    at = map_block(fd, MAP_SHARED);
  }
  if (fd >= 0) close(fd);
  if (at == nullptr) at = map_block(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  block_ = static_cast<StatsBlock*>(at);  // zero pages are valid zero words
  block_->version = kStatsVersion;
  block_->magic = kStatsMagic;
}

Stats::~Stats() { munmap(block_, sizeof(StatsBlock)); }

void Stats::set_error(const std::string& message) {
  GUANACO_LOG("error: %s", message.c_str());
  const size_t length = std::min<size_t>(message.size(), kErrorBytes - 1);
  std::memcpy(block_->error, message.data(), length);
  block_->error[length] = 0;
  block_->error_length.store(length, std::memory_order_release);
}

void Stats::fail_load(const std::string& message) {
  set_error(message);
  block_->state = static_cast<uint64_t>(LoadState::kFailed);
}

}  // namespace guanaco
