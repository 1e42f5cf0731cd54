/* Which network NCCL would use, and what its log and the EFA plugin would say about it. */
#define _GNU_SOURCE
#include "nccl.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <unistd.h>

/* Pairs from the plugin's release notes: which plugin came with which NCCL. */
static const char *plugin_version(int nccl)
{
    return nccl < 22304   ? "1.12.1-aws"
           : nccl < 22602 ? "1.13.2-aws"
           : nccl < 22606 ? "1.14.2"
           : nccl < 22705 ? "1.15.0"
           : nccl < 22803 ? "1.16.3"
           : nccl < 22902 ? "1.17.2"
           : nccl < 22907 ? "1.18.0"
           : nccl < 23004 ? "1.19.2"
           : nccl < 23100 ? "1.20.0"
                          : "1.21.0";
}

/* "AWS Libfabric" up to 1.12.1; later "Libfabric", which takes on the old names when asked for by them. */
static const char *plugin_name(int nccl, const char *wanted)
{
    if (nccl < 22304)
        return "AWS Libfabric";
    if (wanted && (!strcasecmp(wanted, "AWS Libfabric") || !strcasecmp(wanted, "OFI")))
        return wanted;
    return "Libfabric";
}

/* The newest interface that both sides have: NCCL's by release, the plugin's by its own. */
static int interface_version(int nccl)
{
    return nccl < 21900 ? 6 : nccl < 22000 ? 7 : nccl < 22400 ? 8 : nccl < 22600 ? 9 : nccl < 22800 ? 10 : nccl < 23000 ? 11 : 12;
}

static int plugin_speaks(struct ncclComm *comm, const struct fm_hardware *hardware, int version)
{
    int device = comm->device, cuda = hardware->cuda_version, modern = version >= 22602;
    int efa = !strcmp(hardware->nccl_provider, "efa");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Initializing aws-ofi-nccl %s", plugin_version(version));
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using Libfabric version 2.1");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using CUDA driver version %d with runtime %d", cuda, cuda);
    if (version >= 22902)
        fm_info(FM_INIT | FM_NET, device, "NET/OFI Plugin selected platform: AWS");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Configuring AWS-specific options");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Setting provider_filter to efa");
    if (!hardware->efa) {
        fm_warn(device, "nccl_ofi_net.cpp:210", "NET/OFI No eligible providers were found");
        return 0;
    }
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using transport protocol %s (platform set)", efa ? "RDMA" : "SENDRECV");
    if (modern)
        fm_info(FM_INIT | FM_NET, device, "NET/OFI Selected provider is %s, fabric is %s (found %d nics)",
                hardware->nccl_provider, version >= 22902 && efa ? "efa-direct" : hardware->nccl_provider,
                hardware->nccl_nics);
    else
        fm_info(FM_INIT | FM_NET, device, "NET/OFI Selected Provider is %s (found %d nics)", hardware->nccl_provider,
                hardware->nccl_nics);
    comm->gdr = hardware->nccl_gdr && efa;
    return 1;
}

/* Each release says it in its own way. */
static void plugin_missing(int device, int version)
{
    static const char file[] = "libnccl-net.so", error[] = "cannot open shared object file: No such file or directory";
    if (version < 21900) {
        fm_info(FM_INIT | FM_NET, device, "NET/Plugin : Plugin load (%s) returned 2 : %s: %s", file, file, error);
        fm_info(FM_INIT | FM_NET, device, "NET/Plugin : No plugin found, using internal implementation");
    } else if (version < 22100) {
        fm_info(FM_INIT | FM_NET, device, "NET/Plugin : dlerror=%s: %s No plugin found (%s), using internal implementation",
                file, error, file);
    } else {
        fm_info(FM_INIT | FM_NET, device, "NET/Plugin: Could not find: %s. %s", file,
                version < 22600 ? "Using internal network plugin." : "");
    }
}

static int use_plugin(struct ncclComm *comm, const struct fm_hardware *hardware, const char *wanted)
{
    const char *file = getenv("NCCL_NET_PLUGIN"), *name = plugin_name(hardware->nccl_version, wanted);
    int version = hardware->nccl_version, device = comm->device;
    if (!hardware->nccl_plugin || (file && !strcasecmp(file, "none"))) {
        plugin_missing(device, version);
        return 0;
    }
    int interface = interface_version(version);
    if (version >= 22400)
        fm_info(FM_INIT | FM_NET, device, "NET/Plugin: Loaded net plugin %s (v%d)", name, interface);
    if (version >= 22700)
        fm_info(FM_INIT | FM_NET, device, "Successfully loaded external %splugin libnccl-net.so",
                version >= 22800 ? "network " : "");
    if (wanted && strcasecmp(wanted, name) != 0)
        return 0;
    if (!plugin_speaks(comm, hardware, version)) {
        if (version >= 22800)
            fm_info(FM_INIT | FM_NET, device, "Failed to initialize NET plugin %s", name);
        return 0;
    }
    snprintf(comm->net, sizeof comm->net, "%s", name);
    comm->net_plugin = 1;
    return 1;
}

