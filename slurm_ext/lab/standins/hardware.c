#define _GNU_SOURCE
#include "hardware.h"
#include "hardware_table.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE (64 * 1024)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fm_hardware cached;
static struct stat cached_stat;
static int cached_valid;
static char started_as[PATH_MAX];

void fm_hardware_started_as(const char *path)
{
    snprintf(started_as, sizeof started_as, "%s", path);
}

uint64_t fm_hash(const char *text, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ULL;
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ULL;
    return hash ^ (hash >> 29);
}

/* Where a file was started as <root>/usr/bin/X or <root>/usr/lib/X: the folder <root>. Links are not resolved. */
static int root_above(const char *path, char *root, size_t size)
{
    const char *cut = NULL, *scan = path;
    while ((scan = strstr(scan, "/usr/")) != NULL) {
        if (!strncmp(scan, "/usr/bin/", 9) || !strncmp(scan, "/usr/lib/", 9))
            cut = scan;
        scan += 4;
    }
    if (!cut || (size_t)(cut - path) >= size)
        return 0;
    memcpy(root, path, (size_t)(cut - path));
    root[cut - path] = 0;
    return 1;
}

/*
 * A job's tasks get their environment from where the job was submitted, not from slurmd: there Slurm's own name of the
 * node tells which one this is, and the lab is two folders above the library or program (<lab>/lib/X, <lab>/bin/X).
 */
static int root_in_lab(const char *path, char *root, size_t size)
{
    const char *node = getenv("SLURMD_NODENAME");
    if (!node || !*node || *node == '.' || strchr(node, '/') || *path != '/')
        return 0;
    const char *cut = strrchr(path, '/');
    while (cut > path && *--cut != '/')
        ;
    int written = snprintf(root, size, "%.*s/nodes/%s/root", (int)(cut - path), path, node);
    return cut > path && written > 0 && (size_t)written < size;
}

/* The path of hardware.env, or 0 where this process is on no simulated node. */
static int locate(char *path, size_t size)
{
    const char *json = getenv("FMSLURM_LAB_HARDWARE");
    char root[PATH_MAX];
    if (json && *json) {
        const char *slash = strrchr(json, '/');
        int folder = slash ? (int)(slash - json) : 1;
        int written = snprintf(path, size, "%.*s/hardware.env", folder, slash ? json : ".");
        return written > 0 && (size_t)written < size;
    }
    const char *self = started_as;
    Dl_info info;
    if (!*self && dladdr((void *)&locate, &info) && info.dli_fname)
        self = info.dli_fname;
    if (!root_above(self, root, sizeof root) && !root_in_lab(self, root, sizeof root))
        return 0;
    int written = snprintf(path, size, "%s/etc/fmslurm-lab/hardware.env", root);
    return written > 0 && (size_t)written < size;
}

static void gpu_key(char *key, size_t size, int number, const char *name)
{
    snprintf(key, size, "gpu.%d.%s", number, name);
}

static const char *gpu_text(const struct table *table, int number, const char *name, const char *fallback)
{
    char key[64];
    gpu_key(key, sizeof key, number, name);
    return fm_text_of(table, key, fallback);
}

static long long gpu_number(const struct table *table, int number, const char *name, long long fallback)
{
    char key[64];
    gpu_key(key, sizeof key, number, name);
    return fm_number_of(table, key, fallback);
}

