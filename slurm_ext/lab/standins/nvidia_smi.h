/* Inside of the nvidia-smi stand-in: one look at the hardware, and the fields that can be asked for. */
#ifndef FM_NVIDIA_SMI_H
#define FM_NVIDIA_SMI_H

#include "hardware.h"

#include <stddef.h>

struct view {
    struct fm_hardware hardware;
    int driver_major;
    int header, units;
    int chosen; /* -i: position, -1 for all */
};

typedef void (*getter)(const struct view *view, const struct fm_gpu *gpu, char *out, size_t size);

struct field {
    const char *name, *unit; /* the header shows the unit as " [unit]", values as " unit" */
    getter get;
    int since; /* first driver that knows the field */
};

/* NULL where this driver knows no such field. */
const struct field *fm_field(const struct view *view, const char *name);

#endif
