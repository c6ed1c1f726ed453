// The CUDA driver and torch's current stream, looked up at run time: nothing here links CUDA, so the extension builds
// and imports on machines that have none.
//
//   In        libcuda.so.1, and a torch that was built for CUDA, if there are any in this process
//   Out       the driver's functions; streams as torch has them
//   Promises  driver() is null where CUDA cannot be used, and why_no_driver() says why; a failing call throws
//             c10::Error with the driver's name for the error
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace c10 {
struct Allocator;
}

namespace flashover::run::cuda {

// The driver's handles are opaque pointers; these are its types under other names (no header of CUDA's is needed).
using Context = void*;
using CuModule = void*;
using Function = void*;
using Stream = void*;
using Graph = void*;
using GraphExec = void*;
using Node = void*;
using DevicePointer = unsigned long long;

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function;
  unsigned grid[3], block[3], shared;
  void** params;
  void** extra;
  void* kernel;
  Context context;
};

struct EdgeData {  // CUgraphEdgeData
  unsigned char from_port = 0, to_port = 0, type = 0, reserved[5] = {};
};

struct Driver {
  int (*error_name)(int, const char**);
  int (*device_get)(int*, int);
  int (*device_count)(int*);
  int (*device_attribute)(int*, int attribute, int device);
  int (*total_memory)(size_t*, int device);
  int (*primary_context)(Context*, int device);
  int (*current_context)(Context*);
  int (*set_current_context)(Context);
  int (*module_load)(CuModule*, const void* image);
  int (*module_function)(Function*, CuModule, const char* name);
  int (*function_set)(Function, int attribute, int value);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, Stream,
                void** params, void** extra);
  int (*copy)(DevicePointer to, DevicePointer from, size_t bytes, Stream);
  int (*copy_in)(DevicePointer to, const void* from, size_t bytes, Stream);
  int (*is_capturing)(Stream, int* status);
  int (*capture_info)(Stream, int* status, unsigned long long* id, Graph*, const Node** nodes, const void** edges,
                      size_t* count);
  int (*exchange_capture_mode)(int*);
  int (*graph_launch)(GraphExec, Stream);
  int (*graph_create)(Graph*, unsigned flags);
  int (*graph_destroy)(Graph);
  int (*add_kernel)(Node*, Graph, const Node* after, size_t count, const KernelNodeParams*);
  int (*add_dependencies)(Graph, const Node* from, const Node* to, const EdgeData*, size_t count);
  int (*instantiate)(GraphExec*, Graph, unsigned long long flags);
  int (*exec_destroy)(GraphExec);
  int (*exec_set_kernel)(GraphExec, Node, const KernelNodeParams*);
};
const Driver* driver();
std::string why_no_driver();

// Throws c10::Error unless status is 0.
void check(int status, const char* what);

// torch's current stream on that device.
Stream current_stream(int device);

// While it lives this thread may make calls that would end what it records, if it records (destroying a graph does).
class Relaxed {
 public:
  Relaxed() { driver()->exchange_capture_mode(&mode_); }
  ~Relaxed() { driver()->exchange_capture_mode(&mode_); }
  Relaxed(const Relaxed&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

// Makes the context that torch uses on `device` current on this thread, if none is (a thread that has not used CUDA
// yet).
void enter_context(int device);

// torch's caching allocator. What it gives belongs to the current stream: freed memory is reused by later work of that
// stream only, so a call may free its arena while its kernels still run.
c10::Allocator* allocator();

// The properties of a device that kernels depend on. Needs no context. Throws Declined when there is no such device.
struct DeviceFacts {
  int capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int shared_bytes = 0;  // that a block may ask for
  int l2_bytes = 0;
  int threads = 0;  // of a multiprocessor
};
DeviceFacts facts(int device);
int device_count();                // 0 where there is no driver
int64_t memory_bytes(int device);  // all of it

}  // namespace flashover::run::cuda
