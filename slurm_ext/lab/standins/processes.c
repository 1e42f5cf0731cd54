#define _GNU_SOURCE
#include "processes.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int name_of(const struct fm_hardware *hardware, int gpu_number, char *out, size_t size)
{
    return snprintf(out, size, "fmslurm-gpu-%016llx-%d-", (unsigned long long)fm_hash(hardware->root, 7), gpu_number);
}

int fm_process_register(const struct fm_hardware *hardware, int gpu_number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = name_of(hardware, gpu_number, address.sun_path + 1, sizeof address.sun_path - 1);
    length += snprintf(address.sun_path + 1 + length, sizeof address.sun_path - 1 - (size_t)length, "%d", getpid());
    int held = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (held >= 0 && bind(held, (struct sockaddr *)&address, size)) {
        close(held);
        return -1;
    }
    return held;
}

int fm_process_list(const struct fm_hardware *hardware, int gpu_number, int *pids, int most)
{
    char line[512], name[96];
    int count = 0, pid;
    FILE *sockets = fopen("/proc/net/unix", "re");
    name_of(hardware, gpu_number, name, sizeof name);
    while (sockets && count < most && fgets(line, sizeof line, sockets)) {
        const char *at = strstr(line, name);
        if (at && sscanf(at + strlen(name), "%d", &pid) == 1)
            pids[count++] = pid;
    }
    if (sockets)
        fclose(sockets);
    return count;
}
