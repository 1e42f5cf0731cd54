/* The collectives, in the stream's own thread: data really moved and reduced, and the faults that strike before or in it. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <string.h>

#define PIECE (32u << 10)

/* Which byte of a buffer is spoiled: the one that is asked for (modulo the buffer), else the high one of an element. */
static void spoil(const struct fm_hardware *hardware, char *buffer, size_t bytes, size_t element, size_t width)
{
    if (!bytes)
        return;
    if (hardware->nccl_flip_offset >= 0)
        buffer[(size_t)hardware->nccl_flip_offset % bytes] ^= 0x40;
    else
        fm_flip_bit(buffer + element * width, width);
}

/* Around the flat ring: every rank sends to the next, wherever that is. */
static ncclResult_t all_reduce_flat(struct run *run, const struct collective *wanted, const struct fm_hardware *hardware)
{
    size_t bytes = wanted->count * run->width;
    struct cut cut = {wanted->receive, wanted->count, 0};
    if (wanted->send != wanted->receive)
        memmove(wanted->receive, wanted->send, bytes);
    if (run->flip) /* our part of the sum, as it leaves us; what we hold ourselves is spoiled alike */
        spoil(hardware, wanted->receive, bytes, 0, run->width);
    run->flip = 0;
    ncclResult_t result = fm_ring_scatter(run, &cut);
    return result ? result : fm_ring_gather(run, &cut);
}

/* Reduce this rank's shard out of the memory of all ranks of the node, in pieces that stay in the processor's cache. */
static void reduce_shard(const struct run *run, char *own, size_t offset, size_t bytes)
{
    struct ncclComm *comm = run->comm;
    size_t piece = PIECE / run->width * run->width;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t now = bytes - at < piece ? bytes - at : piece;
        for (int other = 0; other < comm->local_ranks; other++)
            if (other != comm->local_rank)
                fm_reduce(own + at, fm_local_sent(comm, other) + offset + at, now / run->width, run->type, run->operation);
    }
}

/* Ranks of a node read one another's memory, each one reduces its shard; shards go around the rails. */
static ncclResult_t all_reduce_in_shards(struct run *run, const struct collective *wanted,
                                         const struct fm_hardware *hardware)
{
    struct ncclComm *comm = run->comm;
    int members = comm->local_ranks, flip = run->flip, apart = wanted->send != wanted->receive;
    size_t bytes = wanted->count * run->width, part;
    struct cut whole = {wanted->receive, wanted->count, 0};
    char *own = fm_part(&whole, run->width, members, comm->local_rank, &part), *send = (char *)wanted->send;
    size_t offset = (size_t)(own - whole.buffer);
    run->flip = 0;
    if (flip) /* our part of the sum, for as long as the others read it */
        spoil(hardware, send, bytes, 0, run->width);
    ncclResult_t result = fm_local_publish(comm, wanted->send, wanted->receive);
    if (!result && apart)
        memcpy(own, send + offset, part);
    if (!result)
        reduce_shard(run, own, offset, part);
    struct cut shard = {own, part / run->width, 0};
    if (!result && comm->rail.members > 1)
        result = fm_ring_scatter(run, &shard);
    if (!result && comm->rail.members > 1)
        result = fm_ring_gather(run, &shard);
    if (!result)
        result = fm_local_barrier(comm);
    if (flip && apart)
        spoil(hardware, send, bytes, 0, run->width);
    for (int other = 0; other < members && !result; other++)
        if (other != comm->local_rank) {
            char *theirs = fm_part(&whole, run->width, members, other, &part);
            memcpy(theirs, fm_local_received(comm, other) + (theirs - whole.buffer), part);
        }
    return result ? result : fm_local_barrier(comm); /* nobody changes what another one still reads */
}

/* A chain from the root around the ring, in pieces, so that all links are busy. */
static ncclResult_t broadcast(struct run *run, char *buffer, size_t bytes, int root)
{
    struct ncclComm *comm = run->comm;
    int n = comm->nranks, root_position = 0;
    while (comm->order[root_position] != root)
        root_position++;
    int distance = (comm->flat.position - root_position + n) % n;
    ncclResult_t result = ncclSuccess;
    for (size_t at = 0; at < bytes && !result; at += FM_SCRATCH) {
        size_t piece = bytes - at < FM_SCRATCH ? bytes - at : FM_SCRATCH;
        if (distance)
            result = fm_ring_exchange(run, NULL, 0, buffer + at, piece, 0);
        if (!result && distance < n - 1)
            result = fm_ring_exchange(run, buffer + at, piece, NULL, 0, 0);
    }
    return result;
}

static ncclResult_t perform(struct run *run, const struct collective *wanted, const struct fm_hardware *hardware)
{
    struct ncclComm *comm = run->comm;
    size_t bytes = wanted->count * run->width;
    struct cut cut = {wanted->receive, wanted->count, 1};
    ncclResult_t result;
    switch (wanted->kind) {
    case ALL_REDUCE:
        return comm->local ? all_reduce_in_shards(run, wanted, hardware) : all_reduce_flat(run, wanted, hardware);
    case ALL_GATHER:
        memmove((char *)wanted->receive + (size_t)comm->rank * bytes, wanted->send, bytes);
        return fm_ring_gather(run, &cut);
    case REDUCE_SCATTER:
        cut.buffer = malloc(bytes * (size_t)comm->nranks + 1);
        if (!cut.buffer)
            return ncclSystemError;
        memcpy(cut.buffer, wanted->send, bytes * (size_t)comm->nranks);
        result = fm_ring_scatter(run, &cut);
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
        comm->scratch = malloc(FM_SCRATCH);
    return comm->scratch ? ncclSuccess : ncclSystemError;
}

ncclResult_t fm_run(struct ncclComm *comm, const struct collective *wanted)
{
    struct fm_hardware hardware;
    fm_hardware_read(&hardware);
    ncclResult_t result = fm_strike(comm, &hardware, ++comm->runs);
    if (!result)
        result = prepare(comm);
    if (result)
        return result;
    const struct fm_faults *own = fm_faults(comm, &hardware);
    int shards = wanted->kind == ALL_REDUCE && comm->local, first = !comm->local_rank;
    struct run run = {.comm = comm, .type = wanted->type, .operation = wanted->operation};
    run.ring = shards ? &comm->rail : &comm->flat;
    run.width = fm_type_size(wanted->type);
    run.rate_mbit = fm_rate_mbit(comm, &hardware, shards ? comm->local_ranks : 1);
    run.flip = own->flip_sent || (hardware.nccl.flip_sent && first);
    clock_gettime(CLOCK_MONOTONIC, &run.started);
    result = perform(&run, wanted, &hardware);
    if (!result && (own->flip_result || (hardware.nccl.flip_result && first)))
        spoil(&hardware, wanted->receive, wanted->count * run.width, wanted->count / 2, run.width);
    if (comm->net_plugin && (run.sent || run.received))
        fm_count_efa(comm, &hardware, run.sent, run.received);
    return result;
}

/* For our own exchanges: no faults, no counters. Each rank has filled its own block. */
ncclResult_t fm_gather_blocks(struct ncclComm *comm, void *blocks, size_t block_size)
{
    struct run run = {.comm = comm, .ring = &comm->flat, .type = fm_u8, .width = 1};
    const struct cut cut = {blocks, block_size, 1};
    return fm_ring_gather(&run, &cut);
}
