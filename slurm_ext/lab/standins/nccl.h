/* Inside of the libnccl stand-in. Numbers and layouts are those of the public nccl.h. */
#ifndef FM_NCCL_H
#define FM_NCCL_H

#include "hardware.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8, /* from 2.30 on */
} ncclResult_t;

enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3 };
enum { fm_i8, fm_u8, fm_i32, fm_u32, fm_i64, fm_u64, fm_f16, fm_f32, fm_f64, fm_bf16, fm_types };

typedef struct {
    char internal[128];
} ncclUniqueId;

/* The layout of NCCL 2.32; each release knows a first part of it (nccl_config.c). */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
    int channels_per_net_peer, nvlink_centric_sched;
    int graph_usage_mode, rma_contexts;
    int max_p2p_peers, graph_stream_ordering;
    int launch_order_implicit, rma_signals, rma_eager_init, host_cft_mode, nvls_host_mode;
} ncclConfig_t;

#define FM_CONFIG_MAGIC 0xcafebeefu
#define FM_UNDEFINED ((int)0x80000000)

/* What each rank tells all others. Fixed width, little endian on every machine this runs on. */
struct peer {
    uint64_t magic; /* of the unique id, or of the split */
    uint64_t host;  /* equal on ranks of one node */
    uint64_t token; /* names its Unix socket */
    int32_t rank, nranks, version, device;
    uint32_t address; /* network order */
    uint16_t port, reserved;
    uint32_t pci_domain, pci_bus, pci_device, pid;
    int32_t color, key; /* of a split */
    char net[32];
    char name[64];
};

typedef struct ncclComm *ncclComm_t;

/* Connections to the neighbours in a circle of ranks. */
struct ring {
    int members, position;
    int next, previous; /* sockets */
    int next_remote, previous_remote; /* on another node */
};

struct ncclComm {
    uint64_t magic;
    int nranks, rank, blocking, device;
    void *context; /* CUcontext of the device */
    struct fm_gpu gpu;
    char net[32];      /* name of the network in use */
    char net_wanted[32];
    char net_said[32]; /* what the log calls it */
    int net_plugin, gdr;
    uint64_t id;       /* shared secret of this communicator */
    struct sockaddr_in root;
    struct peer self;
    struct peer *peers;
    int *order;        /* ranks as they stand in the flat ring; ranks of a node are neighbours */
    int nodes, local_rank, local_ranks, even; /* even: as many ranks on every node */
    int listen_tcp, listen_unix;
    struct ring flat;  /* all ranks */
    struct ring rail;  /* the ranks of one local number on all nodes */
    struct local *local; /* how the ranks of this node reach one another's memory; NULL where each has a node of its own */
    int local_fd;
    int connected, connecting;
    int abort_event;   /* readable once aborted */
    _Atomic int aborted, state;
    int finalized, splits;
    unsigned char *scratch;
    int runs;          /* collectives begun */
    struct timespec first_run;
    double retransmits; /* what is left over of a packet */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t issued, done; /* collectives run in the order they were issued, whatever their streams */
    int busy;              /* threads inside */
};

/* nccl_log.c */
enum { FM_INIT = 1, FM_COLL = 2, FM_P2P = 4, FM_SHM = 8, FM_NET = 16, FM_GRAPH = 32, FM_TUNING = 64, FM_ENV = 128,
       FM_BOOTSTRAP = 0x1000, FM_NVLS = 0x800 };
void fm_info(int subsystem, int device, const char *format, ...) __attribute__((format(printf, 3, 4)));
void fm_warn(int device, const char *where, const char *format, ...) __attribute__((format(printf, 3, 4)));
void fm_log_version(int rank, int device, int version, int cuda_version);

/* nccl_net.c */
int fm_interface(struct sockaddr_in *address, char *name, size_t size); /* NCCL_SOCKET_IFNAME, else not loopback, else loopback */
int fm_listen_tcp(struct sockaddr_in *address);
int fm_listen_unix(uint64_t token);
ncclResult_t fm_connect_tcp(struct ncclComm *comm, const struct sockaddr_in *address, int *out);
ncclResult_t fm_connect_unix(struct ncclComm *comm, uint64_t token, int *out);
ncclResult_t fm_accept_either(struct ncclComm *comm, int first, int second, int *out); /* of two listeners */
ncclResult_t fm_wait_readable(struct ncclComm *comm, int socket);
ncclResult_t fm_send_all(struct ncclComm *comm, int socket, const void *data, size_t size);
ncclResult_t fm_receive_all(struct ncclComm *comm, int socket, void *data, size_t size);
ncclResult_t fm_lost_peer(struct ncclComm *comm, int error);
void fm_until_aborted(struct ncclComm *comm);
ncclResult_t fm_pause(struct ncclComm *comm, int milliseconds); /* internal error where aborted meanwhile */
uint64_t fm_random(void);

/* nccl_plugin.c */
ncclResult_t fm_choose_network(struct ncclComm *comm, const struct fm_hardware *hardware);
void fm_count_efa(struct ncclComm *comm, const struct fm_hardware *hardware, uint64_t sent, uint64_t received);

