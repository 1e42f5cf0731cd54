/* Streams are queues with a thread each: work runs in the order it was put there, events are marks in the queue.
 * The NCCL stand-in puts its collectives there through fmcuda_stream_enqueue. */
#define _GNU_SOURCE
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAM_MAGIC 0x73747265616d2121ULL

struct operation {
    stream_work work;
    void *argument;
    int is_mark; /* done and counted as done in one step, under the stream's lock */
    struct operation *next;
};

struct stream {
    uint64_t magic;
    struct context *context;
    int nonblocking, dying, references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct operation *first, *last;
    uint64_t pushed, done;
    int running; /* its thread exists */
    struct stream *next; /* in context->streams */
};

static void stream_drop(struct stream *stream)
{
    if (__sync_sub_and_fetch(&stream->references, 1))
        return;
    stream->magic = 0;
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static void *stream_thread(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->dying)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct operation *operation = stream->first;
        if (!operation)
            break;
        stream->first = operation->next;
        if (!stream->first)
            stream->last = NULL;
        if (operation->is_mark) {
            operation->work(operation->argument);
        } else {
            pthread_mutex_unlock(&stream->lock);
            operation->work(operation->argument);
            pthread_mutex_lock(&stream->lock);
        }
        free(operation);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    stream_drop(stream);
    return NULL;
}

struct stream *fm_stream_new(struct context *context, int nonblocking)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->magic = STREAM_MAGIC;
    stream->context = context;
    stream->nonblocking = nonblocking;
    stream->references = 1;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    return stream;
}

static CUresult push(struct stream *stream, stream_work work, void *argument, int is_mark)
{
    struct operation *operation = malloc(sizeof *operation);
    if (!operation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *operation = (struct operation){work, argument, is_mark, NULL};
    pthread_mutex_lock(&stream->lock);
    if (!stream->running) {
        pthread_t thread;
        __sync_add_and_fetch(&stream->references, 1);
        if (pthread_create(&thread, NULL, stream_thread, stream)) {
            __sync_sub_and_fetch(&stream->references, 1);
            pthread_mutex_unlock(&stream->lock);
            free(operation);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        pthread_detach(thread);
        stream->running = 1;
    }
    if (stream->last)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
    stream->pushed++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

CUresult fm_stream_push(struct stream *stream, stream_work work, void *argument)
{
    return push(stream, work, argument, 0);
}

/* As a driver has it: who saw the last event happen finds the stream idle. Work that waits must not be pushed here. */
CUresult fm_stream_push_mark(struct stream *stream, stream_work work, void *argument)
{
    return push(stream, work, argument, 1);
}

static void stream_wait(struct stream *stream, uint64_t mark)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->done < mark)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static uint64_t stream_mark(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t mark = stream->pushed;
    pthread_mutex_unlock(&stream->lock);
    return mark;
}

struct awaited {
    struct stream *stream;
    uint64_t mark;
};

static void wait_for_stream(void *argument)
{
    struct awaited *awaited = argument;
    stream_wait(awaited->stream, awaited->mark);
    stream_drop(awaited->stream);
    free(awaited);
}

static void push_wait(struct stream *stream, struct stream *other)
{
    uint64_t mark = stream_mark(other);
    struct awaited *awaited = mark ? malloc(sizeof *awaited) : NULL;
    if (!awaited)
        return;
    __sync_add_and_fetch(&other->references, 1);
    *awaited = (struct awaited){other, mark};
    if (fm_stream_push(stream, wait_for_stream, awaited)) {
        stream_drop(other);
        free(awaited);
    }
}

/* The legacy null stream waits for all blocking streams, and they for it. */
void fm_stream_order(struct context *context, struct stream *stream)
{
    if (stream == context->null_stream) {
        pthread_mutex_lock(&context->lock);
        for (struct stream *other = context->streams; other; other = other->next)
            if (!other->nonblocking)
                push_wait(stream, other);
        pthread_mutex_unlock(&context->lock);
    } else if (!stream->nonblocking) {
        push_wait(stream, context->null_stream);
    }
}

static void drain(struct context *context, int all)
{
    struct awaited waiting[256];
    int count = 0;
    pthread_mutex_lock(&context->lock);
    for (struct stream *stream = context->streams; stream && count < 256; stream = stream->next)
        if (all || !stream->nonblocking) {
            __sync_add_and_fetch(&stream->references, 1);
            waiting[count++] = (struct awaited){stream, stream_mark(stream)};
        }
    pthread_mutex_unlock(&context->lock);
    stream_wait(context->null_stream, stream_mark(context->null_stream));
    while (count) {
        count--;
        stream_wait(waiting[count].stream, waiting[count].mark);
        stream_drop(waiting[count].stream);
    }
}

void fm_context_drain_default(struct context *context)
{
    drain(context, 0);
}

void fm_context_drain(struct context *context)
{
    drain(context, 1);
}

CUresult fm_stream_resolve(struct context *context, CUstream handle, struct stream **stream)
{
    if ((uintptr_t)handle <= 2) { /* 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */
        *stream = context->null_stream;
        return CUDA_SUCCESS;
    }
    if (handle->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *stream = handle;
    return CUDA_SUCCESS;
}

/* Private door for the NCCL stand-in: run work(argument) on the stream's thread, in its order. */
FM_EXPORT CUresult fmcuda_stream_enqueue(CUstream handle, stream_work work, void *argument)
{
    struct context *context;
    struct stream *stream;
    CUresult result = fm_enter(&context);
    if (!result)
        result = fm_stream_resolve(context, handle, &stream);
    if (result)
        return result;
    fm_stream_order(context, stream);
    return fm_stream_push(stream, work, argument);
}

FM_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = fm_stream_new(context, (int)flags);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&context->lock);
    stream->next = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&context->lock);
    *out = stream;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(out, flags);
}

FM_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (!context)
        return result;
    if (!stream || (uintptr_t)stream <= 2 || stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&context->lock);
    for (struct stream **at = &context->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    pthread_mutex_unlock(&context->lock);
    pthread_mutex_lock(&stream->lock);
    stream->dying = 1; /* its thread ends once the queue is empty, as cuStreamDestroy promises */
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    stream_drop(stream);
    return result;
}

FM_EXPORT CUresult cuStreamQuery(CUstream handle)
{
    struct context *context;
    struct stream *stream;
    CUresult result = fm_enter(&context);
    if (!result)
        result = fm_stream_resolve(context, handle, &stream);
    if (result)
        return result;
    pthread_mutex_lock(&stream->lock);
    result = stream->done == stream->pushed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    return result;
}

FM_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    struct context *context;
    struct stream *stream;
    CUresult result = fm_enter(&context);
    if (!result)
        result = fm_stream_resolve(context, handle, &stream);
    if (result)
        return result;
    stream_wait(stream, stream_mark(stream));
    return fm_context_health(context);
}
