/* Memory that the ranks of one node share, in place of NVLink: they reduce one another's data without any socket.
 *
 * The first local rank makes it (a memfd: nothing is left behind whatever dies) and hands the descriptor to the others.
 * Two regions for each rank in turn: who fills one for the next chunk but one has passed a barrier that all others
 * reached only when they were done with it. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEADER 4096
#define LOOK_MS 100 /* how often a waiting rank looks whether the others live */

struct header {
    _Atomic uint32_t arrived, generation;
};

struct local {
    struct header *header;
    size_t size;
    uint64_t chunks; /* begun, by this rank */
};

static size_t size_for(const struct ncclComm *comm)
{
    return HEADER + 2 * (size_t)FM_CHUNK * (size_t)comm->local_ranks;
}

static ncclResult_t map(struct ncclComm *comm)
{
    struct local *local = calloc(1, sizeof *local);
    size_t size = size_for(comm);
    void *memory = local ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, comm->local_fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        fm_warn(comm->device, "misc/shmutils.cc:110", "Cannot map the memory of this node's ranks: %s", strerror(errno));
        free(local);
        return ncclSystemError;
    }
    local->header = memory;
    local->size = size;
    comm->local = local;
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
        munmap(comm->local->header, comm->local->size);
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

uint64_t fm_local_next_chunk(struct ncclComm *comm)
{
    return comm->local->chunks++;
}

char *fm_local_region(struct ncclComm *comm, int local_rank, uint64_t chunk)
{
    return (char *)comm->local->header + HEADER + (2 * (size_t)local_rank + (chunk & 1)) * FM_CHUNK;
}
