/* Cut points: where FastCDC (Xia et al., USENIX ATC 2016) ends a chunk, exactly as the fastcdc package has it.
 *
 * The hash of a position is h' = (h >> 1) + GEAR[byte], started at 0 after `minimum` bytes of each piece. Read as it
 * stands that is two dependent operations a byte. Floors nest, so with a0 = h >> 1 and
 *     a(k) = a0 + g1 + 2*g2 + 4*g3 + ... + 2^(k-1)*gk
 * the hash after k bytes is a(k) >> (k-1), and "no bit of the mask in the hash" is "no bit of mask << (k-1) in a(k)": no
 * shift at all inside a block of eight bytes. What the block adds in total does not depend on h, so the next block waits
 * for two additions and a shift only; the tests branch off and delay nothing.
 */
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>

#include "gear.h"

#define PLAIN(number) number
#define TIMES_16(number) (uint64_t)number << 4

static const uint32_t GEAR[256] = {GEAR_TABLE(PLAIN)};
static const uint64_t GEAR_16[256] = {GEAR_TABLE(TIMES_16)}; /* times 2, 4 and 8 come free with an addition; this does not */

static const size_t READ_SIZE = 65536; /* the package never looks further than this or maximum, whichever is more */

int offset_list_add(offset_list *list, size_t item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        size_t *items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return ENOMEM;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return 0;
}

/* log2, rounded to the nearest whole number: half of the bit length of the square, rounded down. */
static unsigned rounded_log2(uint64_t value)
{
    uint64_t square = value * value;
    unsigned length = 0;
    for (; square; square >>= 1)
        length++;
    return length / 2;
}

int cut_rule_make(cut_rule *rule, long minimum, long average, long maximum)
{
    if (minimum < 64 || minimum > 1L << 26 || average < 256 || average > 1L << 28 || maximum < 1024 ||
        maximum > 1L << 30)
        return EINVAL;
    size_t low = (size_t)minimum, middle = (size_t)average, high = (size_t)maximum;
    size_t skipped = low + (low + 1) / 2;
    if (skipped > middle)
        skipped = middle;
    size_t window = high > READ_SIZE ? high : READ_SIZE;
    unsigned bits = rounded_log2(middle);
    rule->minimum = low;
    rule->centre = middle - skipped < high ? middle - skipped : high;
    rule->maximum = high;
    rule->forced = low < window ? low : window;
    if (rule->forced < high)
        rule->forced = high;
    rule->strict = ((uint32_t)1 << (bits + 1)) - 1;
    rule->loose = ((uint32_t)1 << (bits - 1)) - 1;
    return 0;
}

/* Hashes data[at..end) on from *hash. Returns the offset after the first byte whose hash has no bit of the mask, or 0. */
static size_t find_cut(const uint8_t *data, size_t at, size_t end, uint32_t *hash, uint32_t mask)
{
    uint32_t h = *hash;
    const uint64_t wide = mask;
    for (; at + 8 <= end; at += 8) {
        const uint8_t *byte = data + at;
        uint64_t g1 = GEAR[byte[0]], g2 = GEAR[byte[1]], g3 = GEAR[byte[2]], g4 = GEAR[byte[3]];
        uint64_t g5 = GEAR_16[byte[4]], g6 = GEAR_16[byte[5]], g7 = GEAR_16[byte[6]], g8 = GEAR_16[byte[7]];
        uint64_t first_half = g1 + 2 * g2 + 4 * g3 + 8 * g4, second_half = g5 + 2 * g6 + 4 * g7 + 8 * g8;
        uint64_t a0 = h >> 1;
        uint64_t a1 = a0 + g1, a2 = a1 + 2 * g2, a3 = a2 + 4 * g3, a4 = a0 + first_half;
        uint64_t a5 = a4 + g5, a6 = a5 + 2 * g6, a7 = a6 + 4 * g7, a8 = a4 + second_half;
        h = (uint32_t)(a8 >> 7);
        if (!(a1 & wide))
            return at + 1;
        if (!(a2 & wide << 1))
            return at + 2;
        if (!(a3 & wide << 2))
            return at + 3;
        if (!(a4 & wide << 3))
            return at + 4;
        if (!(a5 & wide << 4))
            return at + 5;
        if (!(a6 & wide << 5))
            return at + 6;
        if (!(a7 & wide << 6))
            return at + 7;
        if (!(a8 & wide << 7))
            return at + 8;
    }
    for (; at < end; at++) {
        h = (h >> 1) + GEAR[data[at]];
        if (!(h & mask))
            return at + 1;
    }
    *hash = h;
    return 0;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the length of the first piece of the data, or 0 if it is not decided before the data end. */
static size_t decided_length(const cut_rule *rule, const uint8_t *data, size_t length)
{
    uint32_t hash = 0;
    size_t at = rule->minimum;
    size_t centre = smaller(rule->centre, length);
    size_t cut = 0;
    if (at < centre) {
        cut = find_cut(data, at, centre, &hash, rule->strict);
        at = centre;
    }
    if (!cut && at < smaller(rule->maximum, length))
        cut = find_cut(data, at, smaller(rule->maximum, length), &hash, rule->loose);
    if (!cut && length >= rule->forced)
        cut = rule->forced;
    return cut;
}

int cut_points(const cut_rule *rule, const uint8_t *data, size_t length, int final, offset_list *ends)
{
    size_t start = 0;
    while (start < length) {
        size_t piece = decided_length(rule, data + start, length - start);
        if (!piece) {
            if (!final)
                return 0;
            piece = length - start;
        }
        start += piece;
        if (offset_list_add(ends, start))
            return ENOMEM;
    }
    return 0;
}
