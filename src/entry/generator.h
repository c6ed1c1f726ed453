// Generators that compiled calls hand out go on compiled: each part of their bodies between two yields is a frame of
// its own to `continuations` (frame/resume.h), as it is behind a graph break.
//
// The object stays the real generator, with its frame, its code and its methods; only its class becomes a subclass of
// `generator` that looks the same and sees to it that the frame hook is on while the body runs.
#pragma once
#include <memory>

#include "frame/resume.h"

namespace flashover::entry {

// Whether it is a generator that nothing else holds yet.
bool is_new_generator(PyObject* object);
// `owner` (a new reference is taken) keeps alive what `continuations` refers to.
void keep_compiling(PyObject* generator, PyObject* owner, std::unique_ptr<frame::Continuations> continuations);
bool add_generator_type();

}  // namespace flashover::entry
