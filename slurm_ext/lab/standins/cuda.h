/* Inside of the libcuda stand-in: contexts, streams, events, kernels. Numbers are those of the public cuda.h. */
#ifndef FM_CUDA_H
#define FM_CUDA_H

#include "hardware.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};

struct allocation {
    uint64_t start;
    size_t size, mapped;
    struct allocation *next;
};

/* The primary context of one device; there are no others. */
struct context {
    int gpu_number;
    int device; /* ordinal within this process */
    int registered; /* descriptor that shows this process to nvidia-smi */
    int retained;
    CUresult sticky; /* once set, every call says it, as a real context does after a fatal error */
    long long ecc_baseline;
    pthread_mutex_t lock; /* of what follows */
    struct allocation *allocations;
    size_t used;
    struct stream *null_stream;
    struct stream *streams; /* blocking ones, for the order of the null stream */
};

typedef void (*stream_work)(void *argument);

/* cuda_device.c */
CUresult fm_ready(void); /* cuInit was called in this very process */
const struct fm_gpu *fm_gpu_by_number(const struct fm_hardware *hardware, int number);
int fm_device_count(void);
CUresult fm_gpu_of(CUdevice device, struct fm_gpu *gpu); /* present state of a device of this process */

/* cuda_context.c */
void fm_contexts_reset(void);
CUresult fm_enter(struct context **context);        /* initialised, a current context, healthy */
CUresult fm_context_health(struct context *context); /* its sticky error, after a look at the hardware */
void fm_context_fail(struct context *context, CUresult error);

/* cuda_stream.c */
CUresult fm_stream_resolve(struct context *context, CUstream handle, struct stream **stream);
CUresult fm_stream_push(struct stream *stream, stream_work work, void *argument);
CUresult fm_stream_push_mark(struct stream *stream, stream_work work, void *argument); /* short work, no waiting */
void fm_stream_order(struct context *context, struct stream *stream); /* null stream against blocking ones */
void fm_context_drain_default(struct context *context); /* wait for the null stream and all blocking streams */
void fm_context_drain(struct context *context);         /* wait for every stream */
struct stream *fm_stream_new(struct context *context, int nonblocking);

/* cuda_heap.c */
void *fm_heap_take(size_t size); /* of whole pages, which are zeros; NULL where there is no room */
void fm_heap_give(void *memory);

/* cuda_memory.c */
int fm_range_valid(struct context *context, uint64_t address, uint64_t size);
void fm_context_free_all(struct context *context);

/* cuda_kernels.c: native versions of the kernels in KERNELS.md */
struct native_kernel {
    const char *name;
    int parameters;
    unsigned char sizes[5];
    CUresult (*check)(void *const values[]); /* what can be refused before the launch */
    CUresult (*run)(struct context *context, const uint64_t values[]);
};
const struct native_kernel *fm_native_kernel(const char *name);

#endif
