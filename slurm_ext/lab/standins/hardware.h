/* What the simulated hardware of this node is right now: hardware.env, read again whenever the file changes.
 * Shared by all stand-ins; README.md lists the keys. */
#ifndef FM_HARDWARE_H
#define FM_HARDWARE_H

#include <stdint.h>

#define FM_EXPORT __attribute__((visibility("default")))
#define FM_MAX_GPUS 16

struct fm_gpu {
    int number; /* N of the keys gpu.N.*; absent cards have no entry, so this may differ from the position */
    int lost;
    int cuda_error;
    int mig;
    int persistence;
    int temperature;
    int pcie_gen, pcie_width;
    int nvlinks;
    int remap_pending, remap_failed;
    long long remapped_corrected, remapped_uncorrected;
    long long ecc_corrected, ecc_uncorrected; /* volatile */
    long long ecc_corrected_aggregate, ecc_uncorrected_aggregate;
    long long memory_used_mib;
    unsigned long long event_reasons;
    unsigned pci_domain, pci_bus, pci_device;
    char uuid[48];
    char serial[24];
    char recovery[32];
    char fabric[32];
};

struct fm_hardware {
    int found; /* 0: no readable hardware.env, or driver.missing=1 */
    int gpus;  /* entries in gpu[] */
    int cuda_version;
    int compute; /* 90: compute capability 9.0 */
    int driver_init_error;
    int cuda_hang_init, smi_hang;
    int nvlinks;
    int efa;
    long long memory_mib;
    char node[128];
    char type[48];
    char root[512];
    char model[96];
    char driver_version[32];
    /* NCCL */
    int nccl_version;
    int nccl_plugin; /* nccl.net=efa */
    int nccl_gdr, nccl_nvls;
    int nccl_flip_sent, nccl_flip_result;
    int nccl_hang_init, nccl_hang_allreduce, nccl_hang_abort;
    int nccl_crash_init, nccl_crash_allreduce;
    int nccl_delay_ms;
    int nccl_rate_mbit;
    char nccl_provider[32];
    struct fm_gpu gpu[FM_MAX_GPUS];
};

/* Copy the current state to *out. Cheap: one stat() unless the file changed. */
void fm_hardware_read(struct fm_hardware *out);

/* How this program was started (argv[0]); libraries find their own path. Used where FMSLURM_LAB_HARDWARE is unset. */
void fm_hardware_started_as(const char *path);

/* Write "dddd:bb:dd.f", upper case, with `domain_digits` digits of domain (4: CUDA, 8: NVML). */
void fm_pci_text(const struct fm_gpu *gpu, int domain_digits, char *out, unsigned long size);

/* 64-bit FNV-1a, mixed once more: seeds for identities and host hashes. */
uint64_t fm_hash(const char *text, uint64_t seed);

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-...". */
void fm_uuid_bytes(const struct fm_gpu *gpu, unsigned char out[16]);

#endif
