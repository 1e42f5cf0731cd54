/* NVML: read only, from the same state as everything else. Numbers and layouts are those of the public nvml.h. */
#define _GNU_SOURCE
#include "hardware.h"
#include "processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct slot *nvmlDevice_t;
enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_GPU_IS_LOST = 15,
};

struct slot {
    int number;
};

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int value_type;
    nvmlReturn_t result;
    union {
        unsigned u32;
        unsigned long long u64;
    } value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");

static struct slot slots[FM_MAX_GPUS];
static int initialised;

FM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    struct fm_hardware hardware;
    (void)flags;
    fm_hardware_read(&hardware);
    while (hardware.found && hardware.smi_hang)
        pause();
    if (!hardware.found)
        return NVML_DRIVER_NOT_LOADED;
    if (hardware.driver_init_error)
        return hardware.driver_init_error;
    for (int i = 0; i < FM_MAX_GPUS; i++)
        slots[i].number = i;
    __sync_add_and_fetch(&initialised, 1);
    return NVML_SUCCESS;
}

FM_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

FM_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!initialised)
        return NVML_UNINITIALIZED;
    __sync_sub_and_fetch(&initialised, 1);
    return NVML_SUCCESS;
}

FM_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case 0:
        return "Success";
    case 1:
        return "Uninitialized";
    case 2:
        return "Invalid Argument";
    case 3:
        return "Not Supported";
    case 4:
        return "Insufficient Permissions";
    case 6:
        return "Not Found";
    case 7:
        return "Insufficient Size";
    case 9:
        return "Driver Not Loaded";
    case 13:
        return "Function Not Found";
    case 15:
        return "GPU is lost";
    case 18:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t state(struct fm_hardware *hardware)
{
    if (!initialised)
        return NVML_UNINITIALIZED;
    fm_hardware_read(hardware);
    return hardware->found ? NVML_SUCCESS : NVML_DRIVER_NOT_LOADED;
}

/* The GPU behind a handle; `out` is what the caller wants to write to. */
static nvmlReturn_t look(nvmlDevice_t device, const void *out, struct fm_hardware *hardware, const struct fm_gpu **gpu)
{
    nvmlReturn_t result = state(hardware);
    if (result)
        return result;
    if (!out || device < slots || device >= slots + FM_MAX_GPUS)
        return NVML_INVALID_ARGUMENT;
    *gpu = NULL;
    for (int i = 0; i < hardware->gpus; i++)
        if (hardware->gpu[i].number == device->number)
            *gpu = &hardware->gpu[i];
    return !*gpu || (*gpu)->lost ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

FM_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct fm_hardware hardware;
    nvmlReturn_t result = state(&hardware);
    if (!result && !count)
        result = NVML_INVALID_ARGUMENT;
    if (!result)
        *count = (unsigned)hardware.gpus;
    return result;
}

static nvmlReturn_t handle(const struct fm_gpu *gpu, nvmlDevice_t *device)
{
    *device = &slots[gpu->number];
    return gpu->lost ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

FM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    struct fm_hardware hardware;
    nvmlReturn_t result = state(&hardware);
    if (result)
        return result;
    return !device || index >= (unsigned)hardware.gpus ? NVML_INVALID_ARGUMENT : handle(&hardware.gpu[index], device);
}

FM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct fm_hardware hardware;
    nvmlReturn_t result = state(&hardware);
    if (result)
        return result;
    for (int i = 0; uuid && device && i < hardware.gpus; i++)
        if (!strcasecmp(uuid, hardware.gpu[i].uuid))
            return handle(&hardware.gpu[i], device);
    return uuid && device ? NVML_NOT_FOUND : NVML_INVALID_ARGUMENT;
}

FM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    struct fm_hardware hardware;
    unsigned domain, bus, slot;
    nvmlReturn_t result = state(&hardware);
    if (result)
        return result;
    if (!text || !device || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_INVALID_ARGUMENT;
    for (int i = 0; i < hardware.gpus; i++)
        if (hardware.gpu[i].pci_domain == domain && hardware.gpu[i].pci_bus == bus && hardware.gpu[i].pci_device == slot)
            return handle(&hardware.gpu[i], device);
    return NVML_NOT_FOUND;
}

static nvmlReturn_t text_out(nvmlReturn_t result, const char *text, char *out, unsigned length)
{
    if (result)
        return result;
    if (strlen(text) >= length)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

FM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    struct fm_hardware hardware;
    nvmlReturn_t result = out ? state(&hardware) : NVML_INVALID_ARGUMENT;
    return text_out(result, hardware.driver_version, out, length);
}

FM_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
    struct fm_hardware hardware;
    char text[48] = "12.";
    nvmlReturn_t result = out ? state(&hardware) : NVML_INVALID_ARGUMENT;
    if (!result)
        snprintf(text, sizeof text, "%d.%s", hardware.cuda_version / 1000, hardware.driver_version);
    return text_out(result, text, out, length);
}

FM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct fm_hardware hardware;
    nvmlReturn_t result = version ? state(&hardware) : NVML_INVALID_ARGUMENT;
    if (!result)
        *version = hardware.cuda_version;
    return result;
}

