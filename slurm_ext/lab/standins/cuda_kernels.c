/* Native versions of the kernels that KERNELS.md describes; the page is the reference, not this file. */
#include "cuda.h"
#include "fast.h"

#include <string.h>

#define GOLDEN 0x9E3779B9u
#define RANK_STEP 2654435761u

struct result_record {
    uint64_t mismatches, first, checksum;
};

static inline uint32_t mix32(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return x;
}

static inline uint32_t triangle(uint32_t n)
{
    return (uint32_t)((uint64_t)n * (n - 1) / 2);
}

static inline uint32_t value_u32(uint32_t pattern, uint32_t rank, uint32_t i)
{
    if (pattern == 0)
        return i + rank * RANK_STEP;
    if (pattern == 1)
        return (i + rank) & 1 ? 0xAAAAAAAAu : 0x55555555u;
    return mix32(i) + rank * (mix32(i ^ GOLDEN) | 1);
}

static inline uint32_t expected_u32(uint32_t pattern, uint32_t n, uint32_t i)
{
    if (pattern == 0)
        return n * i + triangle(n) * RANK_STEP;
    if (pattern == 1) {
        uint32_t even = (uint32_t)(((uint64_t)n + 1 - (i & 1)) / 2);
        return even * 0x55555555u + (n - even) * 0xAAAAAAAAu;
    }
    return n * mix32(i) + triangle(n) * (mix32(i ^ GOLDEN) | 1);
}

/* One loop for each pattern, so that the compiler can turn it into vector code. */
FAST static void fill_u32(uint32_t *out, uint64_t count, uint32_t pattern, uint32_t rank)
{
#define FILL(p)                          \
    for (uint64_t i = 0; i < count; i++) \
    out[i] = value_u32(p, rank, (uint32_t)i)
    if (pattern == 0)
        FILL(0);
    else if (pattern == 1)
        FILL(1);
    else
        FILL(2);
#undef FILL
}

#define BLOCK 65536u

FAST static struct result_record check_u32(const uint32_t *in, uint64_t count, uint32_t pattern, uint32_t n)
{
    struct result_record found = {0, UINT64_MAX, 0};
    uint64_t wrong = 0, sum = 0;
/* In blocks: within one the factor 2*i + 1 is a 32-bit number on top of the block's own. */
#define CHECK(p)                                                               \
    for (uint64_t at = 0; at < count; at += BLOCK) {                           \
        uint32_t many = count - at < BLOCK ? (uint32_t)(count - at) : BLOCK;   \
        uint32_t bad = 0;                                                      \
        uint64_t plain = 0, weighted = 0;                                      \
        for (uint32_t i = 0; i < many; i++) {                                  \
            uint32_t x = in[at + i];                                           \
            bad += x != expected_u32(p, n, (uint32_t)at + i);                  \
            plain += x;                                                        \
            weighted += (uint64_t)x * (2 * i + 1);                             \
        }                                                                      \
        wrong += bad;                                                          \
        sum += weighted + plain * (2 * at);                                    \
    }                                                                          \
    for (uint64_t i = 0; wrong && i < count; i++)                              \
        if (in[i] != expected_u32(p, n, (uint32_t)i)) {                        \
            found.first = i;                                                   \
            break;                                                             \
        }
    if (pattern == 0) {
        CHECK(0)
    } else if (pattern == 1) {
        CHECK(1)
    } else {
        CHECK(2)
    }
#undef CHECK
#undef BLOCK
    found.mismatches = wrong;
    found.checksum = sum;
    return found;
}

static uint16_t bf16(uint32_t whole)
{
    float number = (float)whole;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint32_t modulus(uint32_t n)
{
    return n <= 36 ? 8 : n <= 85 ? 4 : 2;
}

static uint32_t value_bf16(uint32_t n, uint32_t rank, uint64_t i)
{
    return n > 256 ? (i + rank) % n < 256 : (uint32_t)((i + rank) % modulus(n));
}

static uint32_t expected_bf16(uint32_t n, uint64_t i)
{
    if (n > 256)
        return 256;
    uint32_t m = modulus(n), sum = n / m * (m * (m - 1) / 2);
    for (uint32_t j = 0; j < n % m; j++)
        sum += (uint32_t)((i + j) % m);
    return sum;
}

/* Both repeat: a table of one period is enough. */
FAST static void fill_bf16(uint16_t *out, uint64_t count, uint32_t n, uint32_t rank)
{
    if (n > 256) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = bf16(value_bf16(n, rank, i));
        return;
    }
    uint16_t period[8];
    for (unsigned i = 0; i < 8; i++)
        period[i] = bf16(value_bf16(n, rank, i));
    for (uint64_t i = 0; i < count; i++)
        out[i] = period[i & 7];
}

