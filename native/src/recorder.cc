#include "recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "log.h"

namespace guanaco {

namespace {

constexpr size_t kMostBuffered = 1u << 20;

}  // namespace

Recorder::Recorder(const std::string& path) {
  if (path.empty()) return;
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    GUANACO_LOG("warning: routing is not recorded: %s: %s", path.c_str(), std::strerror(errno));
    return;
  }
  add(kRecordingMagic, sizeof kRecordingMagic);
  add(&kRecordingVersion, sizeof kRecordingVersion);
}

Recorder::~Recorder() {
  if (fd_ < 0) return;
  write_out();
  if (fd_ >= 0) close(fd_);
}

void Recorder::served(const ServedSelection& selection) {
  if (fd_ < 0) return;
  const auto word = [](size_t n) { return static_cast<uint32_t>(n); };
  const uint32_t head[] = {graph_,
                           selection.group,
                           word(selection.rows.size() / selection.n_used),
                           word(selection.n_used),
                           word(selection.experts.size()),
                           word(selection.n_transient),
                           (selection.scores.empty() ? 0u : kHasScores) | (selection.is_batch ? kIsBatch : 0u)};
  add(head, sizeof head);
  add(selection.rows.data(), selection.rows.size() * sizeof(int32_t));
  size_t next_missed = 0;
  for (size_t i = 0; i < selection.experts.size(); ++i) {
    const bool missed = next_missed < selection.missed.size() && selection.missed[next_missed] == i;
    if (missed) ++next_missed;
    const uint32_t expert = static_cast<uint32_t>(selection.experts[i]) | (missed ? 0 : kWasResident);
    add(&expert, sizeof expert);
  }
  add(selection.scores.data(), selection.scores.size() * sizeof(float));
  if (buffer_.size() > kMostBuffered) write_out();
}

void Recorder::end_graph() {
  ++graph_;
  if (fd_ >= 0) write_out();
}

void Recorder::add(const void* words, size_t nbytes) {
  const char* const bytes = static_cast<const char*>(words);
  buffer_.insert(buffer_.end(), bytes, bytes + nbytes);
}

void Recorder::write_out() {
  size_t written = 0;
  while (written < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + written, buffer_.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return stop(n < 0 ? std::strerror(errno) : "nothing is written any more");
    written += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void Recorder::stop(const char* why) {
  GUANACO_LOG("warning: routing is not recorded any more: %s", why);
  close(fd_);
  fd_ = -1;
  buffer_ = {};
}

}  // namespace guanaco
