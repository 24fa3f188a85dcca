// Test beds: temporary files of known bytes, and plans over them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "io.h"
#include "plan.h"

// What byte `offset` of file number `file` holds in every test. No two aligned words are equal.
uint8_t pattern_byte(uint64_t file, uint64_t offset);
std::string pattern(uint64_t file, uint64_t offset, uint64_t nbytes);

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const;
  std::string write_pattern(const std::string& name, uint64_t file, uint64_t nbytes) const;

 private:
  std::string root_;
};

constexpr uint64_t kKiB = 1024;

// How many pages of a file's range the page cache holds. Asks the kernel: reading, even a read that may not wait, would
// start read-ahead.
int cached_pages(int fd, uint64_t offset, uint64_t nbytes);
// Drops a file just written. Its folios span many pages and go only as a whole, and the kernel passes over those
// somebody holds in that moment; false when some stay.
bool drop_cached(int fd, uint64_t nbytes);

// Builds a LoadPlan step by step. Files may exist (`real`) or be played by a fake back end.
class Bed {
 public:
  // Adds a file; with `real` it is written, and open_real() opens it.
  uint32_t file(uint64_t nbytes, bool real);
  // Adds a size class that has room for parts of these sizes.
  uint32_t size_class(uint32_t slots, std::initializer_list<uint64_t> slice_bytes);
  struct Part {
    uint64_t offset, slice_bytes;
    uint32_t file = 0;
  };
  uint32_t group(uint32_t layer, uint32_t size_class, uint32_t n_expert, std::initializer_list<Part> parts);
  void dense(uint32_t file, uint64_t offset, uint64_t nbytes) { plan.dense.push_back({file, offset, nbytes}); }

  // Descriptors for a fake back end (fake_file() tells which file one stands for).
  void open_fake();
  bool open_real(std::string* error) { return guanaco::open_files(plan, &files, error); }

  // The bytes of one expert's part, from the pattern.
  std::string slice(uint32_t group, uint32_t part, int32_t expert) const;
  // The plan file's text.
  std::string text() const;

  TempDir dir;
  guanaco::LoadPlan plan;
  guanaco::OpenFiles files;
};
