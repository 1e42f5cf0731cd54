/* nvidia-smi: -L, --query-gpu, --query-compute-apps, nvlink and the default table, with the words and exit codes of the real one. */
#define _GNU_SOURCE
#include "nvidia_smi.h"
#include "processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FIELDS 64
#define EXIT_USAGE 2
#define EXIT_DRIVER 9
#define EXIT_LOST 15
#define EXIT_MISMATCH 18

/* A lost card spoils the whole answer; the words name it. */
static int lost(const struct view *view)
{
    char bus[32];
    int found = 0;
    for (int i = 0; i < view->hardware.gpus; i++)
        if (view->hardware.gpu[i].lost && (view->chosen < 0 || view->chosen == i)) {
            fm_pci_text(&view->hardware.gpu[i], 4, bus, sizeof bus);
            fprintf(stderr, "Unable to determine the device handle for GPU%s: GPU is lost.  Reboot the system to recover this GPU\n",
                    bus);
            found = EXIT_LOST;
        }
    return found;
}

static int list(const struct view *view)
{
    for (int i = 0; i < view->hardware.gpus; i++)
        if (!view->hardware.gpu[i].lost)
            printf("GPU %d: %s (UUID: %s)\n", i, view->hardware.model, view->hardware.gpu[i].uuid);
    fflush(stdout);
    return lost(view);
}

static int query(const struct view *view, char *names)
{
    const struct field *wanted[MAX_FIELDS];
    char value[128], *save;
    int count = 0;
    for (char *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        name += strspn(name, " ");
        const struct field *field = fm_field(view, name);
        if (!field || count == MAX_FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return EXIT_USAGE;
        }
        wanted[count++] = field;
    }
    if (lost(view))
        return EXIT_LOST;
    for (int i = 0; view->header && i < count; i++)
        printf("%s%s%s%s%s", i ? ", " : "", wanted[i]->name, wanted[i]->unit ? " [" : "",
               wanted[i]->unit ? wanted[i]->unit : "", wanted[i]->unit ? "]" : "");
    if (view->header)
        putchar('\n');
    for (int gpu = 0; gpu < view->hardware.gpus; gpu++) {
        if (view->chosen >= 0 && view->chosen != gpu)
            continue;
        for (int i = 0; i < count; i++) {
            wanted[i]->get(view, &view->hardware.gpu[gpu], value, sizeof value);
            printf("%s%s%s%s", i ? ", " : "", value, view->units && wanted[i]->unit ? " " : "",
                   view->units && wanted[i]->unit ? wanted[i]->unit : "");
        }
        putchar('\n');
    }
    return 0;
}

static void process_name(int pid, char *out, size_t size)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = 0; /* ends at the first argument's zero */
        fclose(file);
    }
    snprintf(out, size, "%s", *text ? text : "[Not Found]");
}

static int query_processes(const struct view *view, char *names)
{
    static const char *const known[] = {"pid", "process_name", "name", "gpu_uuid", "gpu_bus_id", "used_memory", "used_gpu_memory"};
    char *wanted[MAX_FIELDS], *save, text[256];
    int pids[256], count = 0;
    for (char *name = strtok_r(names, ",", &save); name && count < MAX_FIELDS; name = strtok_r(NULL, ",", &save)) {
        unsigned i = 0;
        name += strspn(name, " ");
        while (i < sizeof known / sizeof *known && strcmp(name, known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof *known) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return EXIT_USAGE;
        }
        wanted[count++] = name;
    }
    if (lost(view))
        return EXIT_LOST;
    for (int i = 0; view->header && i < count; i++)
        printf("%s%s%s", i ? ", " : "", wanted[i], strncmp(wanted[i], "used", 4) ? "" : " [MiB]");
    if (view->header)
        putchar('\n');
    for (int gpu = 0; gpu < view->hardware.gpus; gpu++) {
        int found = fm_process_list(&view->hardware, view->hardware.gpu[gpu].number, pids, 256);
        for (int at = 0; at < found; at++) {
            for (int i = 0; i < count; i++) {
                if (!strcmp(wanted[i], "pid"))
                    snprintf(text, sizeof text, "%d", pids[at]);
                else if (strstr(wanted[i], "name"))
                    process_name(pids[at], text, sizeof text);
                else if (!strcmp(wanted[i], "gpu_uuid"))
                    snprintf(text, sizeof text, "%s", view->hardware.gpu[gpu].uuid);
                else if (!strcmp(wanted[i], "gpu_bus_id"))
                    fm_pci_text(&view->hardware.gpu[gpu], 8, text, sizeof text);
                else
                    snprintf(text, sizeof text, "[N/A]");
                printf("%s%s", i ? ", " : "", text);
            }
            putchar('\n');
        }
    }
    return 0;
}

