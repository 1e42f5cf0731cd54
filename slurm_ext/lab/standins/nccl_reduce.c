/* Element-wise reduction: into = into OP from. Half types are widened to float and rounded to nearest even. */
#include "nccl.h"
#include "fast.h"

#include <string.h>

static inline float bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#define SAME(x) (x)
#define LOOP(load, store, expression)                      \
    for (size_t i = 0; i < count; i++) {                  \
        b = load(in[i]), a = load(out[i]);                \
        out[i] = (__typeof__(*out))store(expression);     \
    }                                                     \
    break
#define REDUCER(name, type, wide, load, store)                                               \
    FAST static void name(type *restrict out, const type *restrict in, size_t count, int operation) \
    {                                                                                         \
        wide a, b;                                                                            \
        switch (operation) {                                                                  \
        case ncclSum:                                                                         \
            LOOP(load, store, (wide)(a + b));                                                       \
        case ncclProd:                                                                        \
            LOOP(load, store, (wide)(a * b));                                                       \
        case ncclMax:                                                                         \
            LOOP(load, store, a > b ? a : b);                                                       \
        default:                                                                              \
            LOOP(load, store, a < b ? a : b);                                                       \
        }                                                                                     \
    }

REDUCER(reduce_i8, int8_t, int, SAME, SAME)
REDUCER(reduce_u8, uint8_t, unsigned, SAME, SAME)
REDUCER(reduce_u32, uint32_t, uint32_t, SAME, SAME)
REDUCER(reduce_u64, uint64_t, uint64_t, SAME, SAME)
REDUCER(reduce_f16, _Float16, float, SAME, SAME)
REDUCER(reduce_f32, float, float, SAME, SAME)
REDUCER(reduce_f64, double, double, SAME, SAME)

/* Signed sums wrap as on the device: the wide type is unsigned for them, signed for comparisons. */
#define SIGNED_REDUCER(name, type, unsigned_type, unsigned_reducer)                                 \
    FAST static void name(type *restrict out, const type *restrict in, size_t count, int operation) \
    {                                                                                               \
        if (operation == ncclSum || operation == ncclProd) {                                        \
            unsigned_reducer((unsigned_type *)out, (const unsigned_type *)in, count, operation);    \
            return;                                                                                 \
        }                                                                                           \
        for (size_t i = 0; i < count; i++)                                                          \
            out[i] = (operation == ncclMax) == (in[i] > out[i]) ? in[i] : out[i];                   \
    }
SIGNED_REDUCER(reduce_i32, int32_t, uint32_t, reduce_u32)
SIGNED_REDUCER(reduce_i64, int64_t, uint64_t, reduce_u64)

REDUCER(reduce_bf16, uint16_t, float, bf16_to_float, bf16_from_float)

void fm_reduce(void *into, const void *from, size_t count, int type, int operation)
{
    switch (type) {
    case fm_i8:
        reduce_i8(into, from, count, operation);
        break;
    case fm_u8:
        reduce_u8(into, from, count, operation);
        break;
    case fm_i32:
        reduce_i32(into, from, count, operation);
        break;
    case fm_u32:
        reduce_u32(into, from, count, operation);
        break;
    case fm_i64:
        reduce_i64(into, from, count, operation);
        break;
    case fm_u64:
        reduce_u64(into, from, count, operation);
        break;
    case fm_f16:
        reduce_f16(into, from, count, operation);
        break;
    case fm_f32:
        reduce_f32(into, from, count, operation);
        break;
    case fm_f64:
        reduce_f64(into, from, count, operation);
        break;
    default:
        reduce_bf16(into, from, count, operation);
        break;
    }
}

size_t fm_type_size(int type)
{
    static const unsigned char sizes[fm_types] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < fm_types ? sizes[type] : 0;
}
