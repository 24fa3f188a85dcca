// A back end whose every completion the test decides. It plays the files of a Bed from the pattern.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <vector>

#include "bed.h"
#include "io.h"

class ScriptedBackend final : public guanaco::ReadBackend {
 public:
  explicit ScriptedBackend(const Bed& bed) : bed_(bed) {}

  void submit(const std::vector<guanaco::Read>& reads) override {
    ++submissions;
    for (const guanaco::Read& read : reads) {
      forbid_overlap(read);
      pending.push_back(read);
      started.push_back(read);
    }
  }

  void collect(bool block, std::vector<guanaco::Completion>* done) override {
    if (block && ready_.empty() && on_wait) on_wait();
    if (block && ready_.empty() && !pending.empty()) {
      if (!automatic) throw std::runtime_error("the store waits for a read that the script holds back");
      finish(0);
    }
    done->insert(done->end(), ready_.begin(), ready_.end());
    ready_.clear();
  }

  size_t in_flight() const override { return pending.size() + ready_.size(); }

  // Ends pending read number `index`: with the error the script has for it, else by filling the buffer.
  void finish(size_t index) {
    if (index >= pending.size()) throw std::runtime_error("the script ends a read that was not started");
    const guanaco::Read read = pending[index];
    pending.erase(pending.begin() + static_cast<long>(index));
    const uint32_t file = file_of(read.fd);
    int error = 0;
    const auto script = errors.find({file, read.offset});
    if (script != errors.end() && script->second != 0) {
      error = EIO;
      if (script->second > 0) --script->second;
    } else {
      const uint64_t end = std::max(bed_.plan.files[file].size_bytes, read.offset);
      const std::string bytes = pattern(file, read.offset, std::min(read.nbytes, end - read.offset));
      if (bytes.size() < read.required) error = ENODATA;
      std::memcpy(read.destination, bytes.data(), bytes.size());
    }
    ready_.push_back({read.tag, error});
  }
  void finish_all() {
    while (!pending.empty()) finish(0);
  }

  uint32_t file_of(int fd) const {
    for (uint32_t i = 0; i < bed_.files.fds.size(); ++i) {
      if (bed_.files.fds[i] == fd) return i;
    }
    throw std::runtime_error("a read of a file that is not open");
  }

  // (file, offset) -> how many reads there fail; negative: all.
  std::map<std::pair<uint32_t, uint64_t>, int> errors;
  bool automatic = true;  // a blocking collect ends the oldest read itself
  std::function<void()> on_wait;  // told when the store begins to wait
  std::deque<guanaco::Read> pending;
  std::vector<guanaco::Read> started;  // everything ever submitted, in order
  int submissions = 0;

 private:
  // Memory that the drive may still write into must not be given out again.
  void forbid_overlap(const guanaco::Read& read) const {
    const char* begin = static_cast<const char*>(read.destination);
    for (const guanaco::Read& other : pending) {
      const char* other_begin = static_cast<const char*>(other.destination);
      if (begin < other_begin + other.nbytes && other_begin < begin + read.nbytes) {
        throw std::runtime_error("two reads into the same memory");
      }
    }
  }

  const Bed& bed_;
  std::vector<guanaco::Completion> ready_;
};
