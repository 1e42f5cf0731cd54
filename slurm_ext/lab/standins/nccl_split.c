/* ncclCommSplit: the ranks of a healthy communicator make smaller ones, without a new unique id. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct split {
    ncclComm_t parent, child; /* child NULL: this rank joins none */
    uint64_t ticket;
    int color, key;
};

static int by_key(const void *left, const void *right)
{
    const struct peer *a = left, *b = right;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : (a->rank > b->rank) - (a->rank < b->rank);
}

/* All ranks of the parent tell colour, key and where they listen; those of one colour become a communicator. */
static ncclResult_t divide(struct split *split, struct peer *all, const struct fm_hardware *hardware)
{
    ncclComm_t parent = split->parent, child = split->child;
    ncclResult_t result = ncclSuccess;
    struct peer own = parent->self;
    own.color = split->color;
    own.key = split->key;
    own.rank = parent->rank;
    if (child) {
        child->self = parent->self;
        child->self.token = fm_random();
        result = fm_listen(child);
        own.token = child->self.token;
        own.address = child->self.address;
        own.port = child->self.port;
    }
    all[parent->rank] = own;
    if (!result)
        result = fm_gather_blocks(parent, all, sizeof *all);
    if (result || !child)
        return result;
    int members = 0;
    for (int rank = 0; rank < parent->nranks; rank++)
        if (all[rank].color == split->color)
            child->peers[members++] = all[rank];
    qsort(child->peers, (size_t)members, sizeof *child->peers, by_key);
    child->nranks = members;
    for (int rank = 0; rank < members; rank++) {
        if (child->peers[rank].rank == parent->rank)
            child->rank = rank;
        child->peers[rank].rank = rank;
        child->peers[rank].nranks = members;
    }
    child->self = child->peers[child->rank];
    return fm_arranged(child, hardware);
}

static void *splitting_thread(void *argument)
{
    struct split *split = argument;
    ncclComm_t parent = split->parent, child = split->child;
    struct fm_hardware hardware;
    struct peer *all = calloc((size_t)parent->nranks, sizeof *all);
    fm_hardware_read(&hardware);
    ncclResult_t result = fm_wait_turn(parent, split->ticket);
    if (!result)
        result = all ? divide(split, all, &hardware) : ncclSystemError;
    fm_end_turn(parent);
    if (child)
        fm_conclude(child, result);
    if (result)
        fm_comm_state(parent, result);
    free(all);
    free(split);
    return NULL;
}

/* NCCL 2.18: no new id is needed, but a healthy parent. Colour -1 takes part and gets nothing. */
FM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, const ncclConfig_t *given)
{
    ncclConfig_t config;
    ncclResult_t result = fm_comm_ready(parent, "CommSplit");
    if (!result)
        result = out && color >= -1 ? fm_read_config(given, &config) : ncclInvalidArgument;
    if (result)
        return result;
    *out = NULL;
    struct split *split = calloc(1, sizeof *split);
    int blocking = given && config.blocking != FM_UNDEFINED ? config.blocking : parent->blocking;
    ncclComm_t child = split && color >= 0 ? fm_comm_new(parent->nranks, 0, blocking) : NULL;
    if (!split || (color >= 0 && !child)) {
        free(split);
        return ncclSystemError;
    }
    pthread_mutex_lock(&parent->lock);
    *split = (struct split){parent, child, parent->issued++, color, key};
    int count = ++parent->splits;
    pthread_mutex_unlock(&parent->lock);
    if (child) {
        child->device = parent->device;
        child->context = parent->context;
        child->gpu = parent->gpu;
        child->net_plugin = parent->net_plugin;
        child->gdr = parent->gdr;
        memcpy(child->net, parent->net, sizeof child->net);
        memcpy(child->net_said, parent->net_said, sizeof child->net_said);
        char seed[64];
        snprintf(seed, sizeof seed, "%d/%d", count, color);
        child->id = fm_hash(seed, parent->id);
        *out = child;
    }
    /* A blocking parent becomes connected first, so that "in progress" never shows on it. */
    result = fm_start_connecting(parent);
    if (result && result != ncclInProgress)
        return result;
    if (child)
        return fm_start(child, splitting_thread, split);
    pthread_t thread;
    if (parent->blocking && !fm_group_depth()) {
        splitting_thread(split);
        return (ncclResult_t)parent->state;
    }
    if (pthread_create(&thread, NULL, splitting_thread, split))
        return ncclSystemError;
    pthread_detach(thread);
    return ncclInProgress;
}
