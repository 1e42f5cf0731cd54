/* The ranks of one node reach one another's device memory, as over NVLink, and reduce it without any socket.
 *
 * Each maps the heaps of the others (cuda_heap.c). Where their buffers lie, and a barrier, is in a page that the first local
 * rank makes (a memfd: nothing is left behind whatever dies) and whose descriptor it hands to the others. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_MS 100 /* how often a waiting rank looks whether the others live */

struct rank {
    int pid, heap;          /* whose descriptor */
    uint64_t send, receive; /* from the begin of its heap */
};

struct header {
    _Atomic uint32_t arrived, generation;
    struct rank ranks[];
};

struct local {
    struct header *header;
    size_t size, heap_size;
    char *own;       /* heap */
    char **heaps;    /* of the others, where they are mapped here; our own is not */
    int heaps_known;
};

static size_t size_for(const struct ncclComm *comm)
{
    return sizeof(struct header) + (size_t)comm->local_ranks * sizeof(struct rank);
}

static ncclResult_t cannot_map(const struct ncclComm *comm)
{
    fm_warn(comm->device, "misc/shmutils.cc:110", "Cannot map the memory of this node's ranks: %s", strerror(errno));
    return ncclSystemError;
}

static ncclResult_t map(struct ncclComm *comm)
{
    struct local *local = calloc(1, sizeof *local);
    size_t size = size_for(comm);
    void *memory = local ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, comm->local_fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(local);
        return cannot_map(comm);
    }
    local->header = memory;
    local->size = size;
    comm->local = local; /* from here on fm_local_free has it */
    local->heaps = calloc((size_t)comm->local_ranks, sizeof *local->heaps);
    int heap = fm_driver()->heap(&local->own, &local->heap_size);
    if (!local->heaps || heap < 0)
        return cannot_map(comm);
    local->header->ranks[comm->local_rank] = (struct rank){getpid(), heap, 0, 0};
    return ncclSuccess;
}

ncclResult_t fm_local_create(struct ncclComm *comm)
{
    comm->local_fd = memfd_create("fmslurm-nccl", MFD_CLOEXEC);
    if (comm->local_fd < 0 || ftruncate(comm->local_fd, (off_t)size_for(comm))) {
        fm_warn(comm->device, "misc/shmutils.cc:90", "Cannot make the memory of this node's ranks: %s", strerror(errno));
        return ncclSystemError;
    }
    return map(comm);
}

ncclResult_t fm_local_give(struct ncclComm *comm, int socket)
{
    char byte = 0;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &comm->local_fd, sizeof(int));
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1 ? ncclSuccess : fm_lost_peer(comm, errno);
}

ncclResult_t fm_local_take(struct ncclComm *comm, int socket)
{
    char byte;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (fm_wait_readable(comm, socket))
        return ncclInternalError;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message) ||
        control.header.cmsg_type != SCM_RIGHTS)
        return fm_lost_peer(comm, 0);
    memcpy(&comm->local_fd, CMSG_DATA(&control.header), sizeof(int));
    return map(comm);
}

void fm_local_free(struct ncclComm *comm)
{
    if (comm->local) {
        for (int rank = 0; comm->local->heaps && rank < comm->local_ranks; rank++)
            if (comm->local->heaps[rank])
                munmap(comm->local->heaps[rank], comm->local->heap_size);
        munmap(comm->local->header, comm->local->size);
        free(comm->local->heaps);
        free(comm->local);
        comm->local = NULL;
    }
    if (comm->local_fd >= 0)
        close(comm->local_fd);
    comm->local_fd = -1;
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *limit)
{
    syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

/* For an abort: whoever of this process waits at the barrier looks at once. */
void fm_local_wake(struct ncclComm *comm)
{
    if (comm->local)
        futex(&comm->local->header->generation, FUTEX_WAKE, INT32_MAX, NULL);
}

static int somebody_died(struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->peers[rank].host == comm->self.host && kill((pid_t)comm->peers[rank].pid, 0) && errno == ESRCH)
            return 1;
    return 0;
}

ncclResult_t fm_local_barrier(struct ncclComm *comm)
{
    struct header *header = comm->local->header;
    const struct timespec limit = {0, LOOK_MS * 1000000};
    uint32_t now = header->generation;
    if (comm->aborted)
        return ncclInternalError;
    if (++header->arrived == (uint32_t)comm->local_ranks) {
        header->arrived = 0;
        header->generation++;
        futex(&header->generation, FUTEX_WAKE, INT32_MAX, NULL);
        return ncclSuccess;
    }
    while (header->generation == now) {
        futex(&header->generation, FUTEX_WAIT, now, &limit);
        if (comm->aborted)
            return ncclInternalError;
        if (header->generation == now && somebody_died(comm))
            return fm_lost_peer(comm, 0);
    }
    return ncclSuccess;
}

/* All ranks have said by now which process they are. */
static ncclResult_t map_heaps(struct ncclComm *comm)
{
    struct local *local = comm->local;
    for (int rank = 0; rank < comm->local_ranks; rank++) {
        char path[64];
        if (rank == comm->local_rank)
            continue;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", local->header->ranks[rank].pid, local->header->ranks[rank].heap);
        int heap = open(path, O_RDONLY | O_CLOEXEC);
        void *memory = MAP_FAILED;
        if (heap >= 0) {
            memory = mmap(NULL, local->heap_size, PROT_READ, MAP_SHARED | MAP_NORESERVE, heap, 0);
            close(heap);
        }
        if (memory == MAP_FAILED)
            return cannot_map(comm);
        local->heaps[rank] = memory;
    }
    local->heaps_known = 1;
    return ncclSuccess;
}

ncclResult_t fm_local_publish(struct ncclComm *comm, const void *send, const void *receive)
{
    struct local *local = comm->local;
    struct rank *own = &local->header->ranks[comm->local_rank];
    own->send = (uint64_t)((const char *)send - local->own);
    own->receive = (uint64_t)((const char *)receive - local->own);
    ncclResult_t result = fm_local_barrier(comm);
    return result || local->heaps_known ? result : map_heaps(comm);
}

const char *fm_local_sent(struct ncclComm *comm, int local_rank)
{
    return comm->local->heaps[local_rank] + comm->local->header->ranks[local_rank].send;
}

const char *fm_local_received(struct ncclComm *comm, int local_rank)
{
    return comm->local->heaps[local_rank] + comm->local->header->ranks[local_rank].receive;
}
