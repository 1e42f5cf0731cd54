/* How ranks find one another: the root thread of the unique id gathers one record per rank and sends all records to
 * all; then each rank connects to the next one in the ring. */
#define _GNU_SOURCE
#include "nccl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_RANKS 65536
#define SEND_TIMEOUT_S 20

struct guest {
    int socket;
    size_t got;
    struct peer peer;
};

struct root {
    int listener, nranks, present, guests, room;
    uint64_t magic;
    struct guest *guest;
};

static void dismiss(struct root *root, int index)
{
    close(root->guest[index].socket);
    root->guest[index] = root->guest[--root->guests];
}

/* A complete record arrived: is it one of ours? */
static int admit(struct root *root, int index)
{
    const struct peer *new = &root->guest[index].peer;
    if (new->magic != root->magic || new->nranks < 1 || new->nranks > MAX_RANKS || new->rank < 0 ||
        new->rank >= new->nranks)
        return 0;
    if (!root->nranks)
        root->nranks = new->nranks;
    if (root->nranks != new->nranks) {
        fm_warn(-1, "bootstrap.cc:320", "Bootstrap Root : mismatch in rank count from procs %d : %d", root->nranks,
                new->nranks);
        return 0;
    }
    for (int i = 0; i < root->guests; i++)
        if (i != index && root->guest[i].got == sizeof *new && root->guest[i].peer.rank == new->rank) {
            fm_warn(-1, "bootstrap.cc:326", "Bootstrap Root : rank %d of %d ranks has already checked in", new->rank,
                    new->nranks);
            return 0;
        }
    root->present++;
    return 1;
}

