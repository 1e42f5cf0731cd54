/* hardware.env as keys and values, and the faults of NCCL that they ask for. */
#define _GNU_SOURCE
#include "hardware_table.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *fm_text_of(const struct table *table, const char *key, const char *fallback)
{
    for (int i = table->count - 1; i >= 0; i--) /* the last line of a key wins */
        if (!strcmp(table->pair[i].key, key))
            return table->pair[i].value;
    return fallback;
}

long long fm_number_of(const struct table *table, const char *key, long long fallback)
{
    const char *text = fm_text_of(table, key, "");
    char *end;
    long long value = strtoll(text, &end, 0);
    return *text && !*end ? value : fallback;
}

int fm_word_in(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t piece = strcspn(at, ", ");
        if (piece == length && !strncmp(at, word, length))
            return 1;
        at += piece;
        at += strspn(at, ", ");
    }
    return 0;
}

void fm_copy_text(char *out, size_t size, const char *text)
{
    size_t length = strlen(text);
    if (length >= size)
        length = size - 1;
    memcpy(out, text, length);
    out[length] = 0;
}

/* Split the text in place into key=value pairs; anything else is ignored. */
void fm_table_split(char *text, struct table *table)
{
    table->count = 0;
    for (char *line = strtok_r(text, "\n", &text); line && table->count < FM_MAX_KEYS; line = strtok_r(NULL, "\n", &text)) {
        line += strspn(line, " \t");
        char *equals = strchr(line, '=');
        if (*line == '#' || !equals)
            continue;
        *equals = 0;
        for (char *end = equals + 1 + strlen(equals + 1); end > equals + 1 && isspace((unsigned char)end[-1]);)
            *--end = 0;
        table->pair[table->count].key = line;
        table->pair[table->count++].value = equals + 1;
    }
}

/* "init", "allreduce" or "allreduce:N" in a list of words with commas. */
static struct fm_place place_in(const char *list)
{
    static const char collective[] = "allreduce";
    struct fm_place place = {fm_word_in(list, "init"), 0};
    for (const char *at = list; *at;) {
        size_t piece = strcspn(at, ", "), name = sizeof collective - 1;
        if (piece >= name && !strncmp(at, collective, name) && (piece == name || at[name] == ':')) {
            place.step = piece == name ? 1 : atoi(at + name + 1);
            if (place.step < 1)
                place.step = 1;
        }
        at += piece;
        at += strspn(at, ", ");
    }
    return place;
}

struct fm_faults fm_read_faults(const struct table *table, const char *prefix, const struct fm_faults *usual)
{
    struct fm_faults faults = *usual;
    char key[64];
    const char *text;
#define FAULT_KEY(name) (snprintf(key, sizeof key, "%snccl." name, prefix), key)
    const struct {
        const char *name;
        struct fm_place *place;
    } places[] = {{"hang", &faults.hang}, {"crash", &faults.crash}, {"stop", &faults.stop},
                  {"dstate", &faults.dstate}, {"error_at", &faults.error}};
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(key, sizeof key, "%snccl.%s", prefix, places[i].name);
        if (*(text = fm_text_of(table, key, "")))
            *places[i].place = place_in(text);
    }
    if (*(text = fm_text_of(table, FAULT_KEY("hang"), "")))
        faults.hang_abort = fm_word_in(text, "abort");
    faults.error_code = (int)fm_number_of(table, FAULT_KEY("error"), faults.error_code);
    if (faults.error_code && !faults.error.init && !faults.error.step)
        faults.error.step = 1;
    faults.absent = fm_number_of(table, FAULT_KEY("absent"), faults.absent) != 0;
    faults.delay_ms = (int)fm_number_of(table, FAULT_KEY("delay_ms"), faults.delay_ms);
    faults.delay_after_ms = (int)fm_number_of(table, FAULT_KEY("delay_after_ms"), faults.delay_after_ms);
    faults.join_delay_ms = (int)fm_number_of(table, FAULT_KEY("join_delay_ms"), faults.join_delay_ms);
    faults.rate_mbit = (int)fm_number_of(table, FAULT_KEY("rate_mbit"), 0);
    text = fm_text_of(table, FAULT_KEY("wrong_result"), "");
    faults.flip_sent = fm_word_in(text, "1") || fm_word_in(text, "send");
    faults.flip_result = fm_word_in(text, "recv");
#undef FAULT_KEY
    return faults;
}

const struct fm_faults *fm_faults_of(const struct fm_hardware *hardware, int number)
{
    for (int i = 0; i < hardware->gpus; i++)
        if (hardware->gpu[i].number == number)
            return &hardware->gpu[i].faults;
    return &hardware->nccl;
}

void fm_write_to(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (write(file, "x", 1) != 1)
        errno = 0; /* it did not sleep: a fault that does not strike is seen by the test */
    close(file);
}
