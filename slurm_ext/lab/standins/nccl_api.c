/* The calls that enqueue collectives. The driver stand-in runs them on the stream's thread, in the stream's order. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <string.h>

struct pending {
    ncclComm_t comm;
    uint64_t ticket;
    struct collective collective;
    size_t send_bytes, receive_bytes;
};

static ncclResult_t check_device(struct pending *pending)
{
    const driver_t *driver = fm_driver();
    int error = driver->check(pending->comm->context, (uint64_t)pending->collective.send, pending->send_bytes);
    if (!error)
        error = driver->check(pending->comm->context, (uint64_t)pending->collective.receive, pending->receive_bytes);
    if (error)
        fm_warn(pending->comm->device, "enqueue.cc:1402", "Cuda failure %d in a collective", error);
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

/* A failed collective holds its stream until the abort, as a kernel that waits for a dead peer does. */
static void work(void *argument)
{
    struct pending *pending = argument;
    ncclComm_t comm = pending->comm;
    ncclResult_t result = fm_wait_turn(comm, pending->ticket);
    if (!result)
        result = check_device(pending);
    if (!result)
        result = fm_run(comm, &pending->collective);
    if (result && !comm->aborted) {
        fm_comm_state(comm, result);
        fm_until_aborted(comm);
    }
    fm_end_turn(comm);
    free(pending);
}

static ncclResult_t enqueue(ncclComm_t comm, void *stream, struct collective collective, size_t send_blocks,
                            size_t receive_blocks, const char *caller)
{
    ncclResult_t result = fm_comm_ready(comm, caller);
    size_t bytes = collective.count * fm_type_size(collective.type);
    if (result)
        return result;
    if (!fm_type_size(collective.type) || collective.operation < 0 || collective.operation > ncclMin) {
        fm_warn(comm->device, "enqueue.cc:1288", "%s : type %d or operation %d is unknown to this stand-in", caller,
                collective.type, collective.operation);
        return ncclInvalidArgument;
    }
    if (collective.root < 0 || collective.root >= comm->nranks) {
        fm_warn(comm->device, "argcheck.cc:67", "%s : invalid root %d (root should be in the 0..%d range)", caller,
                collective.root, comm->nranks);
        return ncclInvalidArgument;
    }
    if (collective.count && (!collective.receive || (!collective.send && send_blocks))) {
        fm_warn(comm->device, "argcheck.cc:44", "%s : NULL buffer", caller);
        return ncclInvalidArgument;
    }
    struct pending *pending = malloc(sizeof *pending);
    if (!pending)
        return ncclSystemError;
    *pending = (struct pending){comm, 0, collective, bytes * send_blocks, bytes * receive_blocks};
    const driver_t *driver = fm_driver();
    void *before = NULL;
    driver->get_current(&before);
    driver->set_current(comm->context);
    pthread_mutex_lock(&comm->lock);
    pending->ticket = comm->issued++;
    int error = driver->enqueue(stream, work, pending);
    if (error)
        comm->issued--;
    pthread_mutex_unlock(&comm->lock);
    if (before)
        driver->set_current(before);
    if (error) {
        fm_warn(comm->device, "enqueue.cc:1511", "Cuda failure %d at launch", error);
        free(pending);
        return ncclUnhandledCudaError;
    }
    result = fm_start_connecting(comm);
    if (fm_group_depth() && (!result || result == ncclInProgress))
        return fm_group_join(comm, 0);
    return result || !comm->blocking ? result : fm_await_connected(comm);
}

FM_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation,
                                     ncclComm_t comm, void *stream)
{
    struct collective collective = {ALL_REDUCE, send, receive, count, type, operation, 0};
    return enqueue(comm, stream, collective, 1, 1, "AllReduce");
}

FM_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, int type, ncclComm_t comm,
                                     void *stream)
{
    struct collective collective = {ALL_GATHER, send, receive, count, type, ncclSum, 0};
    return enqueue(comm, stream, collective, 1, fm_comm_valid(comm) ? (size_t)comm->nranks : 1, "AllGather");
}

FM_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation,
                                         ncclComm_t comm, void *stream)
{
    struct collective collective = {REDUCE_SCATTER, send, receive, count, type, operation, 0};
    return enqueue(comm, stream, collective, fm_comm_valid(comm) ? (size_t)comm->nranks : 1, 1, "ReduceScatter");
}

FM_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                                     ncclComm_t comm, void *stream)
{
    struct collective collective = {BROADCAST, send, receive, count, type, ncclSum, root};
    int sending = fm_comm_valid(comm) && comm->rank == root; /* elsewhere the send buffer is not looked at */
    return enqueue(comm, stream, collective, (size_t)sending, 1, "Broadcast");
}

FM_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, int type, int root, ncclComm_t comm, void *stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
