/* Finds and applies the elements that changed between two buffers, and copies past the caches, also
 * hashing. Every function has a twin that gives the same bytes (changes.py, memcpy, xxhash); this one
 * is compiled where there is a compiler.
 *
 * A changed element is written as its gap to the one before (a byte, 255 = "255 more, go on") and
 * its step: the difference of the bit patterns, zigzagged, less one (a byte, 255 = "the new value
 * itself stands in `wide`"). Nothing here allocates; every input is checked against its length. */
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LINE 64
enum { GAPS, STEPS, WIDE, COUNTS };
enum { TOO_MANY = -1, POSITION = -2, LENGTH = -3 };

/* Bit i is set where byte i of two lines of 64 bytes differs. */
INLINE uint64_t differing(const uint8_t *a, const uint8_t *b) {
#if defined(__SSE2__)
    uint64_t equal = 0;
    for (int i = 0; i < 4; i++) {
        __m128i x = _mm_loadu_si128((const __m128i *)a + i);
        __m128i y = _mm_loadu_si128((const __m128i *)b + i);
        equal |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(x, y)) << (16 * i);
    }
    return ~equal;
#else
    uint64_t mask = 0;
    for (int i = 0; i < LINE; i += 8) {
        uint64_t x, y;
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y)
            for (int j = i; j < i + 8; j++) mask |= (uint64_t)(a[j] != b[j]) << j;
    }
    return mask;
#endif
}

/* Bit i * width is set where element i differs. */
INLINE uint64_t elements(uint64_t bytes, int width) {
    if (width >= 2) bytes |= bytes >> 1;
    if (width >= 4) bytes |= bytes >> 2;
    if (width >= 8) bytes |= bytes >> 4;
    switch (width) {
    case 1: return bytes;
    case 2: return bytes & 0x5555555555555555u;
    case 4: return bytes & 0x1111111111111111u;
    default: return bytes & 0x0101010101010101u;
    }
}

INLINE uint64_t load(const uint8_t *at, int width) {
    uint64_t value = 0;
    memcpy(&value, at, width); /* little-endian machines only: changes.py sees to that */
    return value;
}

INLINE uint64_t zigzag(uint64_t difference, int width) {
    int64_t wide = (int64_t)(difference << (64 - 8 * width)) >> (64 - 8 * width);
    return ((uint64_t)wide << 1) ^ (uint64_t)(wide >> 63);
}

INLINE uint64_t unzigzag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

/* The mask of the line at `at`; the last line of a buffer may be a short one. */
INLINE uint64_t line_at(const uint8_t *a, const uint8_t *b, int64_t at, int64_t bytes, int width) {
    if (at + LINE <= bytes) return elements(differing(a + at, b + at), width);
    uint8_t x[LINE] = {0}, y[LINE] = {0};
    memcpy(x, a + at, bytes - at);
    memcpy(y, b + at, bytes - at);
    return elements(differing(x, y), width);
}

/* Where the three streams are being written. */
struct streams {
    uint8_t *gaps, *steps, *wide;
    int64_t expected; /* the position after the last change */
};

INLINE void write_change(struct streams *to, const uint8_t *old, const uint8_t *new, int64_t byte,
                         int width, uint8_t *bits) {
    int64_t position = byte / width;
    if (bits) {
        bits[position >> 3] |= (uint8_t)(0x80 >> (position & 7)); /* numpy's order */
    } else {
        int64_t gap = position - to->expected;
        to->expected = position + 1;
        for (; gap >= 255; gap -= 255) *to->gaps++ = 255;
        *to->gaps++ = (uint8_t)gap;
    }
    uint64_t step = zigzag(load(new + byte, width) - load(old + byte, width), width) - 1;
    if (step < 255) {
        *to->steps++ = (uint8_t)step;
    } else {
        *to->steps++ = 255;
        memcpy(to->wide, new + byte, width);
        to->wide += width;
    }
}

/* Lines are looked at some at a time, without a branch, and those that differ gone through after:
 * whether one does cannot be foreseen, and half of the time went into guessing it. */
#define SOME 32

