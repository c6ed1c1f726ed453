// Programs packaged by flashover.package, run without Python: a small C ABI (C99).
//
//   In        a package's file; tensors: memory of the caller's, with sizes
//   Out       result tensors, which own their memory
//   Promises  functions that may fail return 0 when they did not, and else flashover_last_error() says what happened;
//             a package may be called from several threads at once; numbers and names here keep their meaning
//   Declines  what aot/package.h declines. A package is machine code that this process runs: load what you trust
#ifndef FLASHOVER_H
#define FLASHOVER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHOVER_ABI 1
#define FLASHOVER_API __attribute__((visibility("default")))

typedef enum flashover_dtype {
  FLASHOVER_U8 = 0,
  FLASHOVER_I8 = 1,
  FLASHOVER_I16 = 2,
  FLASHOVER_I32 = 3,
  FLASHOVER_I64 = 4,
  FLASHOVER_F16 = 5,
  FLASHOVER_F32 = 6,
  FLASHOVER_F64 = 7,
  FLASHOVER_C64 = 9,   /* two f32 */
  FLASHOVER_C128 = 10, /* two f64 */
  FLASHOVER_BOOL = 11,
  FLASHOVER_BF16 = 15
} flashover_dtype;

typedef enum flashover_device { FLASHOVER_CPU = 0, FLASHOVER_CUDA = 1 } flashover_device;

/* A tensor: the caller's (owner is null), or one that a call returned (flashover_tensor_free gives it back). */
typedef struct flashover_tensor {
  void* data;           /* of the first element */
  int32_t dtype;        /* flashover_dtype */
  int32_t device;       /* flashover_device */
  int32_t device_index; /* 0 where there is one */
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides; /* in elements; null: row by row, without gaps */
  void* owner;
} flashover_tensor;

typedef struct flashover_package flashover_package;
struct DLManagedTensor; /* of DLPack */

FLASHOVER_API int flashover_abi_version(void); /* FLASHOVER_ABI of the library */
/* Of the last call in this thread that failed; valid until the next one. */
FLASHOVER_API const char* flashover_last_error(void);
FLASHOVER_API void flashover_set_threads(int threads); /* of a call's work, for all packages */

/* verify_weights: 0 leaves out the checksum of the weights' bytes; everything else is always checked. */
FLASHOVER_API int flashover_load(const char* path, int verify_weights, flashover_package** package);
/* The same of a file that the owner of a public key signed (`python -m flashover sign`, ed25519; the signature lies in
 * PATH.sig), which is looked at before anything else. public_key: PEM, or the path of a file with it. The process needs
 * libcrypto (OpenSSL 1.1.1 or later) for it. */
FLASHOVER_API int flashover_load_signed(const char* path, const char* public_key, int verify_weights,
                                        flashover_package** package);
/* The same for a device: FLASHOVER_CPU, or FLASHOVER_CUDA with the number of one. (The functions above take the first
 * CUDA device where the process has one and the package has code for CUDA.) public_key: null for any file. */
FLASHOVER_API int flashover_load_on(const char* path, const char* public_key, int verify_weights, int32_t device,
                                    int32_t device_index, flashover_package** package);
FLASHOVER_API void flashover_free(flashover_package* package); /* when no call runs; results stay */

FLASHOVER_API size_t flashover_entries(const flashover_package* package);
FLASHOVER_API const char* flashover_entry_name(const flashover_package* package, size_t entry);
FLASHOVER_API int flashover_find_entry(const flashover_package* package, const char* name, size_t* entry);

/* Where it runs: a flashover_device, which its tensors are on (the types of its arguments say where one is elsewhere). */
FLASHOVER_API int flashover_entry_device(const flashover_package* package, size_t entry, int32_t* device,
                                         int32_t* device_index);
/* The tensors that an entry takes, in order. Their types are texts: "f32[s0,4]", s0 a size that may change; "any": it
 * does not use it. */
FLASHOVER_API size_t flashover_arguments(const flashover_package* package, size_t entry);
FLASHOVER_API const char* flashover_argument_name(const flashover_package* package, size_t entry, size_t argument);
FLASHOVER_API const char* flashover_argument_type(const flashover_package* package, size_t entry, size_t argument);
/* The leaves of its result. Those that are no tensors (numbers, None) have a text, JSON; for tensors that is null. */
FLASHOVER_API size_t flashover_results(const flashover_package* package, size_t entry);
FLASHOVER_API const char* flashover_result_value(const flashover_package* package, size_t entry, size_t result);

/* Calls an entry. arguments: borrowed until it returns. results: room for flashover_results() of them; those that are
 * no tensors have rank -1. A result never lies in the memory of an argument. */
FLASHOVER_API int flashover_run(const flashover_package* package, size_t entry, const flashover_tensor* arguments,
                                size_t argument_count, flashover_tensor* results, size_t result_count);
FLASHOVER_API void flashover_tensor_free(flashover_tensor* tensor);
/* A copy of a tensor on a device, which is there when this returns. */
FLASHOVER_API int flashover_tensor_copy(const flashover_tensor* tensor, int32_t device, int32_t device_index,
                                        flashover_tensor* copy);
/* Waits for all work on the device that an entry runs on. Calls return when they have given a CUDA device its work. */
FLASHOVER_API int flashover_synchronize(const flashover_package* package, size_t entry);
/* The same by DLPack: arguments are borrowed, results are the caller's (null where they are no tensors). */
FLASHOVER_API int flashover_run_dlpack(const flashover_package* package, size_t entry,
                                       struct DLManagedTensor* const* arguments, size_t argument_count,
                                       struct DLManagedTensor** results, size_t result_count);

FLASHOVER_API size_t flashover_weights(const flashover_package* package);
FLASHOVER_API const char* flashover_weight_name(const flashover_package* package, size_t weight);
/* Copies other values in, for all calls that begin from now on: each call sees all of them or none. */
FLASHOVER_API int flashover_exchange(flashover_package* package, const char* const* names,
                                     const flashover_tensor* values, size_t count);

#ifdef __cplusplus
}
#endif
#endif
