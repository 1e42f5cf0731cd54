/* NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE, in the forms that real logs show; and ncclGetLastError. */
#define _GNU_SOURCE
#include "nccl.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NONE, VERSION, WARN, INFO, TRACE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int level = -1, subsystems, simulated_said;
static FILE *out;
static char host[65];
static char last_error[1024];

static void choose_subsystems(const char *text)
{
    static const struct {
        const char *name;
        int bit;
    } known[] = {{"INIT", FM_INIT}, {"COLL", FM_COLL}, {"P2P", FM_P2P}, {"SHM", FM_SHM}, {"NET", FM_NET},
                 {"GRAPH", FM_GRAPH}, {"TUNING", FM_TUNING}, {"ENV", FM_ENV}, {"BOOTSTRAP", FM_BOOTSTRAP},
                 {"NVLS", FM_NVLS}, {"ALL", ~0}};
    char words[256], *save = words;
    int invert;
    subsystems = FM_INIT | FM_BOOTSTRAP | FM_ENV;
    if (!text || !*text)
        return;
    invert = *text == '^';
    subsystems = invert ? ~0 : 0;
    snprintf(words, sizeof words, "%s", text + invert);
    for (char *word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save))
        for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcasecmp(word, known[i].name))
                subsystems = invert ? subsystems & ~known[i].bit : subsystems | known[i].bit;
}

/* %h is the host's name, %p the process; the file starts empty, as NCCL's does. */
static void open_file(const char *pattern)
{
    char path[PATH_MAX];
    size_t used = 0;
    out = stdout;
    if (!pattern || !*pattern)
        return;
    for (; *pattern && used + 80 < sizeof path; pattern++)
        if (pattern[0] == '%' && (pattern[1] == 'h' || pattern[1] == 'p')) {
            used += (size_t)(pattern[1] == 'h' ? snprintf(path + used, sizeof path - used, "%s", host)
                                               : snprintf(path + used, sizeof path - used, "%d", getpid()));
            pattern++;
        } else {
            path[used++] = *pattern;
        }
    path[used] = 0;
    FILE *file = fopen(path, "we");
    if (file) {
        setvbuf(file, NULL, _IOLBF, 0);
        out = file;
    }
}

static void begin(void)
{
    const char *wanted = getenv("NCCL_DEBUG");
    if (level >= 0)
        return;
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    level = !wanted                           ? NONE
            : !strcasecmp(wanted, "VERSION") ? VERSION
            : !strcasecmp(wanted, "WARN")    ? WARN
            : !strcasecmp(wanted, "INFO")    ? INFO
            : !strcasecmp(wanted, "TRACE")   ? TRACE
                                              : NONE;
    choose_subsystems(getenv("NCCL_DEBUG_SUBSYS"));
    if (level > NONE)
        open_file(getenv("NCCL_DEBUG_FILE"));
}

static void prefix(int device)
{
    fprintf(out, "%s:%d:%ld [%d] ", host, getpid(), (long)syscall(SYS_gettid), device);
}

void fm_info(int subsystem, int device, const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&lock);
    begin();
    if (level >= INFO && (subsystem & subsystems)) {
        if (!simulated_said) {
            simulated_said = 1;
            prefix(device);
            fprintf(out, "NCCL INFO fmslurm lab: simulated NCCL, the hardware below is not real\n");
        }
        prefix(device);
        fprintf(out, "NCCL INFO ");
        va_start(arguments, format);
        vfprintf(out, format, arguments);
        va_end(arguments);
        fputc('\n', out);
        fflush(out);
    }
    pthread_mutex_unlock(&lock);
}

void fm_warn(int device, const char *where, const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&lock);
    begin();
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    if (level >= WARN) {
        char stamp[32];
        time_t now = time(NULL);
        struct tm local;
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
        fprintf(out, "\n[%s] ", stamp);
        prefix(device);
        fprintf(out, "%s NCCL WARN %s\n", where, last_error);
        fflush(out);
    }
    pthread_mutex_unlock(&lock);
}

/* Up to 2.22 rank 0 prints a bare line, and one into the file where there is one; later each rank has an INFO line. */
void fm_log_version(int rank, int device, int version, int cuda_version)
{
    char text[96];
    snprintf(text, sizeof text, "NCCL version %d.%d.%d+cuda%d.%d", version / 10000, version / 100 % 100, version % 100,
             cuda_version / 1000, cuda_version / 10 % 100);
    pthread_mutex_lock(&lock);
    begin();
    int bare = level >= VERSION && rank == 0 && (version < 22300 || level < INFO), file = out && out != stdout;
    if (bare) {
        printf("%s\n", text);
        fflush(stdout);
    }
    pthread_mutex_unlock(&lock);
    if (version >= 22300 || (bare && file))
        fm_info(~0, device, "%s", text);
}

FM_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    static __thread char copy[sizeof last_error]; /* another thread may fail meanwhile */
    (void)comm;
    pthread_mutex_lock(&lock);
    memcpy(copy, last_error, sizeof copy);
    pthread_mutex_unlock(&lock);
    return copy;
}

FM_EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    struct fm_hardware hardware;
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    case ncclTimeout:
        fm_hardware_read(&hardware);
        return hardware.nccl_version >= 23000 ? "timeout" : "unknown result code";
    default:
        return "unknown result code";
    }
}