INLINE int64_t find(const uint8_t *old, const uint8_t *new, int64_t bytes, int width, uint8_t *bits,
                    uint8_t *gaps, uint8_t *steps, uint8_t *wide, int64_t most, int64_t *counts) {
    struct streams to = {gaps, steps, wide, 0};
    for (int64_t at = 0; at < bytes; at += SOME * LINE) {
        uint64_t masks[SOME];
        uint8_t lines[SOME];
        int differ = 0, left = (int)((bytes - at + LINE - 1) / LINE);
        if (left >= SOME && at + SOME * LINE <= bytes) {
            for (int i = 0; i < SOME; i++) {
                uint64_t mask = elements(differing(old + at + i * LINE, new + at + i * LINE), width);
                masks[differ] = mask;
                lines[differ] = (uint8_t)i;
                differ += mask != 0;
            }
        } else {
            for (int i = 0; i < left; i++) {
                uint64_t mask = line_at(old, new, at + i * LINE, bytes, width);
                masks[differ] = mask;
                lines[differ] = (uint8_t)i;
                differ += mask != 0;
            }
        }
        for (int i = 0; i < differ; i++) {
            uint64_t mask = masks[i];
            int64_t line = at + lines[i] * LINE;
            do {
                write_change(&to, old, new, line + __builtin_ctzll(mask), width, bits);
                mask &= mask - 1;
            } while (mask);
        }
        if (to.steps - steps > most) return TOO_MANY;
    }
    counts[GAPS] = to.gaps - gaps;
    counts[STEPS] = to.steps - steps;
    counts[WIDE] = (to.wide - wide) / width;
    return 0;
}

/* `bits` is zeroed by the caller, or NULL for gaps. `gaps` holds bytes / width * 256 / 255 + 1
 * bytes, `steps` bytes / width, `wide` as many bytes as the buffers: that is enough for any. It stops
 * soon after `most` changes. */
int64_t rltrace_find(const uint8_t *old, const uint8_t *new, int64_t bytes, int width, uint8_t *bits,
                     uint8_t *gaps, uint8_t *steps, uint8_t *wide, int64_t most, int64_t *counts) {
    switch (width) {
    case 1: return find(old, new, bytes, 1, bits, gaps, steps, wide, most, counts);
    case 2: return bits ? find(old, new, bytes, 2, bits, gaps, steps, wide, most, counts)
                        : find(old, new, bytes, 2, 0, gaps, steps, wide, most, counts);
    case 4: return find(old, new, bytes, 4, bits, gaps, steps, wide, most, counts);
    case 8: return find(old, new, bytes, 8, bits, gaps, steps, wide, most, counts);
    default: return LENGTH;
    }
}

/* Adds one step to the element at `position`. */
INLINE int put(uint8_t *out, int64_t position, int width, uint8_t step, const uint8_t **wide,
               const uint8_t *wide_end) {
    uint8_t *at = out + position * width;
    if (step < 255) {
        uint64_t value = load(at, width) + unzigzag((uint64_t)step + 1);
        memcpy(at, &value, width);
        return 0;
    }
    if (*wide + width > wide_end) return LENGTH;
    memcpy(at, *wide, width);
    *wide += width;
    return 0;
}

/* `out` holds the old values and becomes the new ones. */
int64_t rltrace_apply_gaps(uint8_t *out, int64_t count, int width, const uint8_t *gaps,
                           int64_t gap_bytes, const uint8_t *steps, int64_t step_bytes,
                           const uint8_t *wide, int64_t wide_bytes) {
    const uint8_t *wide_end = wide + wide_bytes;
    int64_t position = 0, step = 0;
    for (int64_t i = 0; i < gap_bytes; i++) {
        position += gaps[i];
        if (gaps[i] == 255) continue;
        if (position >= count) return POSITION;
        if (step >= step_bytes || put(out, position, width, steps[step], &wide, wide_end))
            return LENGTH;
        step++;
        position++;
    }
    return step == step_bytes && wide == wide_end ? 0 : LENGTH;
}

int64_t rltrace_apply_bits(uint8_t *out, int64_t count, int width, const uint8_t *bits,
                           int64_t bit_bytes, const uint8_t *steps, int64_t step_bytes,
                           const uint8_t *wide, int64_t wide_bytes) {
    if (bit_bytes != (count + 7) / 8) return LENGTH;
    const uint8_t *wide_end = wide + wide_bytes;
    int64_t step = 0;
    for (int64_t i = 0; i < bit_bytes; i++) {
        unsigned byte = bits[i];
        while (byte) {
            int lead = __builtin_clz(byte) - 24;
            int64_t position = i * 8 + lead;
            byte &= ~(0x80u >> lead);
            if (position >= count) return POSITION;
            if (step >= step_bytes || put(out, position, width, steps[step], &wide, wide_end))
                return LENGTH;
            step++;
        }
    }
    return step == step_bytes && wide == wide_end ? 0 : LENGTH;
}

/* memcpy whose stores go past the caches: a line that is written whole need not be read first, so a
 * copy that is larger than the caches moves two bytes for each, where memcpy moves three. */
void rltrace_copy(uint8_t *to, const uint8_t *from, int64_t count) {
#if defined(__SSE2__)
    int64_t head = -(uintptr_t)to & 15;
    if (head > count) head = count;
    memcpy(to, from, head);
    to += head, from += head, count -= head;
    for (; count >= LINE; to += LINE, from += LINE, count -= LINE) {
        __builtin_prefetch(from + 16 * LINE);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
    }
    _mm_sfence();
#endif
    memcpy(to, from, count);
}

