/* Connections of a communicator: a flat ring of all ranks; where a node has several, also one ring for each of their
 * local numbers over all nodes (the rails: GPU and network card of one index), and memory that a node's ranks share. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FLAT, RAIL, LOCAL };

struct hello {
    uint64_t id;
    int32_t from, to, kind;
};

/* Connect to a rank and say who we are and what for. */
static ncclResult_t call(struct ncclComm *comm, int to, int kind, int *socket)
{
    const struct peer *peer = &comm->peers[to];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = peer->port, .sin_addr.s_addr = peer->address};
    struct hello hello = {comm->id, comm->rank, to, kind};
    ncclResult_t result = peer->host != comm->self.host ? fm_connect_tcp(comm, &address, socket)
                                                        : fm_connect_unix(comm, peer->token, socket);
    return result ? result : fm_send_all(comm, *socket, &hello, sizeof hello);
}

/* Who is expected to call, and where its socket goes. */
struct expected {
    int flat, rail, takers; /* ranks, -1 where none; how many of this node want the shared memory */
};

static ncclResult_t welcome(struct ncclComm *comm, struct expected *expected, int socket)
{
    struct hello hello;
    ncclResult_t result = fm_receive_all(comm, socket, &hello, sizeof hello);
    if (!result && hello.id == comm->id && hello.to == comm->rank) {
        if (hello.kind == FLAT && hello.from == expected->flat) {
            comm->flat.previous = socket;
            expected->flat = -1;
            return ncclSuccess;
        }
        if (hello.kind == RAIL && hello.from == expected->rail) {
            comm->rail.previous = socket;
            expected->rail = -1;
            return ncclSuccess;
        }
        if (hello.kind == LOCAL && expected->takers > 0) {
            expected->takers--;
            result = fm_local_give(comm, socket);
            close(socket);
            return result;
        }
    }
    close(socket); /* a stranger */
    return comm->aborted ? ncclInternalError : ncclSuccess;
}

static ncclResult_t await_callers(struct ncclComm *comm, struct expected expected)
{
    ncclResult_t result = ncclSuccess;
    while (!result && (expected.flat >= 0 || expected.rail >= 0 || expected.takers > 0)) {
        int socket = -1;
        result = fm_accept_either(comm, comm->listen_tcp, comm->listen_unix, &socket);
        if (!result)
            result = welcome(comm, &expected, socket);
    }
    return result;
}

static int neighbour(const struct ncclComm *comm, const struct ring *ring, int step)
{
    int at = (ring->position + step + ring->members) % ring->members;
    return comm->order[ring == &comm->rail ? at * comm->local_ranks + comm->local_rank : at];
}

static ncclResult_t call_next(struct ncclComm *comm, struct ring *ring, int kind)
{
    int next = neighbour(comm, ring, 1);
    ring->next_remote = comm->peers[next].host != comm->self.host;
    ring->previous_remote = comm->peers[neighbour(comm, ring, -1)].host != comm->self.host;
    return call(comm, next, kind, &ring->next);
}

static const char *local_path(const struct fm_hardware *hardware)
{
    return getenv("NCCL_P2P_DISABLE") || !hardware->nccl_p2p ? "SHM/direct/direct"
           : hardware->nccl_version < 22400                   ? "P2P/IPC"
                                                              : "P2P/CUMEM";
}

static void describe(struct ncclComm *comm, const struct fm_hardware *hardware, int from, int to)
{
    int sending = from == comm->rank, remote = comm->peers[from].host != comm->peers[to].host;
    char path[96];
    if (remote)
        snprintf(path, sizeof path, "NET/%s/%d%s", comm->net_said, comm->net_plugin ? comm->gpu.number : 0,
                 comm->gdr ? "/GDRDMA" : "");
    else
        snprintf(path, sizeof path, "%s", local_path(hardware));
    for (int channel = 0; channel < 2 && (remote || sending); channel++)
        fm_info(FM_INIT | (remote ? FM_NET : FM_P2P), comm->device, "Channel %02d/0 : %d[%d] -> %d[%d]%s via %s",
                channel, from, comm->peers[from].device, to, comm->peers[to].device,
                !remote ? "" : sending ? " [send]" : " [receive]", path);
}

/* Between nodes the rails carry an all-reduce where there are any; then the flat ring's own crossing is not used by it. */
static void describe_all(struct ncclComm *comm)
{
    struct fm_hardware hardware;
    fm_hardware_read(&hardware);
    const struct ring *rings[] = {&comm->flat, &comm->rail};
    for (int i = 0; i < 2; i++) {
        const struct ring *ring = rings[i];
        if (ring->members < 2)
            continue;
        int crosses = ring == &comm->rail || comm->rail.members < 2;
        if (!ring->previous_remote || crosses)
            describe(comm, &hardware, neighbour(comm, ring, -1), comm->rank);
        if (!ring->next_remote || crosses)
            describe(comm, &hardware, comm->rank, neighbour(comm, ring, 1));
    }
    if (hardware.nccl_version < 22400)
        fm_info(FM_INIT, comm->device, "Connected all rings");
    else
        fm_info(FM_INIT, comm->device, "Connected all rings, use ring PXN 0 GDR %d", comm->gdr);
    fm_info(FM_INIT, comm->device, "Connected all trees");
}

ncclResult_t fm_connect_ring(struct ncclComm *comm)
{
    if (comm->nranks == 1)
        return ncclSuccess;
    struct expected expected = {neighbour(comm, &comm->flat, -1), -1, 0};
    int share = comm->even && comm->local_ranks > 1, leads = share && !comm->local_rank, giver = -1;
    ncclResult_t result = leads ? fm_local_create(comm) : ncclSuccess;
    if (!result)
        result = call_next(comm, &comm->flat, FLAT);
    if (!result && share && comm->nodes > 1) {
        comm->rail.members = comm->nodes;
        comm->rail.position = comm->flat.position / comm->local_ranks;
        expected.rail = neighbour(comm, &comm->rail, -1);
        result = call_next(comm, &comm->rail, RAIL);
    }
    if (!result && share && !leads)
        result = call(comm, comm->order[comm->flat.position - comm->local_rank], LOCAL, &giver);
    expected.takers = leads ? comm->local_ranks - 1 : 0;
    if (!result)
        result = await_callers(comm, expected);
    if (!result && giver >= 0)
        result = fm_local_take(comm, giver);
    if (giver >= 0)
        close(giver);
    if (!result)
        describe_all(comm);
    return result;
}
