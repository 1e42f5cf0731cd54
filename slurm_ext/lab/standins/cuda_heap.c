/* Device memory of this process: one sparse file in memory, which the other ranks of its node may map, as GPUs reach one
 * another over NVLink. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAP_SIZE ((size_t)2 << 40) /* of addresses; memory is taken as it is written to */

struct block {
    size_t at, size;
    struct block *next; /* in the order of addresses */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static char *base;
static int descriptor = -1;
static pid_t made_in;

/* Make the heap; a forked process gets one of its own. */
static int ready(void)
{
    if (base && made_in == getpid())
        return 1;
    if (base) {
        munmap(base, HEAP_SIZE);
        close(descriptor);
        blocks = NULL;
    }
    base = NULL;
    descriptor = memfd_create("fmslurm-gpu", MFD_CLOEXEC);
    if (descriptor < 0)
        return 0;
    void *memory = MAP_FAILED;
    if (!ftruncate(descriptor, (off_t)HEAP_SIZE))
        memory = mmap(NULL, HEAP_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (memory == MAP_FAILED) {
        close(descriptor);
        return 0;
    }
    base = memory;
    made_in = getpid();
    return 1;
}

void *fm_heap_take(size_t size)
{
    void *memory = NULL;
    pthread_mutex_lock(&lock);
    struct block *block = ready() ? malloc(sizeof *block) : NULL, **place = &blocks;
    size_t at = 0;
    while (block && *place && (*place)->at - at < size) { /* the first gap that is wide enough */
        at = (*place)->at + (*place)->size;
        place = &(*place)->next;
    }
    if (block && HEAP_SIZE - at >= size) {
        *block = (struct block){at, size, *place};
        *place = block;
        memory = base + at;
    } else {
        free(block);
    }
    pthread_mutex_unlock(&lock);
    return memory;
}

void fm_heap_give(void *memory)
{
    pthread_mutex_lock(&lock);
    for (struct block **place = &blocks; *place; place = &(*place)->next)
        if (base + (*place)->at == memory) {
            struct block *gone = *place;
            *place = gone->next;
            madvise(memory, gone->size, MADV_REMOVE); /* whoever gets it next finds zeros */
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* Private door for the NCCL stand-in: where the heap begins here, its size, and its descriptor; -1 where there can be none. */
FM_EXPORT int fmcuda_heap(char **begin, size_t *size)
{
    pthread_mutex_lock(&lock);
    int found = ready() ? descriptor : -1;
    *begin = base;
    *size = HEAP_SIZE;
    pthread_mutex_unlock(&lock);
    return found;
}