FAST static struct result_record check_bf16(const uint16_t *in, uint64_t count, uint32_t n)
{
    struct result_record found = {0, UINT64_MAX, 0};
    uint16_t period[8];
    for (unsigned i = 0; i < 8; i++)
        period[i] = bf16(expected_bf16(n, i));
    for (uint64_t i = 0; i < count; i++) {
        if (in[i] != period[i & 7]) {
            found.mismatches++;
            if (found.first == UINT64_MAX)
                found.first = i;
        }
        found.checksum += in[i] * (2 * i + 1);
    }
    return found;
}

/* What a stray pointer or a misaligned one does on a device. */
static CUresult reachable(struct context *context, uint64_t address, uint64_t count, uint64_t width)
{
    if (address % width)
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    if (count > UINT64_MAX / width || !fm_range_valid(context, address, count * width))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}

static CUresult add_to(struct context *context, uint64_t address, const struct result_record *found)
{
    CUresult result = reachable(context, address, 3, 8);
    if (result)
        return result;
    uint64_t *record = (uint64_t *)address;
    __sync_add_and_fetch(&record[0], found->mismatches);
    for (uint64_t before = record[1]; found->first < before; before = record[1])
        if (__sync_bool_compare_and_swap(&record[1], before, found->first))
            break;
    __sync_add_and_fetch(&record[2], found->checksum);
    return CUDA_SUCCESS;
}

static CUresult run_fill_u32(struct context *context, const uint64_t v[])
{
    CUresult result = reachable(context, v[0], v[1], 4);
    if (!result)
        fill_u32((uint32_t *)v[0], v[1], (uint32_t)v[2], (uint32_t)v[3]);
    return result;
}

static CUresult run_check_u32(struct context *context, const uint64_t v[])
{
    CUresult result = reachable(context, v[0], v[1], 4);
    if (result)
        return result;
    struct result_record found = check_u32((uint32_t *)v[0], v[1], (uint32_t)v[2], (uint32_t)v[3]);
    return add_to(context, v[4], &found);
}

static CUresult run_fill_bf16(struct context *context, const uint64_t v[])
{
    CUresult result = reachable(context, v[0], v[1], 2);
    if (!result)
        fill_bf16((uint16_t *)v[0], v[1], (uint32_t)v[4], (uint32_t)v[3]);
    return result;
}

static CUresult run_check_bf16(struct context *context, const uint64_t v[])
{
    CUresult result = reachable(context, v[0], v[1], 2);
    if (result)
        return result;
    struct result_record found = check_bf16((uint16_t *)v[0], v[1], (uint32_t)v[3]);
    return add_to(context, v[4], &found);
}

static uint32_t u32_at(void *const values[], int index)
{
    uint32_t value;
    memcpy(&value, values[index], sizeof value);
    return value;
}

static CUresult check_fill(void *const values[], uint32_t patterns)
{
    return u32_at(values, 2) < patterns && u32_at(values, 3) < u32_at(values, 4) ? CUDA_SUCCESS
                                                                                 : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_check(void *const values[], uint32_t patterns)
{
    return u32_at(values, 2) < patterns && u32_at(values, 3) >= 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_fill_u32(void *const values[])
{
    return check_fill(values, 3);
}

static CUresult check_fill_bf16(void *const values[])
{
    return check_fill(values, 1);
}

static CUresult check_check_u32(void *const values[])
{
    return check_check(values, 3);
}

static CUresult check_check_bf16(void *const values[])
{
    return check_check(values, 1);
}

static const struct native_kernel kernels[] = {
    {"fm_fill_u32", 5, {8, 8, 4, 4, 4}, check_fill_u32, run_fill_u32},
    {"fm_check_u32", 5, {8, 8, 4, 4, 8}, check_check_u32, run_check_u32},
    {"fm_fill_bf16", 5, {8, 8, 4, 4, 4}, check_fill_bf16, run_fill_bf16},
    {"fm_check_bf16", 5, {8, 8, 4, 4, 8}, check_check_bf16, run_check_bf16},
};

const struct native_kernel *fm_native_kernel(const char *name)
{
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    return 0;
}
