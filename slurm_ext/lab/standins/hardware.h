/* What the simulated hardware of this node is right now: hardware.env, read again whenever the file changes.
 * Shared by all stand-ins; README.md lists the keys. */
#ifndef FM_HARDWARE_H
#define FM_HARDWARE_H

#include <stdint.h>

#define FM_EXPORT __attribute__((visibility("default")))
#define FM_MAX_GPUS 16

/* Where a fault of NCCL strikes: at init, and from the Nth collective of a communicator on (1: the first; 0: never). */
struct fm_place {
    int init, step;
};

/* What is wrong with NCCL, on all ranks of a node or on those of one GPU. */
struct fm_faults {
    struct fm_place hang, crash, stop, dstate, error;
    int error_code;
    int hang_abort;
    int absent;
    int delay_ms, delay_after_ms, join_delay_ms;
    int rate_mbit;
    int flip_sent, flip_result;
};

struct fm_gpu {
    int number; /* N of the keys gpu.N.*; absent cards have no entry, so this may differ from the position */
    struct fm_faults faults; /* the node's, where gpu.N.nccl.* says nothing else; flips and rate are its own only */
    int lost;
    int cuda_error;
    int mig;
    int persistence;
    int temperature;
    int pcie_gen, pcie_width;
    int nvlinks;
    int remap_pending, remap_failed;
    int sram_threshold;
    int tlimit;                                               /* degrees left before it slows down */
    long long hw_thermal_us, power_brake_us, sw_thermal_us;   /* held down since the driver loaded */
    long long nvlink_errors;                                  /* replays on its first link */
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
    char fabric_status[48];
    char vbios[24];
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
    int nccl_gdr, nccl_nvls, nccl_p2p;
    int nccl_claims_socket;
    int nccl_nics;
    long long nccl_flip_offset; /* -1: not set */
    long long efa_retransmits_per_gb;
    struct fm_faults nccl; /* of all ranks here */
    char nccl_provider[32];
    char nccl_dstate_file[256], cuda_dstate_file[256];
    struct fm_gpu gpu[FM_MAX_GPUS];
};

/* Copy the current state to *out. Cheap: one stat() unless the file changed. */
void fm_hardware_read(struct fm_hardware *out);

/* The faults of one GPU, by its number. */
const struct fm_faults *fm_faults_of(const struct fm_hardware *hardware, int number);

/* Write to a file: on a frozen file system this thread then sleeps in the kernel, and no signal wakes it. */
void fm_write_to(const char *path);

/* How this program was started (argv[0]); libraries find their own path. Used where FMSLURM_LAB_HARDWARE is unset. */
void fm_hardware_started_as(const char *path);

/* Write "dddd:bb:dd.f", upper case, with `domain_digits` digits of domain (4: CUDA, 8: NVML). */
void fm_pci_text(const struct fm_gpu *gpu, int domain_digits, char *out, unsigned long size);

/* 64-bit FNV-1a, mixed once more: seeds for identities and host hashes. */
uint64_t fm_hash(const char *text, uint64_t seed);

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-...". */
void fm_uuid_bytes(const struct fm_gpu *gpu, unsigned char out[16]);

#endif
