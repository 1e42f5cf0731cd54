/* Once around a ring: pieces go to the next rank while others come from the previous one, and are reduced on the way. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define PACED_CHUNK (32u << 10)
#define PACE_LOOK_MS 100 /* so soon a rank that is held back sees that its fault is gone */

char *fm_part(const struct cut *cut, size_t width, int parts, int index, size_t *bytes)
{
    size_t at = (size_t)(((index % parts) + parts) % parts);
    size_t base = cut->count / (size_t)parts, more = cut->count % (size_t)parts;
    *bytes = (base + (at < more)) * width;
    return cut->buffer + (at * base + (at < more ? at : more)) * width;
}

static char *segment(const struct run *run, const struct cut *cut, int index, size_t *bytes)
{
    int n = run->ring->members, at = ((index % n) + n) % n;
    if (!cut->blocks)
        return fm_part(cut, run->width, n, at, bytes);
    *bytes = cut->count * run->width; /* so that after the scatter each rank holds the block of its own rank */
    return cut->buffer + (size_t)run->comm->order[(at - 1 + n) % n] * *bytes;
}

void fm_flip_bit(char *element, size_t width)
{
    element[width - 1] = (char)(element[width - 1] ^ 0x40); /* an exponent bit, or a high bit of an integer */
}

/* Sleep where this rank has sent more to other nodes than its rate allows. */
static ncclResult_t pace(struct run *run)
{
    struct fm_hardware hardware;
    while (run->rate_mbit && run->ring->next_remote) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double passed = (double)(now.tv_sec - run->started.tv_sec) + (double)(now.tv_nsec - run->started.tv_nsec) / 1e9;
        double wait_ms = ((double)run->paced * 8 / (run->rate_mbit * 1e6) - passed) * 1000;
        if (wait_ms <= 1.0)
            return ncclSuccess;
        if (fm_pause(run->comm, wait_ms > PACE_LOOK_MS ? PACE_LOOK_MS : (int)wait_ms))
            return ncclInternalError;
        fm_hardware_read(&hardware);
        int rate_mbit = fm_rate_mbit(run->comm, &hardware, run->ring == &run->comm->rail ? run->comm->local_ranks : 1);
        if (rate_mbit != run->rate_mbit) {
            run->rate_mbit = rate_mbit;
            run->paced = 0;
            clock_gettime(CLOCK_MONOTONIC, &run->started);
        }
    }
    return ncclSuccess;
}

/* Neither direction moved: wait until one can, or an abort. */
static ncclResult_t wait_for_either(struct run *run, int can_send, int can_receive)
{
    struct pollfd watched[3] = {{run->comm->abort_event, POLLIN, 0},
                                {can_send ? run->ring->next : -1, POLLOUT, 0},
                                {can_receive ? run->ring->previous : -1, POLLIN, 0}};
    if (poll(watched, 3, -1) < 0 && errno != EINTR)
        return ncclSystemError;
    return run->comm->aborted ? ncclInternalError : ncclSuccess;
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
    size_t left = in->bytes - in->got, room = in->reduce ? FM_SCRATCH - in->held : left;
    char *at = in->reduce ? (char *)comm->scratch + in->held : in->into + in->got;
    ssize_t got = recv(run->ring->previous, at, left < room ? left : room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return ncclSuccess;
    if (got <= 0)
        return fm_lost_peer(comm, got ? errno : 0);
    *moved = 1;
    in->got += (size_t)got;
    if (run->ring->previous_remote)
        run->received += (size_t)got;
    if (in->reduce) {
        in->held += (size_t)got;
        size_t whole = in->held / run->width * run->width;
        if (in->got == in->bytes || in->held == FM_SCRATCH || whole > FM_SCRATCH / 2) {
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
    size_t left = bytes - *sent;
    if (run->rate_mbit && run->ring->next_remote && left > PACED_CHUNK)
        left = PACED_CHUNK;
    ssize_t put = send(run->ring->next, from + *sent, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && (errno == EAGAIN || errno == EINTR))
        return ncclSuccess;
    if (put < 0)
        return fm_lost_peer(run->comm, errno);
    *moved = 1;
    *sent += (size_t)put;
    if (run->ring->next_remote) {
        run->sent += (size_t)put;
        run->paced += (size_t)put;
    }
    return pace(run);
}

ncclResult_t fm_ring_exchange(struct run *run, char *out, size_t out_bytes, char *in, size_t in_bytes, int reduce)
{
    struct incoming incoming = {in, in_bytes, 0, 0, 0, reduce};
    size_t sent = 0;
    int flipped = run->flip && out_bytes;
    ncclResult_t result = run->comm->aborted ? ncclInternalError : ncclSuccess;
    if (flipped)
        fm_flip_bit(out, run->width);
    while (!result && (sent < out_bytes || incoming.got < in_bytes)) {
        int moved = 0;
        if (sent < out_bytes)
            result = give(run, out, out_bytes, &sent, &moved);
        if (!result && incoming.got < in_bytes)
            result = take(run, &incoming, &moved);
        if (!result && !moved)
            result = wait_for_either(run, sent < out_bytes, incoming.got < in_bytes);
    }
    if (flipped) {
        fm_flip_bit(out, run->width);
        run->flip = 0;
    }
    return result;
}

ncclResult_t fm_ring_scatter(struct run *run, const struct cut *cut)
{
    int n = run->ring->members, p = run->ring->position;
    ncclResult_t result = ncclSuccess;
    for (int step = 0; step < n - 1 && !result; step++) {
        size_t out_bytes, in_bytes;
        char *out = segment(run, cut, p - step, &out_bytes), *in = segment(run, cut, p - step - 1, &in_bytes);
        result = fm_ring_exchange(run, out, out_bytes, in, in_bytes, 1);
    }
    return result;
}

ncclResult_t fm_ring_gather(struct run *run, const struct cut *cut)
{
    int n = run->ring->members, p = run->ring->position;
    ncclResult_t result = ncclSuccess;
    for (int step = 0; step < n - 1 && !result; step++) {
        size_t out_bytes, in_bytes;
        char *out = segment(run, cut, p + 1 - step, &out_bytes), *in = segment(run, cut, p - step, &in_bytes);
        result = fm_ring_exchange(run, out, out_bytes, in, in_bytes, 0);
    }
    return result;
}
