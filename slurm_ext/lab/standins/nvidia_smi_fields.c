/* The fields of nvidia-smi --query-gpu that a health gate asks for, named as in nvidia-smi --help-query-gpu. */
#define _GNU_SOURCE
#include "nvidia_smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define GET(name) static void name(const struct view *view, const struct fm_gpu *gpu, char *out, size_t size)
#define TEXT(name, ...)                                          \
    GET(name)                                                    \
    {                                                            \
        (void)view, (void)gpu;                                   \
        snprintf(out, size, __VA_ARGS__);                        \
    }

TEXT(get_index, "%d", (int)(gpu - view->hardware.gpu))
TEXT(get_count, "%d", view->hardware.gpus)
TEXT(get_uuid, "%s", gpu->uuid)
TEXT(get_name, "%s", view->hardware.model)
TEXT(get_serial, "%s", gpu->serial)
TEXT(get_driver, "%s", view->hardware.driver_version)
TEXT(get_vbios, "%s", gpu->vbios)
TEXT(get_memory_total, "%lld", view->hardware.memory_mib)
TEXT(get_memory_used, "%lld", gpu->memory_used_mib)
TEXT(get_memory_free, "%lld", view->hardware.memory_mib - gpu->memory_used_mib)
TEXT(get_temperature, "%d", gpu->temperature)
TEXT(get_persistence, "%s", gpu->persistence ? "Enabled" : "Disabled")
TEXT(get_mig, "%s", gpu->mig ? "Enabled" : "Disabled")
TEXT(get_enabled, "%s", "Enabled")
TEXT(get_width, "%d", gpu->pcie_width)
TEXT(get_width_max, "%d", 16)
TEXT(get_gen, "%d", gpu->pcie_gen)
TEXT(get_gen_max, "%d", 5)
TEXT(get_pstate, "%s", "P0")
TEXT(get_capability, "%d.%d", view->hardware.compute / 10, view->hardware.compute % 10)
TEXT(get_compute_mode, "%s", "Default")
TEXT(get_recovery, "%s", gpu->recovery)
TEXT(get_fabric, "%s", gpu->fabric)
TEXT(get_fabric_status, "%s", gpu->fabric_status)
TEXT(get_tlimit, "%d", gpu->tlimit)
TEXT(get_hw_thermal, "%lld", gpu->hw_thermal_us)
TEXT(get_power_brake, "%lld", gpu->power_brake_us)
TEXT(get_sw_thermal, "%lld", gpu->sw_thermal_us)
TEXT(get_reasons, "0x%016llX", gpu->event_reasons)
TEXT(get_none, "%s", "[N/A]")
TEXT(get_zero, "%s", "0")
TEXT(get_corrected, "%lld", gpu->ecc_corrected)
TEXT(get_uncorrected, "%lld", gpu->ecc_uncorrected)
TEXT(get_corrected_aggregate, "%lld", gpu->ecc_corrected_aggregate)
TEXT(get_uncorrected_aggregate, "%lld", gpu->ecc_uncorrected_aggregate)

GET(get_bus_id)
{
    (void)view;
    fm_pci_text(gpu, 8, out, size);
}

GET(get_timestamp)
{
    struct timespec now;
    struct tm local;
    (void)view, (void)gpu;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t length = strftime(out, size, "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
    snprintf(out + length, size - length, ".%03ld", now.tv_nsec / 1000000);
}

/* Remapped rows are not told while MIG is on. */
static void remapped(const struct fm_gpu *gpu, char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", gpu->mig ? "[N/A]" : text);
}

static void remapped_count(const struct fm_gpu *gpu, char *out, size_t size, long long count)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", count);
    remapped(gpu, out, size, text);
}

/* R590 says Yes or No, older drivers 1 or 0. */
static const char *yes(const struct view *view, int value)
{
    return view->driver_major >= 590 ? (value ? "Yes" : "No") : (value ? "1" : "0");
}

GET(get_remap_pending)
{
    remapped(gpu, out, size, yes(view, gpu->remap_pending));
}

GET(get_remap_failed)
{
    remapped(gpu, out, size, yes(view, gpu->remap_failed));
}

GET(get_remap_corrected)
{
    (void)view;
    remapped_count(gpu, out, size, gpu->remapped_corrected);
}

GET(get_remap_uncorrected)
{
    (void)view;
    remapped_count(gpu, out, size, gpu->remapped_uncorrected);
}

GET(get_sram_threshold)
{
    snprintf(out, size, "%s", yes(view, gpu->sram_threshold));
}

/* Application clocks are not told any more from R590 on. The clocks are those of an H100 or H200. */
static void application_clock(const struct view *view, char *out, size_t size, int mhz)
{
    if (view->driver_major >= 590)
        snprintf(out, size, "[Requested functionality has been deprecated]");
    else
        snprintf(out, size, "%d", mhz);
}

GET(get_application_clock)
{
    (void)gpu;
    application_clock(view, out, size, 1980);
}

GET(get_application_memory_clock)
{
    (void)gpu;
    application_clock(view, out, size, 2619);
}

TEXT(get_max_clock, "%d", 1980)
TEXT(get_power_limit, "%s", "700.00")

#define REASON(name, bit) TEXT(name, "%s", gpu->event_reasons & (bit) ? "Active" : "Not Active")
REASON(reason_idle, 0x1)
REASON(reason_application, 0x2)
REASON(reason_sw_power, 0x4)
REASON(reason_hw_slowdown, 0x8)
REASON(reason_sync_boost, 0x10)
REASON(reason_sw_thermal, 0x20)
REASON(reason_hw_thermal, 0x40)
REASON(reason_power_brake, 0x80)

