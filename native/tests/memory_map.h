// What /proc/self/smaps says about a range of addresses.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct MapEntry {
  uintptr_t begin = 0, end = 0;
  std::string permissions;
  uint64_t inode = 0;
};

inline std::vector<MapEntry> memory_map() {
  std::vector<MapEntry> entries;
  std::ifstream in("/proc/self/maps");
  for (std::string line; std::getline(in, line);) {
    MapEntry entry;
    std::istringstream fields(line);
    char dash = 0;
    std::string offset, device;
    fields >> std::hex >> entry.begin >> dash >> entry.end >> entry.permissions >> offset >> device >> std::dec >>
        entry.inode;
    entries.push_back(entry);
  }
  return entries;
}

// The inode behind every byte of the range, 0 for anonymous memory; -1 when it is mixed or has a hole.
inline int64_t inode_of(const char* at, uint64_t nbytes) {
  uintptr_t next = reinterpret_cast<uintptr_t>(at);
  const uintptr_t end = next + nbytes;
  int64_t inode = -1;
  for (const MapEntry& entry : memory_map()) {
    if (entry.end <= next || entry.begin >= end) continue;
    if (entry.begin > next || (inode >= 0 && inode != static_cast<int64_t>(entry.inode))) return -1;
    inode = static_cast<int64_t>(entry.inode);
    next = entry.end;
  }
  return next >= end ? inode : -1;
}

// Writable now, or ever by way of a shared mapping.
inline std::string permissions_of(const char* at) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(at);
  for (const MapEntry& entry : memory_map()) {
    if (entry.begin <= address && address < entry.end) return entry.permissions;
  }
  return "";
}
