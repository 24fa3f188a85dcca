// Writes down what the cache was asked: each layer's selection as it was served, and which of it was resident.
//
// Owns: the file and its format, which simulator/recording.py reads. Selections are gathered and written once a graph,
// so that a process that is ended loses nothing of the tokens before. A file that cannot be written ends the recording,
// never a decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace guanaco {

constexpr char kRecordingMagic[4] = {'G', 'N', 'R', 'C'};
constexpr uint32_t kRecordingVersion = 2;
constexpr uint32_t kHasScores = 1, kIsBatch = 2;  // a selection's flags
constexpr uint32_t kWasResident = 1u << 31;       // set in an expert's word

// What a layer was served. `rows`: n_used ids of each row of the batch, in the router's order.
struct ServedSelection {
  uint32_t group = 0;
  size_t n_used = 0;
  const std::vector<int32_t>& rows;
  const std::vector<int32_t>& experts;  // distinct, as the cache was asked
  size_t n_transient = 0;
  const std::vector<size_t>& missed;   // indices of experts that were not resident
  const std::vector<float>& scores;    // parallel to rows, or empty: not known
  bool is_batch = false;               // of a prompt: the policy learned from every row
};

class Recorder {
 public:
  // Records nothing when `path` is empty.
  explicit Recorder(const std::string& path);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  bool is_on() const { return fd_ >= 0; }
  void served(const ServedSelection& selection);
  void end_graph();

 private:
  void add(const void* words, size_t nbytes);
  void write_out();
  void stop(const char* why);

  int fd_ = -1;
  uint32_t graph_ = 0;
  std::vector<char> buffer_;
};

}  // namespace guanaco
