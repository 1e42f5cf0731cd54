/* ncclGroupStart/End: communicators of one thread are initialised side by side, and collectives start together. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>

struct joining {
    ncclComm_t comm;
    pthread_t thread;
    struct joining *next;
};

static __thread int depth;
static __thread struct joining *joins;

int fm_group_depth(void)
{
    return depth;
}

/* Remember an initialisation that ncclGroupEnd has to wait for. */
ncclResult_t fm_group_join(ncclComm_t comm, pthread_t thread)
{
    struct joining *joining = malloc(sizeof *joining);
    if (!joining)
        return ncclSystemError;
    *joining = (struct joining){comm, thread, joins};
    joins = joining;
    return ncclSuccess;
}

FM_EXPORT ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

FM_EXPORT ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    if (!depth) {
        fm_warn(-1, "group.cc:110", "ncclGroupEnd: not in a group call.");
        return ncclInvalidUsage;
    }
    if (--depth)
        return ncclSuccess;
    while (joins) {
        struct joining *joining = joins;
        joins = joining->next;
        ncclResult_t state;
        if (joining->thread) {
            pthread_join(joining->thread, NULL);
            state = joining->comm->state;
        } else if (joining->comm->blocking) { /* its collective is on its way once the ring stands */
            state = fm_await_connected(joining->comm);
        } else {
            state = joining->comm->state;
        }
        if (state && (!result || result == ncclInProgress))
            result = state;
        free(joining);
    }
    return result;
}
