/* For loops over whole buffers: vectors, of 32 bytes on CPUs that have them. A burn-in touches every element dozens of times. */
#ifndef FM_FAST_H
#define FM_FAST_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((optimize("O3"), target_clones("avx2", "default")))
#else
#define FAST __attribute__((optimize("O3")))
#endif

#endif
