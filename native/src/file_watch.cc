#include "file_watch.h"

#include <sys/stat.h>

namespace guanaco {

namespace {

constexpr uint64_t kNamesPeriodNs = 1000000000;

}  // namespace

FileWatch::FileWatch(const LoadPlan& plan, const OpenFiles& files)
    : plan_(plan), files_(files), replaced_(plan.files.size(), false) {}

bool FileWatch::check(uint64_t now_ns, std::string* error, std::string* warning) {
  for (size_t i = 0; i < files_.fds.size(); ++i) {
    std::string reason;
    if (same_file(plan_.files[i], files_.fds[i], &reason)) continue;
    *error = "the model file " + plan_.files[i].path + " was cut short or written to while it is loaded; load the " +
             "model again";
    return false;
  }
  if (now_ns < next_names_ns_) return true;
  next_names_ns_ = now_ns + kNamesPeriodNs;
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    if (replaced_[i] || !was_replaced(plan_.files[i])) continue;
    replaced_[i] = true;
    *warning = "the model file " + plan_.files[i].path + " was replaced or removed while it is loaded; answers still " +
               "come from the old one: load the model again to use what is there now";
    break;
  }
  return true;
}

bool FileWatch::was_replaced(const PlanFile& file) const {
  struct stat info {};
  return stat(file.path.c_str(), &info) != 0 || info.st_dev != file.device || info.st_ino != file.inode;
}

}  // namespace guanaco
