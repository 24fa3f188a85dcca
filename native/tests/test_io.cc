// Both back ends on real files, with the same expectations: they must not differ in what a reader sees.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "bed.h"
#include "check.h"

using guanaco::Completion;
using guanaco::kPage;
using guanaco::page_ceil;
using guanaco::Read;
using guanaco::ReadBackend;

namespace {

constexpr uint64_t kFileBytes = 300 * kKiB + 1234;  // ends inside a page

struct Pages {
  explicit Pages(uint64_t nbytes) : data(static_cast<char*>(std::aligned_alloc(kPage, page_ceil(nbytes)))) {
    std::memset(data, 0x5a, page_ceil(nbytes));
  }
  ~Pages() { std::free(data); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::string text(uint64_t nbytes) const { return std::string(data, nbytes); }
  char* data;
};

struct OpenFile {
  OpenFile(const std::string& path, bool direct)
      : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0))) {}
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd;
};

// Runs `body` with each back end there is, on the file opened in each way that works here.
void with_every_backend(const std::function<void(ReadBackend*, int fd)>& body) {
  TempDir dir;
  const std::string path = dir.write_pattern("data", 0, kFileBytes);
  int n_run = 0;
  for (const bool direct : {true, false}) {
    OpenFile file(path, direct);
    if (direct && file.fd < 0) continue;  // a file system without it
    REQUIRE(file.fd >= 0);
    for (const bool uring : {false, true}) {
      const auto backend = uring ? guanaco::make_uring_backend(8) : guanaco::make_thread_backend(3, !direct);
      if (backend == nullptr) continue;
      body(backend.get(), file.fd);
      CHECK_EQ(backend->in_flight(), 0);
      ++n_run;
    }
  }
  CHECK(n_run >= 1);
}

std::vector<Completion> collect_all(ReadBackend* backend) {
  std::vector<Completion> done;
  while (backend->in_flight() > 0) {
    const size_t before = done.size();
    backend->collect(true, &done);
    REQUIRE(done.size() > before);
  }
  return done;
}

Read make_read(int fd, uint64_t offset, uint64_t nbytes, uint64_t required, char* destination, uint64_t tag) {
  Read read;
  read.fd = fd;
  read.offset = offset;
  read.nbytes = nbytes;
  read.required = required;
  read.destination = destination;
  read.tag = tag;
  return read;
}

}  // namespace

TEST(io_reads_exact_bytes) {
  with_every_backend([](ReadBackend* backend, int fd) {
    Pages pages(64 * kKiB);
    backend->submit({make_read(fd, 8 * kPage, 64 * kKiB, 64 * kKiB, pages.data, 7)});
    const auto done = collect_all(backend);
    REQUIRE(done.size() == 1);
    CHECK_EQ(done[0].tag, 7);
    CHECK_EQ(done[0].error, 0);
    CHECK(pages.text(64 * kKiB) == pattern(0, 8 * kPage, 64 * kKiB));
  });
}

TEST(io_end_of_file_inside_a_page) {
  with_every_backend([](ReadBackend* backend, int fd) {
    const uint64_t begin = guanaco::page_floor(kFileBytes) - 4 * kPage;
    const uint64_t left = kFileBytes - begin;
    Pages pages(8 * kPage);
    backend->submit({make_read(fd, begin, 8 * kPage, left, pages.data, 1)});
    const auto done = collect_all(backend);
    REQUIRE(done.size() == 1);
    CHECK_EQ(done[0].error, 0);
    CHECK(pages.text(left) == pattern(0, begin, left));
  });
}

TEST(io_missing_bytes) {
  with_every_backend([](ReadBackend* backend, int fd) {
    const uint64_t last = guanaco::page_floor(kFileBytes);
    Pages a(8 * kPage), b(8 * kPage), c(8 * kPage), d(8 * kPage);
    // One byte too many in the last page; a whole page too many; begun behind the end; nothing required of it.
    backend->submit({make_read(fd, last, kPage, kFileBytes - last + 1, a.data, 0),
                     make_read(fd, last - kPage, 8 * kPage, 4 * kPage, b.data, 1),
                     make_read(fd, last + kPage, kPage, 1, c.data, 2),
                     make_read(fd, last + kPage, kPage, 0, d.data, 3)});
    std::vector<int> errors(4, -1);
    for (const Completion& completion : collect_all(backend)) errors[completion.tag] = completion.error;
    CHECK_EQ(errors, (std::vector<int>{ENODATA, ENODATA, ENODATA, 0}));
  });
}

