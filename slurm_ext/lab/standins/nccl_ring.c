/* The collectives: rings over the ranks, data really moved and reduced, in the stream's own thread. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define SCRATCH (256u << 10)
#define PACED_CHUNK (32u << 10)

/* What one run of a collective carries along. */
struct run {
    struct ncclComm *comm;
    int type, operation;
    size_t width; /* bytes of an element */
    int flip;     /* still to flip one bit in what is sent */
    int rate_mbit;
    uint64_t sent, received; /* to and from other nodes */
    struct timespec started;
};

/* How buffers are cut: `blocks` in rank order (gather, scatter), or one buffer into n nearly equal parts. */
struct cut {
    char *buffer;
    size_t count; /* elements in all, or of one block */
    int blocks;
};

static char *segment(const struct run *run, const struct cut *cut, int index, size_t *bytes)
{
    const struct ncclComm *comm = run->comm;
    int n = comm->nranks, at = ((index % n) + n) % n;
    if (cut->blocks) { /* so that after the scatter each rank holds the block of its own rank */
        *bytes = cut->count * run->width;
        return cut->buffer + (size_t)comm->ring[(at - 1 + n) % n] * *bytes;
    }
    size_t base = cut->count / (size_t)n, more = cut->count % (size_t)n, part = (size_t)at;
    *bytes = (base + (part < more)) * run->width;
    return cut->buffer + (part * base + (part < more ? part : more)) * run->width;
}

static void flip_bit(char *element, size_t width)
{
    element[width - 1] = (char)(element[width - 1] ^ 0x40); /* an exponent bit, or a high bit of an integer */
}

/* Sleep where this rank has sent more to other nodes than its rate allows. */
static ncclResult_t pace(struct run *run)
{
    struct timespec now;
    if (!run->rate_mbit || !run->comm->next_remote)
        return ncclSuccess;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - run->started.tv_sec) + (double)(now.tv_nsec - run->started.tv_nsec) / 1e9;
    double due = (double)run->sent * 8 / (run->rate_mbit * 1e6);
    return due - passed > 0.001 ? fm_pause(run->comm, (int)((due - passed) * 1000)) : ncclSuccess;
}

/* Neither direction moved: wait until one can, or an abort. */
static ncclResult_t wait_for_either(struct ncclComm *comm, int can_send, int can_receive)
{
    struct pollfd watched[3] = {{comm->abort_event, POLLIN, 0},
                                {can_send ? comm->next : -1, POLLOUT, 0},
                                {can_receive ? comm->previous : -1, POLLIN, 0}};
    if (poll(watched, 3, -1) < 0 && errno != EINTR)
        return ncclSystemError;
    return comm->aborted ? ncclInternalError : ncclSuccess;
}

struct incoming {
    char *into;
    size_t bytes, got, reduced; /* `reduced` counts bytes taken over from scratch */
    size_t held;                /* bytes in scratch */
    int reduce;
};