/* nvlink -s and -e, as R570 prints them for an H100. A lost card spoils the answer here, too. */
static int links(const struct view *view, int errors)
{
    if (lost(view))
        return EXIT_LOST;
    for (int i = 0; i < view->hardware.gpus; i++) {
        const struct fm_gpu *gpu = &view->hardware.gpu[i];
        if (view->chosen >= 0 && view->chosen != i)
            continue;
        printf("GPU %d: %s (UUID: %s)\n", i, view->hardware.model, gpu->uuid);
        for (int link = 0; link < view->hardware.nvlinks; link++) {
            if (errors)
                printf("\t Link %d: Replay Errors: %lld\n\t Link %d: Recovery Errors: 0\n\t Link %d: CRC Errors: 0\n\n",
                       link, link ? 0 : gpu->nvlink_errors, link, link);
            else if (link < gpu->nvlinks)
                printf("\t Link %d: %s GB/s\n", link, view->hardware.compute >= 100 ? "53.125" : view->hardware.compute >= 90 ? "26.562" : "25");
            else
                printf("\t Link %d: <inactive>\n", link);
        }
    }
    return 0;
}

static int table(const struct view *view)
{
    char bus[32];
    if (lost(view))
        return EXIT_LOST;
    printf("fmslurm lab: SIMULATED hardware of node %s (%s), no real GPU\n", view->hardware.node, view->hardware.type);
    printf("NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %d.%d\n", view->hardware.driver_version,
           view->hardware.driver_version, view->hardware.cuda_version / 1000, view->hardware.cuda_version / 10 % 100);
    for (int i = 0; i < view->hardware.gpus; i++) {
        const struct fm_gpu *gpu = &view->hardware.gpu[i];
        fm_pci_text(gpu, 8, bus, sizeof bus);
        printf("| %2d  %-26s %s | %s | %3dC | %6lldMiB / %lldMiB | ECC %lld |\n", i, view->hardware.model,
               gpu->persistence ? "On " : "Off", bus, gpu->temperature, gpu->memory_used_mib, view->hardware.memory_mib,
               gpu->ecc_uncorrected);
    }
    return 0;
}

static int driver_answers(const struct view *view)
{
    if (!view->hardware.found) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
        return EXIT_DRIVER;
    }
    if (view->hardware.driver_init_error == EXIT_MISMATCH)
        printf("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: %s\n",
               view->hardware.driver_version);
    else if (view->hardware.driver_init_error)
        printf("Failed to initialize NVML: Unknown Error\n");
    if (view->hardware.driver_init_error)
        return view->hardware.driver_init_error;
    if (!view->hardware.gpus) {
        printf("No devices were found\n");
        return 6;
    }
    return 0;
}

static int choose(struct view *view, const char *word)
{
    char *end;
    long index = strtol(word, &end, 10);
    view->chosen = -1;
    for (int i = 0; i < view->hardware.gpus; i++)
        if ((*word && !*end && index == i) || !strcmp(word, view->hardware.gpu[i].uuid))
            view->chosen = i;
    if (view->chosen < 0)
        printf("No devices were found\n");
    return view->chosen < 0 ? 6 : 0;
}

/* The value of --name=value. */
static char *value_of(char *argument, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(argument, name, length) && argument[length] == '=' ? argument + length + 1 : NULL;
}

int main(int argc, char **argv)
{
    struct view view = {.header = 1, .units = 1, .chosen = -1};
    char *gpu_fields = NULL, *process_fields = NULL, *format = NULL, *chosen = NULL, *value;
    int listing = 0, nvlink = argc > 1 && !strcmp(argv[1], "nvlink"), errors = 0;
    fm_hardware_started_as(argv[0]);
    for (int i = 1 + nvlink; i < argc; i++) {
        if (nvlink && (!strcmp(argv[i], "-s") || !strcmp(argv[i], "--status")))
            errors = 0;
        else if (nvlink && (!strcmp(argv[i], "-e") || !strcmp(argv[i], "--errorcounters")))
            errors = 1;
        else if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
            listing = 1;
        else if (!strcmp(argv[i], "-i") && i + 1 < argc)
            chosen = argv[++i];
        else if ((value = value_of(argv[i], "--id")))
            chosen = value;
        else if ((value = value_of(argv[i], "--query-gpu")))
            gpu_fields = value;
        else if ((value = value_of(argv[i], "--query-compute-apps")))
            process_fields = value;
        else if ((value = value_of(argv[i], "--format")))
            format = value;
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. "
                   "(the lab's simulated nvidia-smi does not know %s)\n", argv[i]);
            return 1;
        }
    }
    fm_hardware_read(&view.hardware);
    while (view.hardware.found && view.hardware.smi_hang)
        pause();
    view.driver_major = atoi(view.hardware.driver_version);
    int result = driver_answers(&view);
    if (!result && chosen)
        result = choose(&view, chosen);
    if (result)
        return result;
    if (listing)
        return list(&view);
    if (nvlink)
        return links(&view, errors);
    if (!gpu_fields && !process_fields)
        return table(&view);
    if (!format || strncmp(format, "csv", 3) != 0) {
        printf("Error: --format=csv is required with --query-*\n");
        return EXIT_USAGE;
    }
    view.header = !strstr(format, "noheader");
    view.units = !strstr(format, "nounits");
    return gpu_fields ? query(&view, gpu_fields) : query_processes(&view, process_fields);
}
