/* ncclConfig_t: which fields each release has, what it takes over from a caller of another age, and what it refuses. */
#define _GNU_SOURCE
#include "nccl.h"

#include <string.h>

_Static_assert(sizeof(ncclConfig_t) == 120, "the layout of 2.32");
_Static_assert(offsetof(ncclConfig_t, blocking) == 16 && offsetof(ncclConfig_t, net_name) == 32 &&
                   offsetof(ncclConfig_t, split_share) == 40 && offsetof(ncclConfig_t, comm_name) == 48 &&
                   offsetof(ncclConfig_t, channels_per_net_peer) == 72 &&
                   offsetof(ncclConfig_t, graph_usage_mode) == 80 && offsetof(ncclConfig_t, max_p2p_peers) == 88 &&
                   offsetof(ncclConfig_t, launch_order_implicit) == 96,
               "the layout of 2.32");

/* The release that brought the last field of each size. 2.31 is taken for 2.30: its header was not at hand. */
static const struct {
    int since;
    size_t size;
} layouts[] = {{23200, 120}, {23000, 96}, {22900, 88}, {22800, 80}, {22700, 72}, {21800, 48}, {21700, 40}, {0, 24}};

size_t fm_config_size(int version)
{
    unsigned i = 0;
    while (version < layouts[i].since)
        i++;
    return layouts[i].size;
}

#define ANY 0x7fffffff
/* A caller that says it is older than `known_from` cannot mean the field: it gets the default. */
static const struct {
    const char *name;
    size_t offset;
    unsigned known_from;
    int least, most;
} fields[] = {
#define FIELD(name, member, known_from, least, most) {name, offsetof(ncclConfig_t, member), known_from, least, most}
    FIELD("blocking", blocking, 21400, 0, 1),
    FIELD("cgaClusterSize", cga_cluster_size, 21700, 0, ANY),
    FIELD("minCTAs", min_ctas, 21700, 1, ANY),
    FIELD("maxCTAs", max_ctas, 21700, 1, ANY),
    FIELD("splitShare", split_share, 0, 0, 1),
    FIELD("trafficClass", traffic_class, 22500, -ANY, ANY),
    FIELD("collnetEnable", collnet_enable, 22700, 0, 1),
    FIELD("policy", cta_policy, 22700, 0, ANY),
    FIELD("shrinkShare", shrink_share, 22700, 0, 1),
    FIELD("nvlsCTAs", nvls_ctas, 22700, 1, ANY),
    FIELD("nChannelsPerNetPeer", channels_per_net_peer, 22800, 1, ANY),
    FIELD("nvlinkCentricSched", nvlink_centric_sched, 22800, 0, 1),
    FIELD("graphUsageMode", graph_usage_mode, 22900, 0, 2),
    FIELD("numRmaCtx", rma_contexts, 22900, 0, ANY),
    FIELD("maxP2pPeers", max_p2p_peers, 23000, 1, ANY),
    FIELD("graphStreamOrdering", graph_stream_ordering, 23005, -ANY, ANY),
    FIELD("launchOrderImplicit", launch_order_implicit, 23100, -ANY, ANY),
    FIELD("numRmaSig", rma_signals, 23100, -ANY, ANY),
    FIELD("rmaEagerInit", rma_eager_init, 23100, -ANY, ANY),
    FIELD("hostCftMode", host_cft_mode, 23100, -ANY, ANY),
    FIELD("nvlsHostMode", nvls_host_mode, 23100, -ANY, ANY),
#undef FIELD
};
#define FIELDS (sizeof fields / sizeof *fields)

static int *field(ncclConfig_t *config, unsigned index)
{
    return (int *)((char *)config + fields[index].offset);
}

static ncclResult_t refuse(const char *name, int value)
{
    fm_warn(-1, "init.cc:1741", "Invalid config %s attribute value %d", name, value);
    return ncclInvalidArgument;
}

/* Copy what the caller gave and this release knows; every unset field must hold "undefined", as nccl.h says. */
ncclResult_t fm_read_config(const ncclConfig_t *given, ncclConfig_t *config)
{
    struct fm_hardware hardware;
    size_t size;
    fm_hardware_read(&hardware);
    int version = hardware.nccl_version ? hardware.nccl_version : 22707;
    size_t own = fm_config_size(version);
    memset(config, 0, sizeof *config);
    for (unsigned i = 0; i < FIELDS; i++)
        *field(config, i) = FM_UNDEFINED;
    if (given) {
        memcpy(&size, given, sizeof size);
        /* Before 2.22 a structure too short for its magic got the library's own, and passed. */
        config->magic = version < 22200 ? FM_CONFIG_MAGIC : 0;
        memcpy(config, given, size < own ? size : own);
        if (config->magic != FM_CONFIG_MAGIC) {
            fm_warn(-1, "init.cc:1720", "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
            return ncclInvalidArgument;
        }
    }
    for (unsigned i = 0; i < FIELDS; i++)
        if (given && config->version < fields[i].known_from)
            *field(config, i) = FM_UNDEFINED;
    if (version < 22600)
        config->traffic_class = FM_UNDEFINED; /* padding there */
    if (given && config->version < 21700)
        config->net_name = NULL;
    int low = config->min_ctas, high = config->max_ctas;
    if ((low != FM_UNDEFINED && low < 1) || (high != FM_UNDEFINED && high < 1) ||
        (low != FM_UNDEFINED && high != FM_UNDEFINED && low > high)) {
        fm_warn(-1, "init.cc:1755", "Invalid config min/max channels attribute value %d/%d", low, high);
        return ncclInvalidArgument;
    }
    for (unsigned i = 0; i < FIELDS; i++) {
        int value = *field(config, i);
        if (value != FM_UNDEFINED && (value < fields[i].least || value > fields[i].most))
            return refuse(fields[i].name, value);
    }
    return ncclSuccess;
}