/* From which driver on is known is our own guess for the fields that came after R470. */
static const struct field fields[] = {
    {"timestamp", 0, get_timestamp, 0},
    {"index", 0, get_index, 0},
    {"count", 0, get_count, 0},
    {"uuid", 0, get_uuid, 0},
    {"gpu_uuid", 0, get_uuid, 0},
    {"name", 0, get_name, 0},
    {"gpu_name", 0, get_name, 0},
    {"serial", 0, get_serial, 0},
    {"gpu_serial", 0, get_serial, 0},
    {"pci.bus_id", 0, get_bus_id, 0},
    {"gpu_bus_id", 0, get_bus_id, 0},
    {"driver_version", 0, get_driver, 0},
    {"vbios_version", 0, get_vbios, 0},
    {"memory.total", "MiB", get_memory_total, 0},
    {"memory.used", "MiB", get_memory_used, 0},
    {"memory.free", "MiB", get_memory_free, 0},
    {"temperature.gpu", 0, get_temperature, 0},
    {"temperature.gpu.tlimit", 0, get_tlimit, 535},
    {"utilization.gpu", "%", get_zero, 0},
    {"persistence_mode", 0, get_persistence, 0},
    {"mig.mode.current", 0, get_mig, 0},
    {"mig.mode.pending", 0, get_mig, 0},
    {"ecc.mode.current", 0, get_enabled, 0},
    {"ecc.mode.pending", 0, get_enabled, 0},
    {"pcie.link.width.current", 0, get_width, 0},
    {"pcie.link.width.max", 0, get_width_max, 0},
    {"pcie.link.gen.current", 0, get_gen, 0},
    {"pcie.link.gen.max", 0, get_gen_max, 0},
    {"pstate", 0, get_pstate, 0},
    {"compute_cap", 0, get_capability, 0},
    {"compute_mode", 0, get_compute_mode, 0},
    {"clocks.applications.graphics", "MHz", get_application_clock, 0},
    {"clocks.default_applications.graphics", "MHz", get_application_clock, 0},
    {"clocks.applications.memory", "MHz", get_application_memory_clock, 0},
    {"clocks.default_applications.memory", "MHz", get_application_memory_clock, 0},
    {"clocks.max.graphics", "MHz", get_max_clock, 0},
    {"power.limit", "W", get_power_limit, 0},
    {"power.default_limit", "W", get_power_limit, 0},
    {"gpu_recovery_action", 0, get_recovery, 560},
    {"fabric.state", 0, get_fabric, 535},
    {"fabric.status", 0, get_fabric_status, 535},
    {"ecc.errors.corrected.volatile.total", 0, get_corrected, 0},
    {"ecc.errors.corrected.aggregate.total", 0, get_corrected_aggregate, 0},
    {"ecc.errors.uncorrected.volatile.total", 0, get_uncorrected, 0},
    {"ecc.errors.uncorrected.aggregate.total", 0, get_uncorrected_aggregate, 0},
    {"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", 0, get_sram_threshold, 550},
    {"retired_pages.single_bit_ecc.count", 0, get_none, 0},
    {"retired_pages.double_bit.count", 0, get_none, 0},
    {"retired_pages.pending", 0, get_none, 0},
    {"remapped_rows.correctable", 0, get_remap_corrected, 0},
    {"remapped_rows.uncorrectable", 0, get_remap_uncorrected, 0},
    {"remapped_rows.pending", 0, get_remap_pending, 0},
    {"remapped_rows.failure", 0, get_remap_failed, 0},
    {"clocks_event_reasons.active", 0, get_reasons, 535},
    {"clocks_event_reasons.gpu_idle", 0, reason_idle, 535},
    {"clocks_event_reasons.applications_clocks_setting", 0, reason_application, 535},
    {"clocks_event_reasons.sw_power_cap", 0, reason_sw_power, 535},
    {"clocks_event_reasons.hw_slowdown", 0, reason_hw_slowdown, 535},
    {"clocks_event_reasons.sync_boost", 0, reason_sync_boost, 535},
    {"clocks_event_reasons.sw_thermal_slowdown", 0, reason_sw_thermal, 535},
    {"clocks_event_reasons.hw_thermal_slowdown", 0, reason_hw_thermal, 535},
    {"clocks_event_reasons.hw_power_brake_slowdown", 0, reason_power_brake, 535},
    {"clocks_event_reasons_counters.sw_power_cap", "us", get_zero, 560},
    {"clocks_event_reasons_counters.sw_thermal_slowdown", "us", get_sw_thermal, 560},
    {"clocks_event_reasons_counters.hw_thermal_slowdown", "us", get_hw_thermal, 560},
    {"clocks_event_reasons_counters.hw_power_brake_slowdown", "us", get_power_brake, 560},
    {"clocks_throttle_reasons.active", 0, get_reasons, 0},
    {"clocks_throttle_reasons.gpu_idle", 0, reason_idle, 0},
    {"clocks_throttle_reasons.sw_power_cap", 0, reason_sw_power, 0},
    {"clocks_throttle_reasons.hw_slowdown", 0, reason_hw_slowdown, 0},
    {"clocks_throttle_reasons.hw_thermal_slowdown", 0, reason_hw_thermal, 0},
    {"clocks_throttle_reasons.hw_power_brake_slowdown", 0, reason_power_brake, 0},
    {"clocks_throttle_reasons.sw_thermal_slowdown", 0, reason_sw_thermal, 0},
};

const struct field *fm_field(const struct view *view, const char *name)
{
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i].name, name) && view->driver_major >= fields[i].since)
            return &fields[i];
    return NULL;
}
