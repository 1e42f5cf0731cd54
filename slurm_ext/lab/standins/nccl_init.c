/* ncclGetUniqueId, the init calls with their configuration, and ncclCommSplit. */
#define _GNU_SOURCE
#include "nccl.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The real handle has the same two parts: a random secret, and where the root listens. */
struct handle {
    uint64_t magic;
    struct sockaddr_in address;
};
_Static_assert(sizeof(struct handle) <= sizeof(ncclUniqueId), "the handle fits the unique id");

FM_EXPORT ncclResult_t ncclGetVersion(int *version)
{
    struct fm_hardware hardware;
    if (!version)
        return ncclInvalidArgument;
    fm_hardware_read(&hardware);
    *version = hardware.nccl_version ? hardware.nccl_version : 22707;
    return ncclSuccess;
}

static void log_bootstrap(int device, const struct sockaddr_in *address, const char *interface, int version)
{
    char text[INET_ADDRSTRLEN];
    fm_info(version < 22300 ? FM_INIT : FM_BOOTSTRAP, device, "Bootstrap%s: Using %s:%s<0>", version < 22400 ? " " : "",
            interface, inet_ntop(AF_INET, &address->sin_addr, text, sizeof text));
}

FM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct handle handle = {.magic = fm_random()};
    char interface[64];
    if (!id)
        return ncclInvalidArgument;
    if (fm_interface(&handle.address, interface, sizeof interface)) {
        fm_warn(-1, "bootstrap.cc:121", "Bootstrap : no socket interface found");
        return ncclInvalidUsage;
    }
    ncclResult_t result = fm_root_start(&handle.address, handle.magic);
    memset(id, 0, sizeof *id);
    memcpy(id, &handle, sizeof handle);
    return result;
}

/* Which GPU: that of the current context, else device 0, as the CUDA runtime would choose. */
static ncclResult_t choose_device(ncclComm_t comm, const struct fm_hardware *hardware)
{
    const driver_t *driver = fm_driver();
    char bus[32];
    unsigned domain, number, slot;
    int error = driver ? driver->get_current(&comm->context) : 35;
    if (!error && comm->context)
        error = driver->get_device(&comm->device);
    else if (!error)
        error = driver->retain(&comm->context, 0);
    if (!error)
        error = driver->check(comm->context, 0, 0);
    if (!error)
        error = driver->pci(bus, sizeof bus, comm->device);
    if (error) {
        fm_warn(comm->device, "init.cc:1802", "Cuda failure %d 'no usable device or context'", error);
        return ncclUnhandledCudaError;
    }
    if (sscanf(bus, "%x:%x:%x", &domain, &number, &slot) != 3)
        return ncclInternalError;
    for (int i = 0; i < hardware->gpus; i++)
        if (hardware->gpu[i].pci_domain == domain && hardware->gpu[i].pci_bus == number &&
            hardware->gpu[i].pci_device == slot)
            comm->gpu = hardware->gpu[i];
    return ncclSuccess;
}

static void introduce(ncclComm_t comm, const struct fm_hardware *hardware)
{
    const char *host = getenv("NCCL_HOSTID");
    comm->self = (struct peer){.magic = comm->id, .token = fm_random(), .rank = comm->rank, .nranks = comm->nranks,
                               .version = hardware->nccl_version, .device = comm->device,
                               .pci_domain = comm->gpu.pci_domain, .pci_bus = comm->gpu.pci_bus,
                               .pci_device = comm->gpu.pci_device, .pid = (uint32_t)getpid()};
    comm->self.host = host && *host ? fm_hash(host, 1) : fm_hash(hardware->node, 0);
    snprintf(comm->self.net, sizeof comm->self.net, "%s", comm->net);
    snprintf(comm->self.name, sizeof comm->self.name, "%.60s", hardware->node);
}

/* From 2.22 the ring is connected inside the first collective; before, at init. */
ncclResult_t fm_arranged(ncclComm_t comm, const struct fm_hardware *hardware)
{
    ncclResult_t result = fm_arrange(comm);
    if (result)
        return result;
    int version = hardware->nccl_version, nvls = hardware->nccl_nvls && comm->net_plugin;
    fm_info(FM_INIT, comm->device, "NVLS multicast support is %savailable on dev %d%s", nvls ? "" : "not ", comm->device,
            version >= 22700 && version < 23000 ? (nvls ? " (NVLS_NCHANNELS 16)" : " (NVLS_NCHANNELS 0)") : "");
    if (version >= 22000)
        fm_info(FM_INIT, comm->device, "comm %p rank %d nRanks %d nNodes %d localRanks %d localRank %d MNNVL 0",
                (void *)comm, comm->rank, comm->nranks, comm->nodes, comm->local_ranks, comm->local_rank);
    if (comm->nranks > 1 && hardware->nccl_version >= 22200)
        return ncclSuccess;
    result = fm_connect_ring(comm);
    comm->connected = comm->connecting = !result;
    return result;
}