static void read_gpu(const struct table *table, int number, const struct fm_hardware *hardware, struct fm_gpu *gpu)
{
    uint64_t first = fm_hash(hardware->node, (uint64_t)number), second = fm_hash(hardware->node, first);
    char fallback[64], prefix[16];
    gpu->number = number;
    snprintf(prefix, sizeof prefix, "gpu.%d.", number);
    gpu->faults = fm_read_faults(table, prefix, &hardware->nccl);
    gpu->lost = gpu_number(table, number, "lost", 0) != 0;
    gpu->cuda_error = (int)gpu_number(table, number, "cuda_error", 0);
    gpu->mig = gpu_number(table, number, "mig", 0) != 0;
    gpu->persistence = gpu_number(table, number, "persistence", 1) != 0;
    gpu->temperature = (int)gpu_number(table, number, "temperature", 31);
    gpu->pcie_gen = (int)gpu_number(table, number, "pcie_gen", 5);
    gpu->pcie_width = (int)gpu_number(table, number, "pcie_width", 16);
    gpu->nvlinks = (int)gpu_number(table, number, "nvlinks", hardware->nvlinks);
    gpu->remap_pending = gpu_number(table, number, "remap_pending", 0) != 0;
    gpu->remap_failed = gpu_number(table, number, "remap_failed", 0) != 0;
    gpu->sram_threshold = gpu_number(table, number, "sram_threshold", 0) != 0;
    gpu->tlimit = (int)gpu_number(table, number, "tlimit", 59);
    gpu->hw_thermal_us = gpu_number(table, number, "hw_thermal_us", 0);
    gpu->power_brake_us = gpu_number(table, number, "power_brake_us", 0);
    gpu->sw_thermal_us = gpu_number(table, number, "sw_thermal_us", 0);
    gpu->nvlink_errors = gpu_number(table, number, "nvlink_errors", 0);
    gpu->remapped_corrected = gpu_number(table, number, "remapped_corrected", 0);
    gpu->remapped_uncorrected = gpu_number(table, number, "remapped_uncorrected", 0);
    gpu->ecc_corrected = gpu_number(table, number, "ecc_corrected", 0);
    gpu->ecc_uncorrected = gpu_number(table, number, "ecc_uncorrected", 0);
    gpu->ecc_corrected_aggregate = gpu_number(table, number, "ecc_corrected_aggregate", gpu->ecc_corrected);
    gpu->ecc_uncorrected_aggregate = gpu_number(table, number, "ecc_uncorrected_aggregate", gpu->ecc_uncorrected);
    gpu->memory_used_mib = gpu_number(table, number, "memory_used_mib", 0);
    gpu->event_reasons = (unsigned long long)gpu_number(table, number, "event_reasons", 1);
    /* The eight addresses of a p5.48xlarge are 0x11 apart from 53:00.0 on. */
    snprintf(fallback, sizeof fallback, "0000:%02x:00.0", (0x53 + 0x11 * number) & 0xff);
    if (sscanf(gpu_text(table, number, "pci", fallback), "%x:%x:%x", &gpu->pci_domain, &gpu->pci_bus,
               &gpu->pci_device) != 3)
        sscanf(fallback, "%x:%x:%x", &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device);
    snprintf(fallback, sizeof fallback, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(first >> 32),
             (unsigned)(first >> 16) & 0xffff, (unsigned)first & 0xffff, (unsigned)(second >> 48),
             (unsigned long long)(second & 0xffffffffffffULL));
    fm_copy_text(gpu->uuid, sizeof gpu->uuid, gpu_text(table, number, "uuid", fallback));
    snprintf(fallback, sizeof fallback, "16524%08u", (unsigned)(second % 100000000U));
    fm_copy_text(gpu->serial, sizeof gpu->serial, gpu_text(table, number, "serial", fallback));
    fm_copy_text(gpu->recovery, sizeof gpu->recovery,
              gpu_text(table, number, "recovery", gpu->lost ? "Reboot" : "None"));
    fm_copy_text(gpu->fabric, sizeof gpu->fabric, gpu_text(table, number, "fabric", "Completed"));
    fm_copy_text(gpu->fabric_status, sizeof gpu->fabric_status,
              gpu_text(table, number, "fabric_status", strcmp(gpu->fabric, "Completed") ? "N/A" : "Success"));
    fm_copy_text(gpu->vbios, sizeof gpu->vbios, gpu_text(table, number, "vbios", "96.00.89.00.01"));
}

static void read_nccl(const struct table *table, struct fm_hardware *hardware)
{
    const struct fm_faults none = {0};
    hardware->nccl_version = (int)fm_number_of(table, "nccl.version", 22707);
    hardware->nccl_plugin = strcmp(fm_text_of(table, "nccl.net", "efa"), "socket") != 0;
    hardware->nccl_gdr = fm_number_of(table, "nccl.gdr", 1) != 0;
    hardware->nccl_nvls = fm_number_of(table, "nccl.nvls", 1) != 0;
    hardware->nccl_p2p = fm_number_of(table, "nccl.p2p", 1) != 0;
    hardware->nccl_claims_socket = !strcmp(fm_text_of(table, "nccl.claims", ""), "socket");
    hardware->nccl_nics = (int)fm_number_of(table, "nccl.nics", hardware->efa);
    hardware->nccl_flip_offset = fm_number_of(table, "nccl.flip_offset", -1);
    hardware->efa_retransmits_per_gb = fm_number_of(table, "efa.retransmits_per_gb", 0);
    hardware->nccl = fm_read_faults(table, "", &none);
    fm_copy_text(hardware->nccl_provider, sizeof hardware->nccl_provider, fm_text_of(table, "nccl.provider", "efa"));
    fm_copy_text(hardware->nccl_dstate_file, sizeof hardware->nccl_dstate_file, fm_text_of(table, "nccl.dstate_file", ""));
    fm_copy_text(hardware->cuda_dstate_file, sizeof hardware->cuda_dstate_file, fm_text_of(table, "cuda.dstate_file", ""));
    if (*hardware->nccl_dstate_file && !*fm_text_of(table, "nccl.dstate", ""))
        hardware->nccl.dstate.step = 1;
}

struct product {
    const char *type, *model; /* Slurm's gres type, nvidia-smi's product name */
    int compute, nvlinks;
};