/* One getter: looks the GPU up, then runs `body` with `hardware` and `gpu`. */
#define GETTER(name, parameters, out, ...)                               \
    FM_EXPORT nvmlReturn_t name parameters                               \
    {                                                                    \
        struct fm_hardware hardware;                                     \
        const struct fm_gpu *gpu;                                        \
        nvmlReturn_t result = look(device, out, &hardware, &gpu);        \
        if (result)                                                      \
            return result;                                               \
        __VA_ARGS__;                                                     \
        return NVML_SUCCESS;                                             \
    }

GETTER(nvmlDeviceGetName, (nvmlDevice_t device, char *out, unsigned length), out,
       return text_out(0, hardware.model, out, length))
GETTER(nvmlDeviceGetUUID, (nvmlDevice_t device, char *out, unsigned length), out,
       return text_out(0, gpu->uuid, out, length))
GETTER(nvmlDeviceGetSerial, (nvmlDevice_t device, char *out, unsigned length), out,
       return text_out(0, gpu->serial, out, length))
GETTER(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned *index), index, *index = (unsigned)(gpu - hardware.gpu))
GETTER(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned *number), number, *number = (unsigned)gpu->number)
GETTER(nvmlDeviceGetTemperature, (nvmlDevice_t device, int sensor, unsigned *degrees), degrees,
       if (sensor) return NVML_INVALID_ARGUMENT; *degrees = (unsigned)gpu->temperature)
GETTER(nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, int *mode), mode, *mode = gpu->persistence)
GETTER(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned *current, unsigned *pending), current,
       *current = (unsigned)gpu->mig; if (pending) *pending = (unsigned)gpu->mig)
GETTER(nvmlDeviceGetEccMode, (nvmlDevice_t device, int *current, int *pending), current,
       *current = 1; if (pending) *pending = 1)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice_t device, unsigned *width), width, *width = (unsigned)gpu->pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice_t device, unsigned *width), width, *width = 16)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice_t device, unsigned *gen), gen, *gen = (unsigned)gpu->pcie_gen)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice_t device, unsigned *gen), gen, *gen = 5)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, (nvmlDevice_t device, unsigned long long *mask), mask,
       *mask = gpu->event_reasons)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, (nvmlDevice_t device, unsigned long long *mask), mask,
       *mask = gpu->event_reasons)
GETTER(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int *major, int *minor), major,
       *major = hardware.compute / 10; if (minor) *minor = hardware.compute % 10)
GETTER(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned link, int *active), active,
       if (link >= (unsigned)hardware.nvlinks) return NVML_INVALID_ARGUMENT; *active = (int)link < gpu->nvlinks)

GETTER(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *info), info, {
    memset(info, 0, sizeof *info);
    info->domain = gpu->pci_domain;
    info->bus = gpu->pci_bus;
    info->device = gpu->pci_device;
    info->pci_device_id = 0x233010de;
    fm_pci_text(gpu, 8, info->bus_id, sizeof info->bus_id);
    fm_pci_text(gpu, 4, info->bus_id_legacy, sizeof info->bus_id_legacy);
})

GETTER(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory), memory, {
    memory->total = (unsigned long long)hardware.memory_mib << 20;
    memory->used = (unsigned long long)gpu->memory_used_mib << 20;
    memory->free = memory->total - memory->used;
})

GETTER(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory), memory, {
    memory->total = (unsigned long long)hardware.memory_mib << 20;
    memory->reserved = 0;
    memory->used = (unsigned long long)gpu->memory_used_mib << 20;
    memory->free = memory->total - memory->used;
})

GETTER(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t device, int kind, int counter, unsigned long long *count), count, {
    if (kind < 0 || kind > 1 || counter < 0 || counter > 1)
        return NVML_INVALID_ARGUMENT;
    long long errors = kind ? (counter ? gpu->ecc_uncorrected_aggregate : gpu->ecc_uncorrected)
                            : (counter ? gpu->ecc_corrected_aggregate : gpu->ecc_corrected);
    *count = (unsigned long long)errors;
})

GETTER(nvmlDeviceGetRemappedRows, (nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                   unsigned *failed), corrected, {
    if (!uncorrected || !pending || !failed)
        return NVML_INVALID_ARGUMENT;
    if (gpu->mig)
        return NVML_NOT_SUPPORTED;
    *corrected = (unsigned)gpu->remapped_corrected;
    *uncorrected = (unsigned)gpu->remapped_uncorrected;
    *pending = (unsigned)gpu->remap_pending;
    *failed = (unsigned)gpu->remap_failed;
})

GETTER(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos), count, {
    int pids[256];
    unsigned found = (unsigned)fm_process_list(&hardware, gpu->number, pids, 256);
    unsigned room = *count;
    *count = found;
    if (found > room)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        infos[i] = (nvmlProcessInfo_t){(unsigned)pids[i], ~0ULL, ~0u, ~0u}; /* memory per process is not known */
})

/* Field 230, the recovery action, as nvml.h numbers it; any other field is not supported here. */
GETTER(nvmlDeviceGetFieldValues, (nvmlDevice_t device, int count, nvmlFieldValue_t *values), values, {
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX domain"};
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)time(NULL) * 1000000;
        values[i].latency_us = 0;
        values[i].value_type = 1;
        values[i].result = NVML_NOT_SUPPORTED;
        for (unsigned action = 0; values[i].field == 230 && action < sizeof actions / sizeof *actions; action++)
            if (!strcasecmp(gpu->recovery, actions[action])) {
                values[i].result = NVML_SUCCESS;
                values[i].value.u32 = action;
            }
    }
})
