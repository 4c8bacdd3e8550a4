// Answers every question for chance from a seed, the same in every thread: what a process draws is then the same each time.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

static __thread uint64_t state;
static __thread int seeded;

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
static uint64_t next(void) {
    if (!seeded) {
        const char *seed = getenv("HIGHWATER_TEST_SIM_SEED");
        state = seed ? strtoull(seed, NULL, 10) : 0;
        seeded = 1;
    }
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    (void)flags;
    unsigned char *bytes = buffer;
    for (size_t at = 0; at < length; at++)
        bytes[at] = (unsigned char)next();
    return (ssize_t)length;
}
