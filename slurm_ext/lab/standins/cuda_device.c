#define _GNU_SOURCE
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised_in; /* a forked child has to find itself uninitialised, as with the real driver */
static int visible[FM_MAX_GPUS], visible_count; /* GPU numbers, in the order of CUDA_VISIBLE_DEVICES */

const struct fm_gpu *fm_gpu_by_number(const struct fm_hardware *hardware, int number)
{
    for (int i = 0; i < hardware->gpus; i++)
        if (hardware->gpu[i].number == number)
            return &hardware->gpu[i];
    return NULL;
}

/* The position that one word of CUDA_VISIBLE_DEVICES names: an index, or the beginning of a UUID. -1: none. */
static int named(const struct fm_hardware *hardware, const char *word)
{
    char *end;
    long index = strtol(word, &end, 10);
    if (*word && !*end)
        return index >= 0 && index < hardware->gpus ? (int)index : -1;
    if (!strncmp(word, "GPU-", 4))
        for (int i = 0; i < hardware->gpus; i++)
            if (!strncmp(hardware->gpu[i].uuid, word, strlen(word)))
                return i;
    return -1;
}

/* A word that names no device ends the list, as documented for CUDA_VISIBLE_DEVICES. */
static void choose_visible(const struct fm_hardware *hardware)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    char words[1024], *save = words;
    visible_count = 0;
    if (!wanted) {
        for (int i = 0; i < hardware->gpus; i++)
            visible[visible_count++] = hardware->gpu[i].number;
        return;
    }
    snprintf(words, sizeof words, "%s", wanted);
    for (char *word = strtok_r(words, ",", &save); word && visible_count < FM_MAX_GPUS; word = strtok_r(NULL, ",", &save)) {
        int position = named(hardware, word + strspn(word, " "));
        if (position < 0)
            break;
        int number = hardware->gpu[position].number;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == number) { /* naming one twice makes all invisible */
                visible_count = 0;
                return;
            }
        visible[visible_count++] = number;
    }
}

FM_EXPORT CUresult cuInit(unsigned flags)
{
    struct fm_hardware hardware;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    fm_hardware_read(&hardware);
    while (hardware.found && hardware.cuda_hang_init)
        pause();
    if (*hardware.cuda_dstate_file)
        fm_write_to(hardware.cuda_dstate_file);
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    if (initialised_in != getpid()) {
        fm_contexts_reset();
        if (hardware.found)
            choose_visible(&hardware);
        if (!hardware.found || !visible_count)
            result = CUDA_ERROR_NO_DEVICE;
        else if (hardware.driver_init_error)
            result = 803; /* CUDA_ERROR_SYSTEM_DRIVER_MISMATCH */
        for (int i = 0; !result && i < visible_count; i++)
            if (fm_gpu_by_number(&hardware, visible[i])->lost)
                result = CUDA_ERROR_UNKNOWN;
        if (!result)
            initialised_in = getpid();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult fm_ready(void)
{
    return initialised_in && initialised_in == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

int fm_device_count(void)
{
    return visible_count;
}

FM_EXPORT CUresult cuDriverGetVersion(int *version)
{
    struct fm_hardware hardware;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    fm_hardware_read(&hardware);
    *version = hardware.found ? hardware.cuda_version : 0;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = visible_count;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (ordinal < 0 || ordinal >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* Identity only: names and addresses of a lost card are still known to a running process. */
static CUresult identity(CUdevice device, struct fm_hardware *hardware, const struct fm_gpu **gpu)
{
    CUresult result = fm_ready();
    if (result)
        return result;
    if (device < 0 || device >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    fm_hardware_read(hardware);
    *gpu = fm_gpu_by_number(hardware, visible[device]);
    return *gpu ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult fm_gpu_of(CUdevice device, struct fm_gpu *out)
{
    struct fm_hardware hardware;
    const struct fm_gpu *gpu;
    CUresult result = identity(device, &hardware, &gpu);
    if (!result)
        *out = *gpu;
    return result;
}

FM_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    struct fm_hardware hardware;
    const struct fm_gpu *gpu;
    CUresult result = identity(device, &hardware, &gpu);
    if (result)
        return result;
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", hardware.model);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device)
{
    struct fm_gpu gpu;
    CUresult result = fm_gpu_of(device, &gpu);
    if (result)
        return result;
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    fm_uuid_bytes(&gpu, uuid);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

FM_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    struct fm_gpu gpu;
    CUresult result = fm_gpu_of(device, &gpu);
    if (result)
        return result;
    if (!text || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    fm_pci_text(&gpu, 4, text, (unsigned long)length);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct fm_hardware hardware;
    const struct fm_gpu *gpu;
    CUresult result = identity(device, &hardware, &gpu);
    if (result)
        return result;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = (size_t)hardware.memory_mib << 20;
    return gpu->lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* CUdevice_attribute numbers of cuda.h with the values of an H100; an attribute not listed is refused, never guessed. */
FM_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    static const int known[][2] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {11, 0x7fffffff}, {12, 65536}, {13, 1980000}, {16, 132}, {17, 0}, {18, 0}, {19, 1}, {20, 0},
        {31, 1}, {32, 1}, {35, 0}, {36, 2619000}, {37, 5120}, {38, 52428800}, {39, 2048}, {40, 3}, {41, 1},
        {81, 233472}, {82, 65536}, {83, 1}, {95, 1}, {97, 232448}, {106, 32}, {116, 1}, {132, 1},
    };
    struct fm_hardware hardware;
    const struct fm_gpu *gpu;
    CUresult result = identity(device, &hardware, &gpu);
    if (result)
        return result;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (gpu->lost)
        return CUDA_ERROR_UNKNOWN;
    switch (attribute) {
    case 33:
        *value = (int)gpu->pci_bus;
        return CUDA_SUCCESS;
    case 34:
        *value = (int)gpu->pci_device;
        return CUDA_SUCCESS;
    case 50:
        *value = (int)gpu->pci_domain;
        return CUDA_SUCCESS;
    case 75:
        *value = hardware.compute / 10;
        return CUDA_SUCCESS;
    case 76:
        *value = hardware.compute % 10;
        return CUDA_SUCCESS;
    default:
        for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
            if (known[i][0] == attribute) {
                *value = known[i][1];
                return CUDA_SUCCESS;
            }
        return CUDA_ERROR_INVALID_VALUE;
    }
}

FM_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = cuDeviceGetAttribute(major, 75, device);
    return result ? result : cuDeviceGetAttribute(minor, 76, device);
}
