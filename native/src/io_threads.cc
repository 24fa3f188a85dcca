// Thread pool of pread: works everywhere. In buffered mode each read's pages leave the page cache at once.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "io.h"

namespace guanaco {

namespace {

int read_fully(const Read& read) {
  uint64_t got = 0, furthest = 0;
  while (true) {
    const ssize_t n = pread(read.fd, static_cast<char*>(read.destination) + got, read.nbytes - got,
                            static_cast<off_t>(read.offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    const uint64_t reached = got + static_cast<uint64_t>(n);
    if (reached >= read.required) return 0;
    if (reached <= furthest) return ENODATA;  // nothing new: the file ends here
    furthest = reached;
    // A direct read must go on from an aligned place; the tail is read again.
    got = page_floor(reached);
  }
}

class ThreadBackend final : public ReadBackend {
 public:
  ThreadBackend(uint32_t n_threads, bool drop_cache) : drop_cache_(drop_cache) {
    // The engine's process handles signals elsewhere: these threads must never take one.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (uint32_t i = 0; i < n_threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // A process limit: fewer threads are slower, none is for the caller to report.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool is_started() const { return !threads_.empty(); }

  ~ThreadBackend() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_workers_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(const std::vector<Read>& reads) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.insert(queue_.end(), reads.begin(), reads.end());
      in_flight_ += reads.size();
    }
    if (reads.size() == 1) {
      wake_workers_.notify_one();
    } else {
      wake_workers_.notify_all();
    }
  }

  void collect(bool block, std::vector<Completion>* done) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (block) wake_owner_.wait(lock, [this] { return !done_.empty() || in_flight_ == 0; });
    in_flight_ -= done_.size();
    done->insert(done->end(), done_.begin(), done_.end());
    done_.clear();
  }

  size_t in_flight() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return in_flight_;
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_workers_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Read read = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const int error = read_fully(read);
      if (drop_cache_) {
        posix_fadvise(read.fd, static_cast<off_t>(page_floor(read.offset)),
                      static_cast<off_t>(page_ceil(read.offset + read.nbytes) - page_floor(read.offset)),
                      POSIX_FADV_DONTNEED);
      }
      lock.lock();
      done_.push_back({read.tag, error});
      wake_owner_.notify_one();
    }
  }

  const bool drop_cache_;
  mutable std::mutex mutex_;
  std::condition_variable wake_workers_, wake_owner_;
  std::deque<Read> queue_;
  std::vector<Completion> done_;
  size_t in_flight_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_thread_backend(uint32_t n_threads, bool drop_cache) {
  auto backend = std::make_unique<ThreadBackend>(n_threads, drop_cache);
  if (!backend->is_started()) return nullptr;
  return backend;
}

}  // namespace guanaco
