/* Device memory is host memory; every address and length is checked against what was allocated in the context. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

static struct allocation *find(struct context *context, uint64_t address)
{
    for (struct allocation *at = context->allocations; at; at = at->next)
        if (address >= at->start && address < at->start + at->size)
            return at;
    return NULL;
}

int fm_range_valid(struct context *context, uint64_t address, uint64_t size)
{
    pthread_mutex_lock(&context->lock);
    const struct allocation *found = find(context, address);
    int valid = !size || (found && size <= found->start + found->size - address);
    pthread_mutex_unlock(&context->lock);
    return valid;
}

void fm_context_free_all(struct context *context)
{
    pthread_mutex_lock(&context->lock);
    while (context->allocations) {
        struct allocation *gone = context->allocations;
        context->allocations = gone->next;
        fm_heap_give((void *)gone->start);
        free(gone);
    }
    context->used = 0;
    pthread_mutex_unlock(&context->lock);
}

static size_t capacity(const struct context *context)
{
    struct fm_hardware hardware;
    fm_hardware_read(&hardware);
    const struct fm_gpu *gpu = fm_gpu_by_number(&hardware, context->gpu_number);
    long long mib = hardware.memory_mib - (gpu ? gpu->memory_used_mib : 0);
    return mib > 0 ? (size_t)mib << 20 : 0;
}

FM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = calloc(1, sizeof *allocation);
    size_t mapped = (bytes + 4095) & ~(size_t)4095, most = capacity(context);
    pthread_mutex_lock(&context->lock);
    void *memory = NULL;
    if (allocation && mapped >= bytes && context->used <= most && mapped <= most - context->used)
        memory = fm_heap_take(mapped);
    if (!memory) {
        pthread_mutex_unlock(&context->lock);
        free(allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *allocation = (struct allocation){(uint64_t)memory, bytes, mapped, context->allocations};
    context->allocations = allocation;
    context->used += mapped;
    *out = allocation->start;
    pthread_mutex_unlock(&context->lock);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (!context || result)
        return result;
    fm_context_drain(context); /* as the driver does: nothing on the device may still use it */
    pthread_mutex_lock(&context->lock);
    result = CUDA_ERROR_INVALID_VALUE;
    for (struct allocation **at = &context->allocations; *at; at = &(*at)->next)
        if ((*at)->start == address) {
            struct allocation *gone = *at;
            *at = gone->next;
            context->used -= gone->mapped;
            fm_heap_give((void *)gone->start);
            free(gone);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&context->lock);
    return result;
}

FM_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    struct context *context;
    struct fm_hardware hardware;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    fm_hardware_read(&hardware);
    size_t usable = capacity(context);
    *total_bytes = (size_t)hardware.memory_mib << 20;
    *free_bytes = usable > context->used ? usable - context->used : 0;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    pthread_mutex_lock(&context->lock);
    const struct allocation *found = find(context, address);
    if (found && base)
        *base = found->start;
    if (found && size)
        *size = found->size;
    pthread_mutex_unlock(&context->lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FM_EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return posix_memalign(out, 4096, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

FM_EXPORT CUresult cuMemFreeHost(void *memory)
{
    free(memory);
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Synchronous copies and sets belong to the null stream: earlier default work first, then done before return. */
static CUresult enter_range(struct context **context, CUdeviceptr address, uint64_t bytes)
{
    CUresult result = fm_enter(context);
    if (!result && !fm_range_valid(*context, address, bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

FM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    struct context *context;
    CUresult result = enter_range(&context, to, bytes);
    if (result)
        return result;
    if (!from && bytes)
        return CUDA_ERROR_INVALID_VALUE;
    fm_context_drain_default(context);
    memcpy((void *)to, from, bytes);
    return fm_context_health(context);
}

FM_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    struct context *context;
    CUresult result = enter_range(&context, from, bytes);
    if (result)
        return result;
    if (!to && bytes)
        return CUDA_ERROR_INVALID_VALUE;
    fm_context_drain_default(context);
    if ((result = fm_context_health(context)))
        return result;
    memcpy(to, (void *)from, bytes);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    struct context *context;
    CUresult result = enter_range(&context, from, bytes);
    if (!result)
        result = enter_range(&context, to, bytes);
    if (result)
        return result;
    fm_context_drain_default(context);
    memmove((void *)to, (void *)from, bytes);
    return fm_context_health(context);
}

struct transfer {
    struct context *context;
    void *to;
    const void *from;
    void *staged; /* freed afterwards */
    size_t bytes;
    uint32_t value;
    int width; /* of a set: 1 or 4; 0: a copy */
};

static void perform(void *argument)
{
    struct transfer *transfer = argument;
    if (!fm_context_health(transfer->context)) {
        if (!transfer->width)
            memmove(transfer->to, transfer->from, transfer->bytes);
        else if (transfer->width == 1)
            memset(transfer->to, (int)transfer->value, transfer->bytes);
        else
            for (size_t i = 0; i < transfer->bytes / 4; i++)
                ((uint32_t *)transfer->to)[i] = transfer->value;
    }
    free(transfer->staged);
    free(transfer);
}

static CUresult push(struct transfer wanted, CUstream handle)
{
    struct stream *stream;
    CUresult result = fm_stream_resolve(wanted.context, handle, &stream);
    struct transfer *transfer = result ? NULL : malloc(sizeof *transfer);
    if (!result && !transfer)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!result) {
        *transfer = wanted;
        fm_stream_order(wanted.context, stream);
        result = fm_stream_push(stream, perform, transfer);
    }
    if (result) {
        free(wanted.staged);
        free(transfer);
    }
    return result;
}

FM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    struct context *context;
    CUresult result = enter_range(&context, to, bytes);
    if (result)
        return result;
    if (!from && bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *staged = malloc(bytes ? bytes : 1); /* the caller may reuse pageable memory at once */
    if (!staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(staged, from, bytes);
    return push((struct transfer){context, (void *)to, staged, staged, bytes, 0, 0}, stream);
}

FM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct context *context;
    CUresult result = enter_range(&context, from, bytes);
    if (result)
        return result;
    if (!to && bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return push((struct transfer){context, to, (void *)from, NULL, bytes, 0, 0}, stream);
}

FM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct context *context;
    CUresult result = enter_range(&context, from, bytes);
    if (!result)
        result = enter_range(&context, to, bytes);
    if (result)
        return result;
    return push((struct transfer){context, (void *)to, (void *)from, NULL, bytes, 0, 0}, stream);
}

static CUresult set(CUdeviceptr to, uint32_t value, size_t count, int width, CUstream stream, int wait)
{
    struct context *context;
    if (count > SIZE_MAX / 4)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = enter_range(&context, to, count * (size_t)width);
    if (result)
        return result;
    if (width == 4 && to % 4)
        return CUDA_ERROR_INVALID_VALUE;
    result = push((struct transfer){context, (void *)to, NULL, NULL, count * (size_t)width, value, width}, stream);
    if (!result && wait) {
        fm_context_drain_default(context);
        result = fm_context_health(context);
    }
    return result;
}

FM_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return set(to, value, count, 1, NULL, 1);
}

FM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return set(to, value, count, 1, stream, 0);
}

FM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    return set(to, value, count, 4, NULL, 1);
}

FM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    return set(to, value, count, 4, stream, 0);
}
