#define _GNU_SOURCE
#include "cuda.h"
#include "processes.h"

#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context contexts[FM_MAX_GPUS];
static __thread struct context *stack[32];
static __thread int depth;

void fm_contexts_reset(void)
{
    memset(contexts, 0, sizeof contexts);
    depth = 0;
}

void fm_context_fail(struct context *context, CUresult error)
{
    __sync_bool_compare_and_swap(&context->sticky, CUDA_SUCCESS, error);
}

CUresult fm_context_health(struct context *context)
{
    struct fm_hardware hardware;
    if (context->sticky)
        return context->sticky;
    fm_hardware_read(&hardware);
    const struct fm_gpu *gpu = fm_gpu_by_number(&hardware, context->gpu_number);
    if (!gpu || gpu->lost)
        fm_context_fail(context, CUDA_ERROR_UNKNOWN);
    else if (gpu->cuda_error)
        fm_context_fail(context, gpu->cuda_error);
    else if (gpu->ecc_uncorrected > context->ecc_baseline)
        fm_context_fail(context, CUDA_ERROR_ECC_UNCORRECTABLE);
    return context->sticky;
}

CUresult fm_enter(struct context **context)
{
    *context = NULL;
    CUresult result = fm_ready();
    if (result)
        return result;
    *context = depth ? stack[depth - 1] : NULL;
    if (!*context || !(*context)->retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    return fm_context_health(*context);
}

FM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    struct fm_gpu gpu;
    struct fm_hardware hardware;
    CUresult result = fm_gpu_of(device, &gpu);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *context = &contexts[device];
    pthread_mutex_lock(&lock);
    if (!context->retained) {
        if (gpu.lost || gpu.cuda_error) {
            pthread_mutex_unlock(&lock);
            return gpu.cuda_error ? gpu.cuda_error : CUDA_ERROR_UNKNOWN;
        }
        memset(context, 0, sizeof *context);
        context->gpu_number = gpu.number;
        context->device = device;
        context->ecc_baseline = gpu.ecc_uncorrected;
        pthread_mutex_init(&context->lock, NULL);
        fm_hardware_read(&hardware);
        context->registered = fm_process_register(&hardware, gpu.number);
        context->null_stream = fm_stream_new(context, 1);
        if (!context->null_stream)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        result = fm_context_health(context);
        context->retained += !result;
    }
    pthread_mutex_unlock(&lock);
    if (!result)
        *out = context;
    return result;
}

FM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct fm_gpu gpu;
    CUresult result = fm_gpu_of(device, &gpu);
    if (result && result != CUDA_ERROR_UNKNOWN)
        return result;
    struct context *context = &contexts[device];
    pthread_mutex_lock(&lock);
    if (!context->retained)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--context->retained == 0) {
        fm_context_free_all(context);
        if (context->registered >= 0)
            close(context->registered);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

FM_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

FM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    struct fm_gpu gpu;
    CUresult result = fm_gpu_of(device, &gpu);
    if (result)
        return result;
    if (flags)
        *flags = 0;
    if (active)
        *active = contexts[device].retained > 0;
    return CUDA_SUCCESS;
}

/* Private door for the NCCL stand-in: is the context healthy, and are these bytes allocated in it? */
FM_EXPORT CUresult fmcuda_check(CUcontext context, CUdeviceptr address, size_t bytes)
{
    CUresult result = fm_context_health(context);
    if (!result && !fm_range_valid(context, address, bytes)) {
        fm_context_fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return result;
}

static CUresult known_context(CUcontext context)
{
    for (int i = 0; i < fm_device_count(); i++)
        if (context == &contexts[i])
            return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_CONTEXT;
}

FM_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!context) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (known_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    depth += !depth;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!context || known_context(context) || depth == (int)(sizeof stack / sizeof *stack))
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuCtxSynchronize(void)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    fm_context_drain(context);
    return fm_context_health(context);
}
