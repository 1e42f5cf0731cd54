/* The life of a communicator: made, connected at its first collective, finalised, destroyed or aborted. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define COMM_MAGIC 0x6e63636c636f6d6dULL
#define ABORT_WAIT_S 5

/* As NCCL does, by soname: the library that the process has loaded already, else the one beside this file. */
const driver_t *fm_driver(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static driver_t driver;
    static int found;
    pthread_mutex_lock(&lock);
    if (!found) {
        char path[PATH_MAX];
        Dl_info info;
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (!library && dladdr((void *)fm_driver, &info) && info.dli_fname && strrchr(info.dli_fname, '/')) {
            snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(strrchr(info.dli_fname, '/') - info.dli_fname),
                     info.dli_fname);
            library = dlopen(path, RTLD_NOW);
        }
        const struct {
            const char *name;
            void *place;
        } wanted[] = {
            {"cuCtxGetCurrent", &driver.get_current}, {"cuCtxSetCurrent", &driver.set_current},
            {"cuCtxGetDevice", &driver.get_device},   {"cuDevicePrimaryCtxRetain", &driver.retain},
            {"cuDeviceGetPCIBusId", &driver.pci},     {"cuDriverGetVersion", &driver.version},
            {"cuDeviceGetUuid_v2", &driver.uuid},     {"fmcuda_stream_enqueue", &driver.enqueue},
            {"fmcuda_check", &driver.check},          {"fmcuda_heap", &driver.heap},
        };
        found = library != NULL;
        for (unsigned i = 0; found && i < sizeof wanted / sizeof *wanted; i++) {
            void *symbol = dlsym(library, wanted[i].name);
            memcpy(wanted[i].place, &symbol, sizeof symbol);
            found = symbol != NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return found ? &driver : NULL;
}

int fm_comm_valid(ncclComm_t comm)
{
    return comm && comm->magic == COMM_MAGIC;
}

void fm_comm_state(ncclComm_t comm, ncclResult_t state)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclSuccess || comm->state == ncclInProgress) /* the first failure stays */
        comm->state = state;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t fm_comm_ready(ncclComm_t comm, const char *caller)
{
    if (!fm_comm_valid(comm)) {
        fm_warn(-1, "misc/argcheck.cc:30", "%s : %s", caller, comm ? "corrupted comm object detected" : "comm argument is NULL");
        return ncclInvalidArgument;
    }
    int grouped = fm_group_depth() && comm->connecting; /* a group may hold several calls before the ring stands */
    if (comm->state == ncclInProgress && grouped)
        return ncclSuccess;
    if (comm->state == ncclInProgress) {
        fm_warn(comm->device, "init.cc:221", "Attempt to use communicator before the previous operation returned ncclSuccess");
        return ncclInvalidArgument;
    }
    return comm->aborted ? ncclInvalidUsage : (ncclResult_t)comm->state;
}

ncclComm_t fm_comm_new(int nranks, int rank, int blocking)
{
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->peers = calloc((size_t)nranks, sizeof *comm->peers);
    comm->abort_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!comm->peers || comm->abort_event < 0) {
        free(comm->peers);
        free(comm);
        return NULL;
    }
    comm->magic = COMM_MAGIC;
    comm->nranks = nranks;
    comm->rank = rank;
    comm->blocking = blocking;
    comm->listen_tcp = comm->listen_unix = comm->local_fd = -1;
    comm->flat.next = comm->flat.previous = comm->rail.next = comm->rail.previous = -1;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    return comm;
}

/* The struct itself stays: a late ncclCommGetAsyncError gets an error instead of somebody else's memory. */
void fm_comm_release(ncclComm_t comm)
{
    int *const sockets[] = {&comm->listen_tcp, &comm->listen_unix,   &comm->flat.next,  &comm->flat.previous,
                            &comm->rail.next,  &comm->rail.previous, &comm->abort_event};
    comm->magic = 0;
    for (unsigned i = 0; i < sizeof sockets / sizeof *sockets; i++)
        if (*sockets[i] >= 0) {
            close(*sockets[i]);
            *sockets[i] = -1;
        }
    fm_local_free(comm);
    free(comm->peers);
    free(comm->order);
    free(comm->scratch);
    comm->peers = NULL;
    comm->order = NULL;
    comm->scratch = NULL;
}

static void enter(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->busy++;
    pthread_mutex_unlock(&comm->lock);
}