/* nccl_bootstrap.c */
ncclResult_t fm_root_start(struct sockaddr_in *address, uint64_t magic);
ncclResult_t fm_listen(struct ncclComm *comm);
ncclResult_t fm_exchange_peers(struct ncclComm *comm);
ncclResult_t fm_arrange(struct ncclComm *comm); /* check the peers, put ranks in ring order */

/* nccl_connect.c */
ncclResult_t fm_connect_ring(struct ncclComm *comm);

/* nccl_local.c */
ncclResult_t fm_local_create(struct ncclComm *comm); /* by the first local rank */
ncclResult_t fm_local_give(struct ncclComm *comm, int socket);
ncclResult_t fm_local_take(struct ncclComm *comm, int socket);
void fm_local_free(struct ncclComm *comm);
void fm_local_wake(struct ncclComm *comm);
ncclResult_t fm_local_barrier(struct ncclComm *comm);
/* Say where this rank's buffers lie, and pass a barrier: then all know where everybody's are. */
ncclResult_t fm_local_publish(struct ncclComm *comm, const void *send, const void *receive);
const char *fm_local_sent(struct ncclComm *comm, int local_rank);
const char *fm_local_received(struct ncclComm *comm, int local_rank);

/* nccl_ring.c: one way around a ring */
struct run {
    struct ncclComm *comm;
    struct ring *ring;
    int type, operation;
    size_t width; /* bytes of an element */
    int flip;     /* still to flip one bit in what is sent */
    int rate_mbit;
    uint64_t paced, sent, received; /* to and from other nodes; `paced` since `started` */
    struct timespec started;
};

/* How buffers are cut: `blocks` in rank order (gather, scatter), or one buffer into nearly equal parts. */
struct cut {
    char *buffer;
    size_t count; /* elements in all, or of one block */
    int blocks;
};
char *fm_part(const struct cut *cut, size_t width, int parts, int index, size_t *bytes);
void fm_flip_bit(char *element, size_t width);
ncclResult_t fm_ring_exchange(struct run *run, char *out, size_t out_bytes, char *in, size_t in_bytes, int reduce);
ncclResult_t fm_ring_scatter(struct run *run, const struct cut *cut);
ncclResult_t fm_ring_gather(struct run *run, const struct cut *cut);
#define FM_SCRATCH (256u << 10)

/* nccl_collective.c */
struct collective {
    enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST } kind;
    const void *send;
    void *receive;
    size_t count; /* as the call counts: elements in the smaller buffer for gather and scatter */
    int type, operation, root;
};
size_t fm_type_size(int type);
ncclResult_t fm_run(struct ncclComm *comm, const struct collective *collective);
ncclResult_t fm_gather_blocks(struct ncclComm *comm, void *blocks, size_t block_size);

/* nccl_faults.c */
const struct fm_faults *fm_faults(const struct ncclComm *comm, const struct fm_hardware *hardware);
ncclResult_t fm_strike(struct ncclComm *comm, const struct fm_hardware *hardware, int step); /* step 0: init */
int fm_rate_mbit(const struct ncclComm *comm, const struct fm_hardware *hardware, int shared);

/* nccl_reduce.c */
void fm_reduce(void *into, const void *from, size_t count, int type, int operation);

/* nccl_comm.c */
typedef struct driver {
    int (*get_current)(void **), (*set_current)(void *), (*get_device)(int *), (*retain)(void **, int);
    int (*pci)(char *, int, int), (*version)(int *), (*uuid)(unsigned char *, int);
    int (*enqueue)(void *, void (*)(void *), void *), (*check)(void *, uint64_t, size_t), (*heap)(char **, size_t *);
} driver_t;
const driver_t *fm_driver(void); /* the CUDA stand-in; NULL where there is none */
ncclComm_t fm_comm_new(int nranks, int rank, int blocking);
void fm_comm_release(ncclComm_t comm);
int fm_comm_valid(ncclComm_t comm);
ncclResult_t fm_comm_ready(ncclComm_t comm, const char *caller); /* valid, not in progress, not failed */
void fm_comm_state(ncclComm_t comm, ncclResult_t state);
ncclResult_t fm_start_connecting(ncclComm_t comm); /* at the first collective; 0, or in progress */
ncclResult_t fm_await_connected(ncclComm_t comm);
ncclResult_t fm_wait_turn(ncclComm_t comm, uint64_t ticket);
void fm_end_turn(ncclComm_t comm);

/* nccl_config.c */
size_t fm_config_size(int version); /* of the release's own layout */
ncclResult_t fm_read_config(const ncclConfig_t *given, ncclConfig_t *config);

/* nccl_init.c */
ncclResult_t fm_arranged(ncclComm_t comm, const struct fm_hardware *hardware); /* check, order, perhaps connect */
ncclResult_t fm_start(ncclComm_t comm, void *(*work)(void *), void *argument);
void fm_conclude(ncclComm_t comm, ncclResult_t result);

/* nccl_group.c */
int fm_group_depth(void);
ncclResult_t fm_group_join(ncclComm_t comm, pthread_t thread);

#endif