static const struct product products[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 90, 18}, {"h200", "NVIDIA H200", 90, 18},
    {"b200", "NVIDIA B200", 100, 18},          {"b300", "NVIDIA B300 SXM6 AC", 103, 18},
    {"a100", "NVIDIA A100-SXM4-40GB", 80, 12}, {"l40s", "NVIDIA L40S", 89, 0},
};

static struct product product_of(const char *type)
{
    for (unsigned i = 0; i < sizeof products / sizeof *products; i++)
        if (!strcmp(products[i].type, type))
            return products[i];
    return products[0];
}

static void interpret(const struct table *table, const char *path, struct fm_hardware *hardware)
{
    char host[65] = "localhost", root[PATH_MAX];
    gethostname(host, sizeof host - 1);
    struct product product = product_of(fm_text_of(table, "gpu_type", "h100"));
    memset(hardware, 0, sizeof *hardware);
    hardware->found = !fm_number_of(table, "driver.missing", 0);
    fm_copy_text(hardware->node, sizeof hardware->node, fm_text_of(table, "node", host));
    fm_copy_text(hardware->type, sizeof hardware->type, fm_text_of(table, "type", "p5.48xlarge"));
    fm_copy_text(hardware->model, sizeof hardware->model, fm_text_of(table, "gpu.model", product.model));
    fm_copy_text(hardware->driver_version, sizeof hardware->driver_version,
              fm_text_of(table, "driver", "570.133.20"));
    fm_copy_text(root, sizeof root, path);
    for (int up = 0; up < 3; up++) { /* hardware.env, fmslurm-lab, etc */
        char *slash = strrchr(root, '/');
        if (slash)
            *slash = 0;
    }
    fm_copy_text(hardware->root, sizeof hardware->root, fm_text_of(table, "root", root));
    hardware->driver_init_error = (int)fm_number_of(table, "driver.init_error", 0);
    hardware->cuda_version = (int)fm_number_of(table, "cuda.version", 12080);
    hardware->compute = (int)fm_number_of(table, "gpu.compute", product.compute);
    hardware->cuda_hang_init = fm_word_in(fm_text_of(table, "cuda.hang", ""), "init");
    hardware->smi_hang = fm_number_of(table, "smi.hang", 0) != 0;
    hardware->memory_mib = fm_number_of(table, "gpu_memory_mib", 81559);
    hardware->nvlinks = (int)fm_number_of(table, "gpu.nvlinks", product.nvlinks);
    hardware->efa = (int)fm_number_of(table, "efa", 32);
    read_nccl(table, hardware);
    long long gpus = fm_number_of(table, "gpus", 0);
    for (int number = 0; number < gpus && number < FM_MAX_GPUS; number++)
        if (!gpu_number(table, number, "absent", 0))
            read_gpu(table, number, hardware, &hardware->gpu[hardware->gpus++]);
}

static int load(const char *path, struct fm_hardware *hardware)
{
    static char text[MAX_FILE]; /* under the lock */
    static struct table table;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    fm_table_split(text, &table);
    interpret(&table, path, hardware);
    return 1;
}

void fm_hardware_read(struct fm_hardware *out)
{
    char path[PATH_MAX];
    struct stat now;
    pthread_mutex_lock(&lock);
    if (!locate(path, sizeof path) || stat(path, &now)) {
        memset(&cached, 0, sizeof cached);
        cached_valid = 0;
    } else if (!cached_valid || now.st_ino != cached_stat.st_ino || now.st_dev != cached_stat.st_dev ||
               now.st_size != cached_stat.st_size || now.st_mtim.tv_sec != cached_stat.st_mtim.tv_sec ||
               now.st_mtim.tv_nsec != cached_stat.st_mtim.tv_nsec) {
        cached_valid = load(path, &cached);
        if (!cached_valid)
            memset(&cached, 0, sizeof cached);
        cached_stat = now;
    }
    *out = cached;
    pthread_mutex_unlock(&lock);
}

void fm_pci_text(const struct fm_gpu *gpu, int domain_digits, char *out, unsigned long size)
{
    snprintf(out, size, "%0*X:%02X:%02X.0", domain_digits, gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

void fm_uuid_bytes(const struct fm_gpu *gpu, unsigned char out[16])
{
    const char *at = gpu->uuid;
    if (!strncmp(at, "GPU-", 4))
        at += 4;
    memset(out, 0, 16);
    for (int nibble = 0; *at && nibble < 32; at++) {
        if (!isxdigit((unsigned char)*at))
            continue;
        int digit = isdigit((unsigned char)*at) ? *at - '0' : (tolower((unsigned char)*at) - 'a') + 10;
        out[nibble / 2] = (unsigned char)(out[nibble / 2] | (nibble % 2 ? digit : digit << 4));
        nibble++;
    }
}
