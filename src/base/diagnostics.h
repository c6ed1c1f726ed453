// A line for whoever runs the program, from layers that stand below the log.
//
//   In        a text, from any thread, with or without Python's lock
//   Out       the line, as the log writes it: the entry sets how (entry/log.h), and nobody else writes to stderr
//   Promises  never throws; notices that can wait until the next compilation become warnings instead (notice.h)
//   Declines  while nobody listens nothing is said
#pragma once
#include <string>

namespace flashover {

using Listener = void (*)(const std::string& text) noexcept;
void set_listener(Listener listener);
void say(const std::string& text) noexcept;

}  // namespace flashover