static void leave(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->busy--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void *connecting_thread(void *argument)
{
    ncclComm_t comm = argument;
    ncclResult_t result = fm_connect_ring(comm);
    pthread_mutex_lock(&comm->lock);
    comm->connected = !result;
    if (comm->state == ncclInProgress || comm->state == ncclSuccess)
        comm->state = result;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    leave(comm);
    return NULL;
}

ncclResult_t fm_start_connecting(ncclComm_t comm)
{
    pthread_t thread;
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&comm->lock);
    if (!comm->connected && !comm->connecting) {
        comm->connecting = 1;
        comm->busy++;
        result = comm->blocking ? ncclSuccess : ncclInProgress;
        if (pthread_create(&thread, NULL, connecting_thread, comm)) {
            comm->busy--;
            result = ncclSystemError;
        } else {
            pthread_detach(thread);
        }
        comm->state = result;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

ncclResult_t fm_await_connected(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (!comm->connected && !comm->aborted && (comm->state == ncclInProgress || comm->state == ncclSuccess))
        pthread_cond_wait(&comm->changed, &comm->lock);
    ncclResult_t result = comm->aborted ? ncclInternalError : (ncclResult_t)comm->state;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* Wait for the ring and for every collective issued before; on success the caller owns the ring until fm_end_turn. */
ncclResult_t fm_wait_turn(ncclComm_t comm, uint64_t ticket)
{
    pthread_mutex_lock(&comm->lock);
    comm->busy++;
    while (!comm->aborted && (comm->done != ticket || !comm->connected) &&
           (comm->state == ncclSuccess || comm->state == ncclInProgress))
        pthread_cond_wait(&comm->changed, &comm->lock);
    int turn = !comm->aborted && comm->done == ticket && comm->connected;
    ncclResult_t result = turn ? ncclSuccess : comm->state ? (ncclResult_t)comm->state : ncclInternalError;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

void fm_end_turn(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->done++;
    comm->busy--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void wait_for_done(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->done != comm->issued && !comm->aborted && (comm->state == ncclSuccess || comm->state == ncclInProgress))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void *finalizing_thread(void *argument)
{
    ncclComm_t comm = argument;
    wait_for_done(comm);
    fm_comm_state(comm, ncclSuccess);
    leave(comm);
    return NULL;
}

FM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    pthread_t thread;
    ncclResult_t result = fm_comm_ready(comm, "CommFinalize");
    if (result)
        return result;
    if (comm->finalized) {
        fm_warn(comm->device, "init.cc:2211", "CommFinalize : communicator was finalized already");
        return ncclInvalidArgument;
    }
    comm->finalized = 1;
    if (comm->blocking) {
        wait_for_done(comm);
        return comm->state;
    }
    fm_comm_state(comm, ncclInProgress);
    enter(comm);
    if (pthread_create(&thread, NULL, finalizing_thread, comm)) {
        leave(comm);
        fm_comm_state(comm, ncclSystemError);
        return ncclSystemError;
    }
    pthread_detach(thread);
    return ncclInProgress;
}

/* Stop every thread inside, at most ABORT_WAIT_S; one that stays (a stream that never gets there) keeps the memory. */
static ncclResult_t stop(ncclComm_t comm)
{
    struct timespec until;
    uint64_t one = 1;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_WAIT_S;
    pthread_mutex_lock(&comm->lock);
    comm->aborted = 1;
    if (write(comm->abort_event, &one, sizeof one) != sizeof one)
        errno = 0; /* full means readable already */
    pthread_cond_broadcast(&comm->changed);
    fm_local_wake(comm);
    int waited = 0;
    while (comm->busy && !waited)
        waited = pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
    int idle = !comm->busy && comm->done == comm->issued;
    pthread_mutex_unlock(&comm->lock);
    const int sockets[] = {comm->flat.next, comm->flat.previous, comm->rail.next, comm->rail.previous};
    for (unsigned i = 0; i < sizeof sockets / sizeof *sockets; i++) /* peers must see the end even where memory stays */
        if (sockets[i] >= 0)
            shutdown(sockets[i], SHUT_RDWR);
    if (idle)
        fm_comm_release(comm);
    else
        comm->magic = 0;
    return ncclSuccess;
}

FM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    struct fm_hardware hardware;
    if (!comm)
        return ncclSuccess;
    if (!fm_comm_valid(comm))
        return ncclInvalidArgument;
    for (fm_hardware_read(&hardware); fm_faults(comm, &hardware)->hang_abort; fm_hardware_read(&hardware))
        usleep(100000);
    fm_info(FM_INIT, comm->device, "comm %p rank %d nranks %d cudaDev %d busId %x - Abort COMPLETE", (void *)comm,
            comm->rank, comm->nranks, comm->device, comm->gpu.pci_bus << 12);
    return stop(comm);
}

FM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (!fm_comm_valid(comm)) {
        fm_warn(-1, "init.cc:2290", "CommDestroy : comm was destroyed already, or never made");
        return ncclInvalidArgument;
    }
    if (comm->state == ncclSuccess || comm->state == ncclInProgress)
        wait_for_done(comm);
    fm_info(FM_INIT, comm->device, "comm %p rank %d nranks %d cudaDev %d busId %x - Destroy COMPLETE", (void *)comm,
            comm->rank, comm->nranks, comm->device, comm->gpu.pci_bus << 12);
    return stop(comm);
}

FM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (!fm_comm_valid(comm) || !state)
        return ncclInvalidArgument;
    *state = (ncclResult_t)comm->state;
    return ncclSuccess;
}

static ncclResult_t tell(ncclComm_t comm, const char *caller, int *out, int value)
{
    ncclResult_t result = out ? fm_comm_ready(comm, caller) : ncclInvalidArgument;
    if (!result)
        *out = value;
    return result;
}

FM_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    return tell(comm, "CommCount", count, fm_comm_valid(comm) ? comm->nranks : 0);
}

FM_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    return tell(comm, "CommCuDevice", device, fm_comm_valid(comm) ? comm->device : 0);
}

FM_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    return tell(comm, "CommUserRank", rank, fm_comm_valid(comm) ? comm->rank : 0);
}
