/* Modules: the PTX text is read for its header and its .entry names and parameters, not executed. */
#define _GNU_SOURCE
#include "cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PTX (16 << 20)
#define MAX_ENTRIES 32
#define MODULE_MAGIC 0x6d6f64756c652121ULL

struct function {
    uint64_t magic;
    char name[128];
    int parameters;
    unsigned char sizes[32];
    const struct native_kernel *native; /* NULL: this stand-in cannot run it */
};

struct module {
    uint64_t magic;
    int entries;
    struct function entry[MAX_ENTRIES];
};

/* A copy of the text without comments. */
static char *without_comments(const char *text)
{
    size_t length = strnlen(text, MAX_PTX);
    char *clean = malloc(length + 1), *out = clean;
    for (const char *at = text, *end = text + length; clean && at < end;) {
        if (!strncmp(at, "//", 2)) {
            while (at < end && *at != '\n')
                at++;
        } else if (!strncmp(at, "/*", 2)) {
            const char *close = strstr(at + 2, "*/");
            at = close ? close + 2 : end;
            *out++ = ' ';
        } else {
            *out++ = *at++;
        }
    }
    if (clean)
        *out = 0;
    return clean;
}

/* Newest PTX version that a driver of this CUDA version accepts, as major*10+minor (PTX ISA, release history). */
static int newest_ptx(int cuda_version)
{
    static const int known[][2] = {{11080, 78}, {12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84},
                                   {12050, 85}, {12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91}};
    int newest = 0;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (cuda_version >= known[i][0])
            newest = known[i][1];
    return newest;
}

static CUresult check_header(const char *text)
{
    struct fm_hardware hardware;
    int major, minor, target;
    const char *version = strstr(text, ".version"), *sm = strstr(text, ".target");
    fm_hardware_read(&hardware);
    if (!version || sscanf(version + 8, " %d.%d", &major, &minor) != 2 || !sm || !strstr(text, ".address_size"))
        return CUDA_ERROR_INVALID_PTX;
    if (major * 10 + minor > newest_ptx(hardware.cuda_version))
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (sscanf(sm + 7, " sm_%d", &target) != 1)
        return CUDA_ERROR_INVALID_PTX;
    return target > hardware.compute ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

static const char *copy_name(const char *at, char *name, size_t size)
{
    size_t length = 0;
    at += strspn(at, " \t\r\n");
    while ((isalnum((unsigned char)*at) || strchr("_$%", *at)) && *at && length + 1 < size)
        name[length++] = *at++;
    name[length] = 0;
    return at;
}

/* One entry: name ( .param .u64 a, .param .u32 b, ... ). */
static CUresult read_entry(const char *at, struct function *entry)
{
    at = copy_name(at, entry->name, sizeof entry->name);
    at += strspn(at, " \t\r\n");
    entry->magic = MODULE_MAGIC;
    entry->native = fm_native_kernel(entry->name);
    if (!*entry->name)
        return CUDA_ERROR_INVALID_PTX;
    if (*at == '(') {
        const char *end = strchr(at, ')');
        if (!end)
            return CUDA_ERROR_INVALID_PTX;
        while ((at = strstr(at, ".param")) && at < end && entry->parameters < 32) {
            char type;
            int bits;
            at += 6;
            if (sscanf(at, " .%c%d", &type, &bits) != 2 || !strchr("ubsf", type) || bits % 8 || bits > 64)
                return CUDA_ERROR_INVALID_PTX;
            entry->sizes[entry->parameters++] = (unsigned char)(bits / 8);
        }
    }
    const struct native_kernel *native = entry->native;
    if (native && (native->parameters != entry->parameters ||
                   memcmp(native->sizes, entry->sizes, (size_t)native->parameters) != 0)) {
        fprintf(stderr, "libcuda stand-in: parameters of %s differ from KERNELS.md\n", entry->name);
        return CUDA_ERROR_INVALID_PTX;
    }
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!memcmp(image, "\177ELF", 4) || !memcmp(image, "\x50\xed\x55\xba", 4))
        return CUDA_ERROR_NO_BINARY_FOR_GPU; /* cubin and fatbin: machine code that nobody here can run */
    char *text = without_comments(image);
    struct module *module = calloc(1, sizeof *module);
    result = text && module ? check_header(text) : CUDA_ERROR_OUT_OF_MEMORY;
    const char *at = text;
    while (!result && (at = strstr(at, ".entry")) && module->entries < MAX_ENTRIES) {
        at += 6;
        result = read_entry(at, &module->entry[module->entries++]);
    }
    free(text);
    if (result) {
        free(module);
        return result;
    }
    module->magic = MODULE_MAGIC;
    *out = module;
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned options, int *names, void **values)
{
    (void)options, (void)names, (void)values;
    return cuModuleLoadData(out, image);
}

FM_EXPORT CUresult cuModuleUnload(CUmodule module)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    fm_context_drain(context);
    module->magic = 0;
    free(module);
    return CUDA_SUCCESS;
}

FM_EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    struct context *context;
    CUresult result = fm_enter(&context);
    if (result)
        return result;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < module->entries; i++)
        if (!strcmp(module->entry[i].name, name)) {
            *out = &module->entry[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

struct launch {
    struct context *context;
    const struct native_kernel *native;
    uint64_t values[5];
};

static void perform(void *argument)
{
    struct launch *launch = argument;
    if (!fm_context_health(launch->context)) {
        CUresult result = launch->native->run(launch->context, launch->values);
        if (result)
            fm_context_fail(launch->context, result);
    }
    free(launch);
}

FM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                  CUstream handle, void **parameters, void **extra)
{
    struct context *context;
    struct stream *stream;
    CUresult result = fm_enter(&context);
    if (!result)
        result = fm_stream_resolve(context, handle, &stream);
    if (result)
        return result;
    if (!function || function->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || grid_x > 0x7fffffff || grid_y > 65535 || grid_z > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (!block_x || !block_y || !block_z || block_x > 1024 || block_y > 1024 || block_z > 64 ||
        (uint64_t)block_x * block_y * block_z > 1024 || shared_bytes > 232448)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function->native)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (extra || !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < function->parameters; i++)
        if (!parameters[i])
            return CUDA_ERROR_INVALID_VALUE;
    if ((result = function->native->check(parameters)))
        return result;
    struct launch *launch = calloc(1, sizeof *launch);
    if (!launch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    launch->context = context;
    launch->native = function->native;
    for (int i = 0; i < function->parameters; i++)
        memcpy(&launch->values[i], parameters[i], function->sizes[i]);
    fm_stream_order(context, stream);
    result = fm_stream_push(stream, perform, launch);
    if (result)
        free(launch);
    return result;
}
