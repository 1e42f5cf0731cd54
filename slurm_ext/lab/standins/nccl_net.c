/* Sockets of the NCCL stand-in. Every wait also watches the communicator's abort event. */
#define _GNU_SOURCE
#include "nccl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t fm_random(void)
{
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != sizeof value)
        value = (uint64_t)time(NULL) << 32 ^ (uint64_t)getpid() * 0x9e3779b97f4a7c15ULL ^ (uint64_t)&value;
    return value;
}

/* NCCL_SOCKET_IFNAME: prefixes; a leading ^ excludes, a leading = asks for exact names. */
static int wanted(const char *list, const char *name)
{
    int exclude = *list == '^', exact = 0, found = 0;
    list += exclude;
    exact = *list == '=';
    list += exact;
    for (size_t length; *list && !found; list += length, list += *list == ',') {
        length = strcspn(list, ",");
        found = length && !strncmp(name, list, length) && (!exact || strlen(name) == length);
    }
    return exclude ? !found : found;
}

int fm_interface(struct sockaddr_in *address, char *name, size_t size)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *best = NULL;
    if (getifaddrs(&all))
        return -1;
    for (int loopback = 0; loopback < 2 && !best; loopback++)
        for (struct ifaddrs *at = all; at && !best; at = at->ifa_next) {
            if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || !(at->ifa_flags & IFF_UP))
                continue;
            int plain = !(at->ifa_flags & IFF_LOOPBACK) && strncmp(at->ifa_name, "docker", 6) != 0;
            if (list && *list ? wanted(list, at->ifa_name) : loopback || plain)
                best = at;
        }
    if (best) {
        memcpy(address, best->ifa_addr, sizeof *address);
        address->sin_port = 0;
        snprintf(name, size, "%s", best->ifa_name);
    }
    freeifaddrs(all);
    return best ? 0 : -1;
}

int fm_listen_tcp(struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    if (bind(listener, (struct sockaddr *)address, sizeof *address) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)address, &length)) {
        close(listener);
        return -1;
    }
    return listener;
}

static socklen_t unix_address(uint64_t token, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX; /* abstract: no file to leave behind, and private to the network namespace */
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fmslurm-nccl-%016llx",
                          (unsigned long long)token);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

int fm_listen_unix(uint64_t token)
{
    struct sockaddr_un address;
    socklen_t length = unix_address(token, &address);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener >= 0 && (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64))) {
        close(listener);
        return -1;
    }
    return listener;
}

/* Wait for events on the socket, or an abort, or the time: 1, -1, 0. */
static int wait_for(struct ncclComm *comm, int socket, short events, int milliseconds)
{
    struct pollfd both[2] = {{comm->abort_event, POLLIN, 0}, {socket, events, 0}};
    for (;;) {
        int ready = poll(both, socket >= 0 ? 2 : 1, milliseconds);
        if (comm->aborted || (ready > 0 && both[0].revents))
            return -1;
        if (ready < 0 && errno == EINTR)
            continue;
        return ready > 0;
    }
}

void fm_until_aborted(struct ncclComm *comm)
{
    while (wait_for(comm, -1, 0, -1) >= 0)
        ;
}

ncclResult_t fm_pause(struct ncclComm *comm, int milliseconds)
{
    return wait_for(comm, -1, 0, milliseconds) < 0 ? ncclInternalError : ncclSuccess;
}

ncclResult_t fm_lost_peer(struct ncclComm *comm, int error)
{
    if (comm->aborted)
        return ncclInternalError;
    fm_warn(comm->device, "misc/socket.cc:806", "socketProgress: %s",
            error ? strerror(error) : "Connection closed by remote peer, remote process exited or there was a network error");
    return ncclRemoteError;
}

static void tune(int socket)
{
    int on = 1, buffer = 1 << 20;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    if (!getsockname(socket, (struct sockaddr *)&own, &length) && own.ss_family == AF_UNIX)
        setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
}

static int number_from_environment(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : fallback;
}

