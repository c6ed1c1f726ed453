// C functions that compute from plain data alone: see plain_data.cpp.
#pragma once
#include "frame/interpret/native.h"

namespace flashover::frame {

PyObject* do_plain(const NativeCall& c);   // any function of plain data
PyObject* do_pickle(const NativeCall& c);  // pickle.dumps()
PyObject* do_dir(const NativeCall& c);

}  // namespace flashover::frame
