/* hardware.env as keys and values, and what each means. */
#ifndef FM_HARDWARE_TABLE_H
#define FM_HARDWARE_TABLE_H

#include "hardware.h"

#include <stddef.h>

#define FM_MAX_KEYS 512

struct table {
    int count;
    struct {
        char *key, *value;
    } pair[FM_MAX_KEYS];
};

void fm_table_split(char *text, struct table *table); /* in place; what is no key=value line is ignored */
const char *fm_text_of(const struct table *table, const char *key, const char *fallback);
long long fm_number_of(const struct table *table, const char *key, long long fallback);
int fm_word_in(const char *list, const char *word);
void fm_copy_text(char *out, size_t size, const char *text);

/* The faults under the keys `<prefix>nccl.*`; what is not set is as in `usual`. */
struct fm_faults fm_read_faults(const struct table *table, const char *prefix, const struct fm_faults *usual);

#endif