static ncclResult_t take(struct run *run, struct incoming *in, int *moved)
{
    struct ncclComm *comm = run->comm;
    size_t left = in->bytes - in->got, room = in->reduce ? SCRATCH - in->held : left;
    char *at = in->reduce ? (char *)comm->scratch + in->held : in->into + in->got;
    ssize_t got = recv(comm->previous, at, left < room ? left : room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return ncclSuccess;
    if (got <= 0)
        return fm_lost_peer(comm, got ? errno : 0);
    *moved = 1;
    in->got += (size_t)got;
    if (comm->previous_remote)
        run->received += (size_t)got;
    if (in->reduce) {
        in->held += (size_t)got;
        size_t whole = in->held / run->width * run->width;
        if (in->got == in->bytes || in->held == SCRATCH || whole > SCRATCH / 2) {
            fm_reduce(in->into + in->reduced, comm->scratch, whole / run->width, run->type, run->operation);
            in->reduced += whole;
            in->held -= whole;
            memmove(comm->scratch, comm->scratch + whole, in->held);
        }
    }
    return ncclSuccess;
}

static ncclResult_t give(struct run *run, const char *from, size_t bytes, size_t *sent, int *moved)
{
    struct ncclComm *comm = run->comm;
    size_t left = bytes - *sent;
    if (run->rate_mbit && comm->next_remote && left > PACED_CHUNK)
        left = PACED_CHUNK;
    ssize_t put = send(comm->next, from + *sent, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && (errno == EAGAIN || errno == EINTR))
        return ncclSuccess;
    if (put < 0)
        return fm_lost_peer(comm, errno);
    *moved = 1;
    *sent += (size_t)put;
    if (comm->next_remote)
        run->sent += (size_t)put;
    return pace(run);
}

/* Send one piece to the next rank while another comes from the previous one. */
static ncclResult_t exchange(struct run *run, char *out, size_t out_bytes, char *in, size_t in_bytes, int reduce)
{
    struct incoming incoming = {in, in_bytes, 0, 0, 0, reduce};
    size_t sent = 0;
    int flipped = run->flip && out_bytes;
    ncclResult_t result = run->comm->aborted ? ncclInternalError : ncclSuccess;
    if (flipped)
        flip_bit(out, run->width);
    while (!result && (sent < out_bytes || incoming.got < in_bytes)) {
        int moved = 0;
        if (sent < out_bytes)
            result = give(run, out, out_bytes, &sent, &moved);
        if (!result && incoming.got < in_bytes)
            result = take(run, &incoming, &moved);
        if (!result && !moved)
            result = wait_for_either(run->comm, sent < out_bytes, incoming.got < in_bytes);
    }
    if (flipped) {
        flip_bit(out, run->width);
        run->flip = 0;
    }
    return result;
}

static ncclResult_t scatter(struct run *run, const struct cut *cut)
{
    int n = run->comm->nranks, p = run->comm->position;
    ncclResult_t result = ncclSuccess;
    for (int step = 0; step < n - 1 && !result; step++) {
        size_t out_bytes, in_bytes;
        char *out = segment(run, cut, p - step, &out_bytes), *in = segment(run, cut, p - step - 1, &in_bytes);
        result = exchange(run, out, out_bytes, in, in_bytes, 1);
    }
    return result;
}

static ncclResult_t gather(struct run *run, const struct cut *cut)
{
    int n = run->comm->nranks, p = run->comm->position;
    ncclResult_t result = ncclSuccess;
    for (int step = 0; step < n - 1 && !result; step++) {
        size_t out_bytes, in_bytes;
        char *out = segment(run, cut, p + 1 - step, &out_bytes), *in = segment(run, cut, p - step, &in_bytes);
        result = exchange(run, out, out_bytes, in, in_bytes, 0);
    }
    return result;
}

/* A chain from the root around the ring, in pieces, so that all links are busy. */
static ncclResult_t broadcast(struct run *run, char *buffer, size_t bytes, int root)
{
    struct ncclComm *comm = run->comm;
    int n = comm->nranks, root_position = 0;
    while (comm->ring[root_position] != root)
        root_position++;
    int distance = (comm->position - root_position + n) % n;
    ncclResult_t result = ncclSuccess;
    for (size_t at = 0; at < bytes && !result; at += SCRATCH) {
        size_t piece = bytes - at < SCRATCH ? bytes - at : SCRATCH;
        if (distance)
            result = exchange(run, NULL, 0, buffer + at, piece, 0);
        if (!result && distance < n - 1)
            result = exchange(run, buffer + at, piece, NULL, 0, 0);
    }
    return result;
}

static ncclResult_t perform(struct run *run, const struct collective *wanted)
{
    struct ncclComm *comm = run->comm;
    size_t bytes = wanted->count * run->width;
    struct cut cut = {wanted->receive, wanted->count, wanted->kind != ALL_REDUCE};
    ncclResult_t result;
    switch (wanted->kind) {
    case ALL_REDUCE:
        if (wanted->send != wanted->receive)
            memmove(wanted->receive, wanted->send, bytes);
        result = scatter(run, &cut);
        return result ? result : gather(run, &cut);
    case ALL_GATHER:
        memmove((char *)wanted->receive + (size_t)comm->rank * bytes, wanted->send, bytes);
        return gather(run, &cut);
    case REDUCE_SCATTER:
        cut.buffer = malloc(bytes * (size_t)comm->nranks + 1);
        if (!cut.buffer)
            return ncclSystemError;
        memcpy(cut.buffer, wanted->send, bytes * (size_t)comm->nranks);
        result = scatter(run, &cut);
        if (!result)
            memcpy(wanted->receive, cut.buffer + (size_t)comm->rank * bytes, bytes);
        free(cut.buffer);
        return result;
    default:
        if (comm->rank == wanted->root && wanted->send != wanted->receive)
            memmove(wanted->receive, wanted->send, bytes);
        return broadcast(run, wanted->receive, bytes, wanted->root);
    }
}

static ncclResult_t prepare(struct ncclComm *comm)
{
    if (!comm->scratch)
        comm->scratch = malloc(SCRATCH);
    return comm->scratch ? ncclSuccess : ncclSystemError;
}

ncclResult_t fm_run(struct ncclComm *comm, const struct collective *wanted)
{
    struct fm_hardware hardware;
    fm_hardware_read(&hardware);
    if (hardware.nccl_crash_allreduce)
        abort();
    if (hardware.nccl_hang_allreduce) {
        fm_until_aborted(comm);
        return ncclInternalError;
    }
    ncclResult_t result = prepare(comm);
    if (!result && hardware.nccl_delay_ms > 0)
        result = fm_pause(comm, hardware.nccl_delay_ms);
    if (result)
        return result;
    struct run run = {.comm = comm, .type = wanted->type, .operation = wanted->operation};
    run.width = fm_type_size(wanted->type);
    run.rate_mbit = hardware.nccl_rate_mbit;
    run.flip = hardware.nccl_flip_sent && !comm->local_rank;
    clock_gettime(CLOCK_MONOTONIC, &run.started);
    result = perform(&run, wanted);
    if (!result && hardware.nccl_flip_result && !comm->local_rank && wanted->count)
        flip_bit((char *)wanted->receive + wanted->count / 2 * run.width, run.width);
    if (comm->net_plugin && (run.sent || run.received))
        fm_count_efa(&hardware, comm->gpu.number, hardware.gpus, run.sent, run.received);
    return result;
}

/* For our own exchanges: no faults, no counters. Each rank has filled its own block. */
ncclResult_t fm_gather_blocks(struct ncclComm *comm, void *blocks, size_t block_size)
{
    struct run run = {.comm = comm, .type = fm_u8, .width = 1};
    const struct cut cut = {blocks, block_size, 1};
    return gather(&run, &cut);
}
