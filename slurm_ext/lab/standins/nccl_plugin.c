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
                          : "1.18.0";
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

static int plugin_speaks(struct ncclComm *comm, const struct fm_hardware *hardware, int version)
{
    int device = comm->device, cuda = hardware->cuda_version, modern = version >= 22602;
    int efa = !strcmp(hardware->nccl_provider, "efa");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Initializing aws-ofi-nccl %s", plugin_version(version));
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using Libfabric version 2.1");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using CUDA driver version %d with runtime %d", cuda, cuda);
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Configuring AWS-specific options");
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Setting provider_filter to efa");
    if (!hardware->efa) {
        fm_warn(device, "nccl_ofi_net.cpp:210", "NET/OFI No eligible providers were found");
        return 0;
    }
    fm_info(FM_INIT | FM_NET, device, "NET/OFI Using transport protocol %s (platform set)", efa ? "RDMA" : "SENDRECV");
    if (modern)
        fm_info(FM_INIT | FM_NET, device, "NET/OFI Selected provider is %s, fabric is %s (found %d nics)",
                hardware->nccl_provider, hardware->nccl_provider, hardware->efa);
    else
        fm_info(FM_INIT | FM_NET, device, "NET/OFI Selected Provider is %s (found %d nics)", hardware->nccl_provider,
                hardware->efa);
    comm->gdr = hardware->nccl_gdr && efa;
    return 1;
}

static int use_plugin(struct ncclComm *comm, const struct fm_hardware *hardware, const char *wanted)
{
    const char *file = getenv("NCCL_NET_PLUGIN"), *name = plugin_name(hardware->nccl_version, wanted);
    int version = hardware->nccl_version, device = comm->device;
    if (!hardware->nccl_plugin || (file && !strcasecmp(file, "none"))) {
        if (version < 22600)
            fm_info(FM_INIT | FM_NET, device, "NET/Plugin: No plugin found (libnccl-net.so)");
        else
            fm_info(FM_INIT | FM_NET, device, "NET/Plugin: Could not find: libnccl-net.so. ");
        if (version >= 22100 && version < 22600)
            fm_info(FM_INIT | FM_NET, device, "NET/Plugin: Using internal network plugin.");
        return 0;
    }
    fm_info(FM_INIT | FM_NET, device, "NET/Plugin: Loaded net plugin %s (v%d)", name, version < 22600 ? 8 : 10);
    if (wanted && strcasecmp(wanted, name) != 0)
        return 0;
    if (!plugin_speaks(comm, hardware, version))
        return 0;
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
    if (version >= 22700) {
        fm_info(FM_INIT | FM_NET, comm->device, "Initialized NET plugin %s", comm->net);
        fm_info(FM_INIT | FM_NET, comm->device, "Assigned NET plugin %s to comm", comm->net);
    }
    fm_info(FM_INIT | FM_NET, comm->device, "Using network %s", comm->net);
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
void fm_count_efa(const struct fm_hardware *hardware, int gpu, int gpus, uint64_t sent, uint64_t received)
{
    char folder[1024];
    struct dirent **devices;
    snprintf(folder, sizeof folder, "%s/sys/class/infiniband", hardware->root);
    int count = scandir(folder, &devices, visible_name, by_name), mine = 0, given = 0;
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
        }
        free(devices[i]);
    }
    if (count >= 0)
        free(devices);
}
