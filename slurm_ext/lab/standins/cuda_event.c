/* Events are marks in a stream's queue; recording again makes a new generation. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <time.h>

#define EVENT_MAGIC 0x6576656e74212121ULL

struct event {
    uint64_t magic;
    int references, timing;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* generations */
    struct timespec when;
};

static void event_drop(struct event *event)
{
    if (__sync_sub_and_fetch(&event->references, 1))
        return;
    event->magic = 0;
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
    free(event);
}

static CUresult event_enter(CUevent event, struct context **context)
{
    CUresult result = fm_enter(context);
    if (!result && (!event || event->magic != EVENT_MAGIC))
        result = CUDA_ERROR_INVALID_HANDLE;
    return result;
}

FM_EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    event->references = 1;
    event->timing = !(flags & 2); /* CU_EVENT_DISABLE_TIMING */
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    *out = event;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    struct context *context;
    CUresult result = event_enter(event, &context);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    if (event && event->magic == EVENT_MAGIC)
        event_drop(event);
    return result;
}

struct recording {
    struct event *event;
    uint64_t generation;
};

static void reach(void *argument)
{
    struct recording *recording = argument;
    struct event *event = recording->event;
    pthread_mutex_lock(&event->lock);
    if (recording->generation > event->reached) {
        event->reached = recording->generation;
        clock_gettime(CLOCK_MONOTONIC, &event->when);
    }
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
    event_drop(event);
    free(recording);
}

static void await(void *argument)
{
    struct recording *recording = argument;
    struct event *event = recording->event;
    pthread_mutex_lock(&event->lock);
    while (event->reached < recording->generation)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    event_drop(event);
    free(recording);
}

static CUresult push_event(CUevent event, CUstream handle, stream_work work, int record)
{
    struct context *context;
    struct stream *stream;
    CUresult result = event_enter(event, &context);
    if (!result)
        result = fm_stream_resolve(context, handle, &stream);
    if (result)
        return result;
    struct recording *recording = malloc(sizeof *recording);
    if (!recording)
        return CUDA_ERROR_OUT_OF_MEMORY;
    __sync_add_and_fetch(&event->references, 1);
    pthread_mutex_lock(&event->lock);
    event->recorded += (uint64_t)record;
    *recording = (struct recording){event, event->recorded};
    pthread_mutex_unlock(&event->lock);
    fm_stream_order(context, stream);
    result = record ? fm_stream_push_mark(stream, work, recording) : fm_stream_push(stream, work, recording);
    if (result) {
        event_drop(event);
        free(recording);
    }
    return result;
}

FM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return push_event(event, stream, reach, 1);
}

FM_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return push_event(event, stream, await, 0);
}

FM_EXPORT CUresult cuEventQuery(CUevent event)
{
    struct context *context;
    CUresult result = event_enter(event, &context);
    if (result)
        return result;
    pthread_mutex_lock(&event->lock);
    result = event->reached >= event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&event->lock);
    return result;
}

FM_EXPORT CUresult cuEventSynchronize(CUevent event)
{
    struct context *context;
    CUresult result = event_enter(event, &context);
    if (result)
        return result;
    pthread_mutex_lock(&event->lock);
    while (event->reached < event->recorded)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    return fm_context_health(context);
}

static CUresult reached_at(CUevent event, struct timespec *when)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&event->lock);
    if (!event->timing || !event->recorded)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (event->reached < event->recorded)
        result = CUDA_ERROR_NOT_READY;
    *when = event->when;
    pthread_mutex_unlock(&event->lock);
    return result;
}

FM_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    struct context *context;
    CUresult result = event_enter(start, &context);
    if (!result)
        result = event_enter(end, &context);
    if (result)
        return result;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    struct timespec from, to;
    result = reached_at(start, &from);
    if (!result)
        result = reached_at(end, &to);
    if (!result)
        *milliseconds = (float)((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6);
    return result;
}
