#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "io.h"

namespace guanaco {

#ifndef GUANACO_HAVE_URING
std::unique_ptr<ReadBackend> make_uring_backend(uint32_t) { return nullptr; }
#endif

namespace {

struct AlignedPage {
  void* data = std::aligned_alloc(kPage, kPage);
  ~AlignedPage() { std::free(data); }
};

bool probe(ReadBackend* backend, int fd, uint64_t size_bytes) {
  AlignedPage page;
  Read read;
  read.fd = fd;
  read.nbytes = kPage;
  read.required = std::min<uint64_t>(kPage, size_bytes);
  read.destination = page.data;
  backend->submit({read});
  std::vector<Completion> done;
  backend->collect(true, &done);
  return done.size() == 1 && done[0].error == 0;
}

bool direct_read_works(int fd, uint64_t size_bytes) {
  AlignedPage page;
  const ssize_t got = pread(fd, page.data, kPage, 0);
  return got == static_cast<ssize_t>(std::min<uint64_t>(kPage, size_bytes));
}

}  // namespace

OpenFiles::~OpenFiles() {
  for (const int fd : fds) {
    if (fd >= 0) close(fd);
  }
}

bool same_file(const PlanFile& planned, int fd, std::string* error) {
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    *error = planned.path + ": " + std::strerror(errno);
    return false;
  }
  const int64_t mtime_ns = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
  if (info.st_dev != planned.device || info.st_ino != planned.inode ||
      static_cast<uint64_t>(info.st_size) != planned.size_bytes || mtime_ns != planned.mtime_ns) {
    *error = "the model file " + planned.path + " was changed or replaced since it was planned; load it again";
    return false;
  }
  return true;
}

bool open_files(const LoadPlan& plan, OpenFiles* files, std::string* error) {
  const bool want_direct = plan.io != IoMode::kBuffered && plan.io != IoMode::kPageCache;
  files->direct = want_direct;
  for (const PlanFile& file : plan.files) {
    int fd = want_direct ? open(file.path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC) : -1;
    if (fd >= 0 && !direct_read_works(fd, file.size_bytes)) {
      close(fd);
      fd = -1;
    }
    if (fd < 0) {
      files->direct = false;
      fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0) {
      *error = "cannot open the model file " + file.path + ": " + std::strerror(errno);
      return false;
    }
    files->fds.push_back(fd);
    if (!same_file(file, fd, error)) return false;
  }
  // One mode for all shards: a mixed set falls back to buffered reads.
  if (want_direct && !files->direct) {
    for (size_t i = 0; i < files->fds.size(); ++i) {
      close(files->fds[i]);
      files->fds[i] = open(plan.files[i].path.c_str(), O_RDONLY | O_CLOEXEC);
      if (files->fds[i] < 0) {
        *error = "cannot open the model file " + plan.files[i].path + ": " + std::strerror(errno);
        return false;
      }
      if (!same_file(plan.files[i], files->fds[i], error)) return false;
    }
  }
  // Buffered: what a read leaves in the page cache is dropped after it, so it must not read ahead of what was asked.
  for (const int fd : files->fds) {
    if (!files->direct) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  }
  return true;
}

bool select_io(const LoadPlan& plan, const OpenFiles& files, SelectedIo* io, std::string* error) {
  const uint64_t size_bytes = plan.files.empty() ? 0 : plan.files[0].size_bytes;
  if (plan.io == IoMode::kUring && !files.direct) {
    *error = "--io uring needs direct reads, and the file system of " + plan.files[0].path + " has none; use --io auto";
    return false;
  }
  if (files.direct && (plan.io == IoMode::kAuto || plan.io == IoMode::kUring)) {
    io->backend = make_uring_backend(plan.queue_depth);
    if (io->backend != nullptr && probe(io->backend.get(), files.fds[0], size_bytes)) {
      io->mode = IoMode::kUring;
      return true;
    }
    if (plan.io == IoMode::kUring) {
      *error = "--io uring does not work here (kernel, container or build without it); use --io auto or threads";
      return false;
    }
  }
  io->backend = make_thread_backend(plan.io_threads, !files.direct);
  if (io->backend == nullptr) {
    *error = "no thread can be started to read experts; raise the limit on processes (ulimit -u)";
    return false;
  }
  io->mode = files.direct ? IoMode::kThreads : IoMode::kBuffered;
  if (plan.io == IoMode::kPageCache) io->mode = IoMode::kPageCache;
  return true;
}

const char* io_mode_name(IoMode mode) {
  switch (mode) {
    case IoMode::kAuto: return "unknown";
    case IoMode::kUring: return "io_uring, O_DIRECT";
    case IoMode::kThreads: return "threads, O_DIRECT";
    case IoMode::kBuffered: return "threads, buffered";
    case IoMode::kPageCache: return "page cache";
  }
  return "unknown";
}

bool read_range(ReadBackend* backend, int fd, uint64_t offset, uint64_t nbytes, uint64_t required, char* destination,
                uint64_t chunk_bytes, std::string* error) {
  std::vector<Read> reads;
  for (uint64_t at = 0; at < nbytes && at < required; at += chunk_bytes) {
    Read read;
    read.fd = fd;
    read.offset = offset + at;
    read.nbytes = std::min(chunk_bytes, nbytes - at);
    read.required = std::min(read.nbytes, required - at);
    read.destination = destination + at;
    reads.push_back(read);
  }
  if (backend->in_flight() > 0) {
    *error = "other reads are under way";
    return false;
  }
  backend->submit(reads);
  int failed = 0;
  std::vector<Completion> done;
  while (backend->in_flight() > 0) {
    done.clear();
    backend->collect(true, &done);
    for (const Completion& completion : done) {
      if (completion.error != 0) failed = completion.error;
    }
  }
  if (failed != 0) *error = failed == ENODATA ? "the file ends early" : std::strerror(failed);
  return failed == 0;
}

}  // namespace guanaco