static int use_socket(struct ncclComm *comm, const char *wanted)
{
    struct sockaddr_in address;
    char interface[64], text[INET_ADDRSTRLEN];
    if (wanted && strcasecmp(wanted, "Socket") != 0)
        return 0;
    if (!wanted)
        fm_info(FM_INIT | FM_NET, comm->device, "NET/IB : No device found.");
    if (fm_interface(&address, interface, sizeof interface))
        return 0;
    fm_info(FM_INIT | FM_NET, comm->device, "NET/Socket : Using [0]%s:%s<0>", interface,
            inet_ntop(AF_INET, &address.sin_addr, text, sizeof text));
    snprintf(comm->net, sizeof comm->net, "Socket");
    comm->net_plugin = comm->gdr = 0;
    return 1;
}

/* TCP carries what was asked of EFA, and init passes: the case that a proof must see. Peers get the name they expect. */
static void play_fallback(struct ncclComm *comm)
{
    char asked[sizeof comm->net];
    memcpy(asked, comm->net, sizeof asked);
    if (use_socket(comm, "Socket"))
        snprintf(comm->net_said, sizeof comm->net_said, "Socket");
    memcpy(comm->net, asked, sizeof asked);
}

ncclResult_t fm_choose_network(struct ncclComm *comm, const struct fm_hardware *hardware)
{
    const char *wanted = getenv("NCCL_NET");
    int version = hardware->nccl_version;
    if (wanted && *wanted)
        fm_info(FM_ENV, comm->device, "NCCL_NET set by environment to %s", wanted);
    else
        wanted = *comm->net_wanted ? comm->net_wanted : NULL;
    if (!use_plugin(comm, hardware, wanted) && !use_socket(comm, wanted)) {
        if (version < 22700)
            fm_warn(comm->device, "net.cc:579", "Error: network %s not found.", wanted ? wanted : "");
        else
            fm_warn(comm->device, "plugin/net.cc:309", "Failed to initialize any NET plugin");
        return ncclInvalidUsage;
    }
    snprintf(comm->net_said, sizeof comm->net_said, "%s", comm->net);
    if (hardware->nccl_claims_socket && comm->net_plugin)
        play_fallback(comm);
    if (version >= 22700) {
        fm_info(FM_INIT | FM_NET, comm->device, "Initialized NET plugin %s", comm->net_said);
        fm_info(FM_INIT | FM_NET, comm->device, "Assigned NET plugin %s to comm", comm->net_said);
    }
    fm_info(FM_INIT, comm->device, "Using network %s", comm->net_said);
    if (comm->gdr)
        fm_info(FM_INIT | FM_NET, comm->device, "DMA-BUF is available on GPU device %d", comm->device);
    return ncclSuccess;
}

/* Add to one counter file, as several processes may do at once. Missing or forbidden: not counted. */
static void add(const char *folder, const char *name, uint64_t amount)
{
    char path[1024], text[32] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = amount ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (file < 0)
        return;
    if (!flock(file, LOCK_EX) && pread(file, text, sizeof text - 1, 0) >= 0) {
        int length = snprintf(text, sizeof text, "%llu\n", strtoull(text, NULL, 10) + (unsigned long long)amount);
        if (pwrite(file, text, (size_t)length, 0) != length)
            errno = 0; /* a full disk costs a count, not a collective */
    }
    close(file);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

static int visible_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Is device `index` of `count` next to this GPU? Several to a GPU on most types, one for several GPUs on others. */
static int beside(int index, int count, int gpu, int gpus)
{
    if (gpus <= 0)
        return 0;
    return count >= gpus ? index * gpus / count == gpu : gpu * count / gpus == index;
}

/* Spread over the devices next to this GPU. */
void fm_count_efa(struct ncclComm *comm, const struct fm_hardware *hardware, uint64_t sent, uint64_t received)
{
    char folder[1024];
    struct dirent **devices;
    int gpu = comm->gpu.number, gpus = hardware->gpus;
    snprintf(folder, sizeof folder, "%s/sys/class/infiniband", hardware->root);
    int count = scandir(folder, &devices, visible_name, by_name), mine = 0, given = 0;
    comm->retransmits += (double)sent * (double)hardware->efa_retransmits_per_gb / 1e9;
    uint64_t again = (uint64_t)comm->retransmits; /* all on the first device: one cable is bad, not each */
    comm->retransmits -= (double)again;
    for (int i = 0; i < count; i++)
        mine += beside(i, count, gpu, gpus);
    for (int i = 0; i < count; i++) {
        if (beside(i, count, gpu, gpus)) {
            given++; /* the last one takes what division leaves */
            uint64_t out = given == mine ? sent - sent / (unsigned)mine * (unsigned)(mine - 1) : sent / (unsigned)mine;
            uint64_t in = given == mine ? received - received / (unsigned)mine * (unsigned)(mine - 1)
                                        : received / (unsigned)mine;
            snprintf(folder, sizeof folder, "%s/sys/class/infiniband/%s/ports/1/hw_counters", hardware->root,
                     devices[i]->d_name);
            add(folder, "tx_bytes", out);
            add(folder, "tx_pkts", (out + 8927) / 8928);
            add(folder, "rx_bytes", in);
            add(folder, "rx_pkts", (in + 8927) / 8928);
            add(folder, "rdma_write_bytes", out);
            add(folder, "rdma_write_wrs", (out + 131071) / 131072);
            add(folder, "rdma_write_recv_bytes", in);
            if (given == 1) {
                add(folder, "retrans_pkts", again);
                add(folder, "retrans_bytes", again * 8928);
            }
        }
        free(devices[i]);
    }
    if (count >= 0)
        free(devices);
}
