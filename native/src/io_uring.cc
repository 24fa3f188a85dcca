// io_uring: one submission for all reads of a layer, no threads of our own.
#include <liburing.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "io.h"
#include "log.h"

namespace guanaco {

namespace {

constexpr uint32_t kMostFailedWaits = 1000;

struct Pending {
  Read read;
  uint64_t got = 0;       // from where the read goes on
  uint64_t furthest = 0;  // bytes that have arrived
};

class UringBackend final : public ReadBackend {
 public:
  UringBackend(const io_uring& ring, uint32_t depth) : ring_(ring), slots_(depth) {
    for (uint32_t i = 0; i < depth; ++i) free_.push_back(i);
  }
  ~UringBackend() override {
    std::vector<Completion> ignored;
    while (in_flight() > 0) collect(true, &ignored);
    io_uring_queue_exit(&ring_);
  }

  void submit(const std::vector<Read>& reads) override {
    waiting_.insert(waiting_.end(), reads.begin(), reads.end());
    start_waiting();
  }

  void collect(bool block, std::vector<Completion>* done) override {
    const size_t before = done->size();
    while (true) {
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) finish(cqe, done);
      start_waiting();
      if (!block || done->size() > before || in_flight() == 0) return;
      wait();
    }
  }

  size_t in_flight() const override { return waiting_.size() + slots_.size() - free_.size(); }

 private:
  // EINTR and the like: look again. What never ends otherwise is a ring that is broken, with buffers that the kernel may
  // still write to: no slot can be trusted any more.
  void wait() {
    const int result = io_uring_submit_and_wait(&ring_, 1);
    n_failed_ = result < 0 ? n_failed_ + 1 : 0;
    if (n_failed_ < kMostFailedWaits) return;
    GUANACO_LOG("error: waiting for reads fails: %s; try --io threads", std::strerror(-result));
    std::abort();
  }

  void start_waiting() {
    bool queued = false;
    while (!waiting_.empty() && !free_.empty()) {
      const uint32_t index = free_.back();
      slots_[index] = Pending{waiting_.front()};
      if (!queue(index)) break;
      free_.pop_back();
      waiting_.pop_front();
      queued = true;
    }
    if (queued) io_uring_submit(&ring_);
  }

  bool queue(uint32_t index) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    const Pending& pending = slots_[index];
    io_uring_prep_read(sqe, pending.read.fd, static_cast<char*>(pending.read.destination) + pending.got,
                       static_cast<unsigned>(pending.read.nbytes - pending.got), pending.read.offset + pending.got);
    io_uring_sqe_set_data64(sqe, index);
    return true;
  }

  void finish(io_uring_cqe* cqe, std::vector<Completion>* done) {
    const uint32_t index = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    Pending& pending = slots_[index];
    int error = 0;
    if (result == -EINTR || result == -EAGAIN) {
      if (requeue(index)) return;
      error = -result;
    } else if (result < 0) {
      error = -result;
    } else {
      const uint64_t reached = pending.got + static_cast<uint64_t>(result);
      if (reached < pending.read.required) {
        error = ENODATA;  // unless something new came
        if (reached > pending.furthest) {
          pending.furthest = reached;
          // A direct read must go on from an aligned place; the tail is read again.
          pending.got = page_floor(reached);
          if (requeue(index)) return;
          error = EAGAIN;
        }
      }
    }
    done->push_back({pending.read.tag, error});
    free_.push_back(index);
  }

  bool requeue(uint32_t index) {
    if (!queue(index)) return false;
    io_uring_submit(&ring_);
    return true;
  }

  io_uring ring_;
  std::vector<Pending> slots_;
  std::vector<uint32_t> free_;
  std::deque<Read> waiting_;
  uint32_t n_failed_ = 0;  // waits, one after another
};

}  // namespace

namespace {

// A finished read need not interrupt the thread that computes: it is taken when somebody looks (Linux 5.19 on).
bool init_ring(uint32_t depth, io_uring* ring) {
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
  if (io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG) == 0) return true;
#endif
  return io_uring_queue_init(depth, ring, 0) == 0;
}

}  // namespace

std::unique_ptr<ReadBackend> make_uring_backend(uint32_t depth) {
  io_uring ring;
  if (!init_ring(depth, &ring)) return nullptr;
  // Some filters allow the ring and refuse to enter it: waiting would then never end.
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  io_uring_cqe* cqe = nullptr;
  if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_peek_cqe(&ring, &cqe) != 0) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  io_uring_cqe_seen(&ring, cqe);
  return std::make_unique<UringBackend>(ring, depth);
}

}  // namespace guanaco