/* Many pieces in one call; one without an address is left out. `past` the caches: long ones only. */
void rltrace_copy_pieces(const int64_t *to, const int64_t *from, const int64_t *bytes, int64_t count,
                         int past) {
    for (int64_t i = 0; i < count; i++) {
        uint8_t *there = (uint8_t *)(intptr_t)to[i], *here = (uint8_t *)(intptr_t)from[i];
        if (!there || !here) continue;
        if (past && bytes[i] >= 64 * LINE) rltrace_copy(there, here, bytes[i]);
        else memcpy(there, here, bytes[i]);
    }
}

/* xxh3-64 with seed 0, of data that is copied past the caches on the way: what is hashed has just
 * been loaded to be stored, so it hardly costs anything. Constants and steps are those of xxHash's
 * specification (doc/xxhash_spec.md in its repository, XXH3 for long inputs). */
#define PRIME32_1 0x9E3779B1u
#define PRIME64_1 0x9E3779B185EBCA87u
enum { STRIPES = 16, SECRET = 192, AT_LAST = SECRET - LINE, AT_MERGE = 11 };

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

#if defined(__SSE2__)
typedef struct { __m128i lanes[4]; } State;

INLINE void stripe(State *state, const uint8_t *from, const uint8_t *key, uint8_t *to) {
    for (int i = 0; i < 4; i++) {
        __m128i data = _mm_loadu_si128((const __m128i *)from + i);
        __m128i mixed = _mm_xor_si128(data, _mm_loadu_si128((const __m128i *)key + i));
        __m128i product = _mm_mul_epu32(mixed, _mm_srli_epi64(mixed, 32));
        __m128i swapped = _mm_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
        state->lanes[i] = _mm_add_epi64(_mm_add_epi64(state->lanes[i], swapped), product);
        if (to) _mm_stream_si128((__m128i *)to + i, data);
    }
}

INLINE void scramble(State *state) {
    const __m128i prime = _mm_set1_epi32((int)PRIME32_1);
    for (int i = 0; i < 4; i++) {
        __m128i x = _mm_xor_si128(state->lanes[i], _mm_srli_epi64(state->lanes[i], 47));
        x = _mm_xor_si128(x, _mm_loadu_si128((const __m128i *)(secret + AT_LAST) + i));
        __m128i high = _mm_mul_epu32(_mm_srli_epi64(x, 32), prime);
        state->lanes[i] = _mm_add_epi64(_mm_mul_epu32(x, prime), _mm_slli_epi64(high, 32));
    }
}
#else
typedef struct { uint64_t lanes[8]; } State;

INLINE uint64_t word(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, 8);
    return x;
}

INLINE void stripe(State *state, const uint8_t *from, const uint8_t *key, uint8_t *to) {
    for (int i = 0; i < 8; i++) {
        uint64_t data = word(from + 8 * i), mixed = data ^ word(key + 8 * i);
        state->lanes[i ^ 1] += data;
        state->lanes[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
    }
    if (to) memcpy(to, from, LINE);
}

INLINE void scramble(State *state) {
    for (int i = 0; i < 8; i++) {
        uint64_t x = state->lanes[i] ^ state->lanes[i] >> 47;
        state->lanes[i] = (x ^ word(secret + AT_LAST + 8 * i)) * PRIME32_1;
    }
}
#endif

/* `to` is a multiple of 16; `count` is more than 240: shorter inputs are hashed by other rules. */
uint64_t rltrace_copy_hashed(uint8_t *to, const uint8_t *from, int64_t count) {
    uint64_t lanes[8] = {0xC2B2AE3D, PRIME64_1, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                         0x85EBCA77C2B2AE63, 0x85EBCA77, 0x27D4EB2F165667C5, PRIME32_1};
    State state;
    memcpy(&state, lanes, sizeof state);
    int64_t stripes = (count - 1) / LINE;
    for (int64_t n = 0; n < stripes; n++) {
        __builtin_prefetch(from + (n + 16) * LINE);
        stripe(&state, from + n * LINE, secret + 8 * (n % STRIPES), to + n * LINE);
        if (n % STRIPES == STRIPES - 1) scramble(&state);
    }
    memcpy(to + stripes * LINE, from + stripes * LINE, count - stripes * LINE);
    stripe(&state, from + count - LINE, secret + AT_LAST - 7, 0);
#if defined(__SSE2__)
    _mm_sfence();
#endif
    memcpy(lanes, &state, sizeof state);
    uint64_t hash = (uint64_t)count * PRIME64_1;
    for (int i = 0; i < 8; i += 2) {
        uint64_t key[2];
        memcpy(key, secret + AT_MERGE + 8 * i, sizeof key);
        __uint128_t product = (__uint128_t)(lanes[i] ^ key[0]) * (lanes[i + 1] ^ key[1]);
        hash += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
    return hash ^ hash >> 32;
}