/* Bare up to 2.20, then with the function's name; from 2.29 the rank stands before it when it starts. */
static void mark(ncclComm_t comm, int version, const char *end)
{
    char secret[24], name[64] = ""; /* the id admits to the bootstrap: logs carry a hash of it */
    snprintf(secret, sizeof secret, "%llx", (unsigned long long)comm->id);
    if (version >= 22900 && strstr(end, "START"))
        snprintf(name, sizeof name, "[Rank %d] ncclCommInitRankConfig ", comm->rank);
    else if (version >= 22100)
        snprintf(name, sizeof name, "%s ", version < 22300 ? "ncclCommInitRank" : "ncclCommInitRankConfig");
    fm_info(FM_INIT, comm->device, "%scomm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %x commId 0x%llx - %s", name,
            (void *)comm, comm->rank, comm->nranks, comm->device, comm->gpu.number, comm->gpu.pci_bus << 12,
            (unsigned long long)fm_hash(secret, 0), end);
}

static ncclResult_t initialise(ncclComm_t comm)
{
    struct fm_hardware hardware;
    struct sockaddr_in address = {0};
    char interface[64] = "?";
    fm_hardware_read(&hardware);
    ncclResult_t result = fm_strike(comm, &hardware, 0);
    if (result)
        return result;
    fm_interface(&address, interface, sizeof interface);
    log_bootstrap(comm->device, &address, interface, hardware.nccl_version);
    fm_info(FM_INIT, comm->device, "cudaDriverVersion %d", hardware.cuda_version);
    fm_log_version(comm->rank, comm->device, hardware.nccl_version, hardware.cuda_version);
    result = fm_choose_network(comm, &hardware);
    if (result)
        return result;
    mark(comm, hardware.nccl_version, "Init START");
    introduce(comm, &hardware);
    if (!(result = fm_listen(comm)) && !(result = fm_exchange_peers(comm)))
        result = fm_arranged(comm, &hardware);
    if (!result)
        mark(comm, hardware.nccl_version, "Init COMPLETE");
    return result;
}

void fm_conclude(ncclComm_t comm, ncclResult_t result)
{
    pthread_mutex_lock(&comm->lock);
    comm->state = result;
    comm->busy--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void *initialising_thread(void *argument)
{
    fm_conclude(argument, initialise(argument));
    return NULL;
}

/* Run `work` on the communicator: here where it blocks, else (or within a group) on a thread of its own. */
ncclResult_t fm_start(ncclComm_t comm, void *(*work)(void *), void *argument)
{
    pthread_t thread;
    pthread_mutex_lock(&comm->lock);
    comm->state = ncclInProgress;
    comm->busy++;
    pthread_mutex_unlock(&comm->lock);
    if (comm->blocking && !fm_group_depth()) {
        work(argument);
        return (ncclResult_t)comm->state;
    }
    if (pthread_create(&thread, NULL, work, argument)) {
        fm_conclude(comm, ncclSystemError);
        return ncclSystemError;
    }
    if (comm->blocking)
        return fm_group_join(comm, thread);
    pthread_detach(thread);
    return fm_group_depth() ? fm_group_join(comm, 0) : ncclInProgress;
}

FM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank,
                                              const ncclConfig_t *given)
{
    struct fm_hardware hardware;
    struct handle handle;
    ncclConfig_t config;
    memcpy(&handle, &id, sizeof handle);
    if (!out)
        return ncclInvalidArgument;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        fm_warn(-1, "init.cc:1698", "Invalid rank requested : %d/%d", rank, nranks);
        return ncclInvalidArgument;
    }
    ncclResult_t result = fm_read_config(given, &config);
    if (result)
        return result;
    ncclComm_t comm = fm_comm_new(nranks, rank, config.blocking != 0);
    if (!comm)
        return ncclSystemError;
    fm_hardware_read(&hardware);
    result = choose_device(comm, &hardware);
    if (result) {
        fm_comm_release(comm);
        free(comm);
        return result;
    }
    if (fm_faults(comm, &hardware)->absent)
        _exit(0); /* a rank that never joins, and says nothing */
    comm->id = handle.magic;
    comm->root = handle.address;
    if (config.net_name)
        snprintf(comm->net_wanted, sizeof comm->net_wanted, "%s", config.net_name);
    *out = comm; /* before the work starts: an abort from another thread needs it */
    return fm_start(comm, initialising_thread, comm);
}

FM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *out, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(out, nranks, id, rank, NULL);
}