static int transient(int error)
{
    return error == ECONNREFUSED || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == ECONNRESET || error == EAGAIN;
}

/* One attempt; 0 or errno, -1 where aborted. */
static int attempt(struct ncclComm *comm, int family, const void *address, socklen_t length, int *out)
{
    int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    if (made < 0)
        return errno;
    if (connect(made, address, length)) {
        error = errno;
        if (error == EINPROGRESS) {
            if (wait_for(comm, made, POLLOUT, -1) < 0)
                error = -1;
            else if (getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size))
                error = errno;
        }
    }
    if (error) {
        close(made);
        return error;
    }
    tune(made);
    *out = made;
    return 0;
}

static ncclResult_t insist(struct ncclComm *comm, int family, const void *address, socklen_t length, int *out)
{
    int retries = number_from_environment("NCCL_SOCKET_RETRY_CNT", 34);
    int pause_ms = number_from_environment("NCCL_SOCKET_RETRY_SLEEP_MSEC", 100);
    for (int tried = 0;; tried++) {
        int error = attempt(comm, family, address, length, out);
        if (!error)
            return ncclSuccess;
        if (error < 0 || comm->aborted)
            return ncclInternalError;
        if (!transient(error) || tried >= retries) {
            fm_warn(comm->device, "misc/socket.cc:550", "socketPollConnect: connect returned %s, exceeded error retry count (%d)",
                    strerror(error), tried);
            return transient(error) ? ncclRemoteError : ncclSystemError;
        }
        if (fm_pause(comm, pause_ms * (tried + 1)))
            return ncclInternalError;
    }
}

ncclResult_t fm_connect_tcp(struct ncclComm *comm, const struct sockaddr_in *address, int *out)
{
    return insist(comm, AF_INET, address, sizeof *address, out);
}

ncclResult_t fm_connect_unix(struct ncclComm *comm, uint64_t token, int *out)
{
    struct sockaddr_un address;
    socklen_t length = unix_address(token, &address);
    return insist(comm, AF_UNIX, &address, length, out);
}

ncclResult_t fm_wait_readable(struct ncclComm *comm, int socket)
{
    return wait_for(comm, socket, POLLIN, -1) < 0 ? ncclInternalError : ncclSuccess;
}

ncclResult_t fm_accept_either(struct ncclComm *comm, int first, int second, int *out)
{
    const int listeners[] = {first, second};
    for (;;) {
        for (int i = 0; i < 2; i++) {
            *out = accept4(listeners[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (*out >= 0) {
                tune(*out);
                return ncclSuccess;
            }
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                fm_warn(comm->device, "misc/socket.cc:460", "socketTryAccept: Accept failed: %s", strerror(errno));
                return ncclSystemError;
            }
        }
        struct pollfd watched[3] = {{comm->abort_event, POLLIN, 0}, {first, POLLIN, 0}, {second, POLLIN, 0}};
        if ((poll(watched, 3, -1) < 0 && errno != EINTR) || comm->aborted)
            return ncclInternalError;
    }
}

ncclResult_t fm_send_all(struct ncclComm *comm, int socket, const void *data, size_t size)
{
    for (const char *at = data; size;) {
        ssize_t sent = send(socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            size -= (size_t)sent;
        } else if (errno != EAGAIN && errno != EINTR) {
            return fm_lost_peer(comm, errno);
        } else if (wait_for(comm, socket, POLLOUT, -1) < 0) {
            return ncclInternalError;
        }
    }
    return ncclSuccess;
}

ncclResult_t fm_receive_all(struct ncclComm *comm, int socket, void *data, size_t size)
{
    for (char *at = data; size;) {
        ssize_t got = recv(socket, at, size, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            size -= (size_t)got;
        } else if (!got || (errno != EAGAIN && errno != EINTR)) {
            return fm_lost_peer(comm, got ? errno : 0);
        } else if (wait_for(comm, socket, POLLIN, -1) < 0) {
            return ncclInternalError;
        }
    }
    return ncclSuccess;
}