static void hear(struct root *root, int index)
{
    struct guest *guest = &root->guest[index];
    ssize_t got = recv(guest->socket, (char *)&guest->peer + guest->got, sizeof guest->peer - guest->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        guest->got += (size_t)got;
    if (got <= 0 || (guest->got == sizeof guest->peer && !admit(root, index)))
        dismiss(root, index);
}

static void receive_guest(struct root *root)
{
    int socket = accept4(root->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    if (root->guests == root->room) {
        int room = root->room ? root->room * 2 : 64;
        struct guest *more = realloc(root->guest, (size_t)room * sizeof *more);
        if (!more) {
            close(socket);
            return;
        }
        root->guest = more;
        root->room = room;
    }
    root->guest[root->guests++] = (struct guest){.socket = socket};
}

static void tell_everybody(struct root *root)
{
    size_t size = (size_t)root->nranks * sizeof(struct peer);
    struct peer *all = calloc(1, size);
    for (int i = 0; all && i < root->guests; i++)
        if (root->guest[i].got == sizeof *all)
            all[root->guest[i].peer.rank] = root->guest[i].peer;
    for (int i = 0; i < root->guests; i++) {
        const struct timeval limit = {SEND_TIMEOUT_S, 0};
        int socket = root->guest[i].socket;
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        const char *at = (const char *)all;
        for (size_t left = all && root->guest[i].got == sizeof *all ? size : 0; left;) {
            ssize_t sent = send(socket, at, left, MSG_NOSIGNAL);
            if (sent <= 0)
                break;
            at += sent;
            left -= (size_t)sent;
        }
        close(socket);
    }
    free(all);
}

/* It ends with the first complete set of ranks, or with the process: the real root waits without a limit, too. */
static void *root_thread(void *argument)
{
    struct root *root = argument;
    while (!root->nranks || root->present < root->nranks) {
        struct pollfd *watched = calloc((size_t)root->guests + 1, sizeof *watched);
        int guests = root->guests;
        if (!watched)
            break;
        watched[guests] = (struct pollfd){root->listener, POLLIN, 0};
        for (int i = 0; i < guests; i++) /* who has said everything waits quietly */
            watched[i] = (struct pollfd){root->guest[i].got == sizeof(struct peer) ? -1 : root->guest[i].socket, POLLIN, 0};
        poll(watched, (nfds_t)guests + 1, -1);
        for (int i = guests - 1; i >= 0; i--)
            if (watched[i].revents)
                hear(root, i);
        if (watched[guests].revents)
            receive_guest(root);
        free(watched);
    }
    tell_everybody(root);
    close(root->listener);
    free(root->guest);
    free(root);
    return NULL;
}

ncclResult_t fm_root_start(struct sockaddr_in *address, uint64_t magic)
{
    pthread_t thread;
    struct root *root = calloc(1, sizeof *root);
    if (!root)
        return ncclSystemError;
    root->magic = magic;
    root->listener = fm_listen_tcp(address);
    if (root->listener < 0 || pthread_create(&thread, NULL, root_thread, root)) {
        if (root->listener >= 0)
            close(root->listener);
        free(root);
        return ncclSystemError;
    }
    pthread_detach(thread);
    return ncclSuccess;
}

ncclResult_t fm_listen(struct ncclComm *comm)
{
    struct sockaddr_in address;
    char interface[64];
    if (fm_interface(&address, interface, sizeof interface)) {
        fm_warn(comm->device, "bootstrap.cc:121", "Bootstrap : no socket interface found");
        return ncclInvalidUsage;
    }
    comm->listen_tcp = fm_listen_tcp(&address);
    comm->listen_unix = fm_listen_unix(comm->self.token);
    if (comm->listen_tcp < 0 || comm->listen_unix < 0) {
        fm_warn(comm->device, "bootstrap.cc:128", "Bootstrap : cannot listen: %s", strerror(errno));
        return ncclSystemError;
    }
    comm->self.address = address.sin_addr.s_addr;
    comm->self.port = address.sin_port;
    return ncclSuccess;
}

ncclResult_t fm_exchange_peers(struct ncclComm *comm)
{
    int socket = -1;
    ncclResult_t result = fm_connect_tcp(comm, &comm->root, &socket);
    if (!result)
        result = fm_send_all(comm, socket, &comm->self, sizeof comm->self);
    if (!result)
        result = fm_receive_all(comm, socket, comm->peers, (size_t)comm->nranks * sizeof *comm->peers);
    if (socket >= 0)
        close(socket);
    return result;
}

static ncclResult_t compare(struct ncclComm *comm, const struct peer *a, const struct peer *b)
{
    if (a->version != b->version) {
        fm_warn(comm->device, "init.cc:1012", "Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                a->rank, a->version, b->rank, b->version);
        return ncclInvalidUsage;
    }
    if (strcmp(a->net, b->net) != 0) {
        fm_warn(comm->device, "init.cc:1019", "Mismatched network detected : rank %d uses %s, rank %d uses %s", a->rank,
                a->net, b->rank, b->net);
        return ncclInvalidUsage;
    }
    if (a != b && a->host == b->host && a->pci_domain == b->pci_domain && a->pci_bus == b->pci_bus &&
        a->pci_device == b->pci_device) {
        fm_warn(comm->device, "init.cc:1027", "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x%x",
                a->rank, b->rank, a->pci_bus, a->pci_device << 3);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

/* Ranks of one node stand together, nodes and ranks in rising order, so only node boundaries cross the network. */
ncclResult_t fm_arrange(struct ncclComm *comm)
{
    const struct peer *peers = comm->peers;
    int n = comm->nranks, placed = 0;
    comm->order = calloc((size_t)n, sizeof *comm->order);
    if (!comm->order)
        return ncclSystemError;
    comm->local_rank = comm->local_ranks = comm->nodes = 0;
    comm->even = 1;
    for (int rank = 0; rank < n; rank++) {
        ncclResult_t result = compare(comm, &peers[comm->rank], &peers[rank]);
        if (result)
            return result;
        comm->local_ranks += peers[rank].host == comm->self.host;
        comm->local_rank += rank < comm->rank && peers[rank].host == comm->self.host;
        int first = 1, before = placed;
        for (int i = 0; i < placed && first; i++)
            first = peers[comm->order[i]].host != peers[rank].host;
        comm->nodes += first;
        for (int other = rank; first && other < n; other++)
            if (peers[other].host == peers[rank].host) {
                if (other == comm->rank)
                    comm->flat.position = placed;
                comm->order[placed++] = other;
            }
        if (first && (placed - before) * comm->nodes != placed)
            comm->even = 0;
    }
    comm->flat.members = n;
    return ncclSuccess;
}