TEST(io_bad_descriptor) {
  with_every_backend([](ReadBackend* backend, int fd) {
    Pages pages(kPage);
    const int closed = dup(fd);
    close(closed);
    backend->submit({make_read(closed, 0, kPage, kPage, pages.data, 1)});
    const auto done = collect_all(backend);
    REQUIRE(done.size() == 1);
    CHECK_EQ(done[0].error, EBADF);
  });
}

TEST(io_more_reads_than_the_queue_holds) {
  with_every_backend([](ReadBackend* backend, int fd) {
    constexpr uint64_t kReads = 70;
    Pages pages(kReads * kPage);
    std::vector<Read> reads;
    for (uint64_t i = 0; i < kReads; ++i) {
      reads.push_back(make_read(fd, (kReads - 1 - i) * kPage, kPage, kPage, pages.data + i * kPage, i));
    }
    backend->submit({reads.begin(), reads.begin() + 40});
    backend->submit({reads.begin() + 40, reads.end()});
    CHECK(backend->in_flight() <= kReads);
    std::vector<int> seen(kReads, 0);
    for (const Completion& completion : collect_all(backend)) {
      CHECK_EQ(completion.error, 0);
      ++seen[completion.tag];
    }
    CHECK_EQ(seen, std::vector<int>(kReads, 1));
    for (uint64_t i = 0; i < kReads; ++i) {
      CHECK(std::string(pages.data + i * kPage, kPage) == pattern(0, (kReads - 1 - i) * kPage, kPage));
    }
  });
}

TEST(io_nothing_in_flight) {
  with_every_backend([](ReadBackend* backend, int) {
    std::vector<Completion> done;
    backend->submit({});
    backend->collect(true, &done);
    backend->collect(false, &done);
    CHECK(done.empty());
  });
}

TEST(io_collect_appends_and_does_not_block) {
  with_every_backend([](ReadBackend* backend, int fd) {
    Pages pages(kPage);
    std::vector<Completion> done(1);
    done[0].tag = 99;
    backend->submit({make_read(fd, 0, kPage, kPage, pages.data, 3)});
    while (done.size() == 1) backend->collect(false, &done);
    CHECK_EQ(done[0].tag, 99);
    CHECK_EQ(done[1].tag, 3);
  });
}

TEST(io_destroyed_with_reads_in_flight) {
  with_every_backend([](ReadBackend*, int fd) {
    // The buffers outlive the back end, so the drive may still write: no more is asked of it.
    Pages pages(64 * kPage);
    for (const bool uring : {false, true}) {
      auto backend = uring ? guanaco::make_uring_backend(4) : guanaco::make_thread_backend(2, false);
      if (backend == nullptr) continue;
      std::vector<Read> reads;
      for (uint64_t i = 0; i < 64; ++i) {
        reads.push_back(make_read(fd, i * kPage, kPage, kPage, pages.data + i * kPage, i));
      }
      backend->submit(reads);
      backend.reset();
    }
  });
}

TEST(io_thread_backend_drops_the_cache) {
  TempDir dir;
  const std::string path = dir.write_pattern("data", 0, 64 * kPage);
  OpenFile file(path, false);
  REQUIRE(file.fd >= 0);
  if (!drop_cached(file.fd, 64 * kPage)) SKIP("this file system does not let its pages go");
  const auto count_cached = [&] { return cached_pages(file.fd, 0, 64 * kPage); };
  Pages pages(64 * kPage);
  const auto read_all = [&](bool drop_cache) {
    const auto backend = guanaco::make_thread_backend(2, drop_cache);
    backend->submit({make_read(file.fd, 0, 64 * kPage, 64 * kPage, pages.data, 0)});
    const auto done = collect_all(backend.get());
    CHECK_EQ(done.at(0).error, 0);
    CHECK(pages.text(64 * kPage) == pattern(0, 0, 64 * kPage));
  };
  read_all(false);
  CHECK_EQ(count_cached(), 64);
  read_all(true);
  CHECK(count_cached() <= 4);  // the kernel passes over a page that somebody holds in that moment
}
