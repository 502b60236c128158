/* Cut points: where FastCDC (Xia et al., USENIX ATC 2016) ends a chunk, exactly as the fastcdc package has it.
 *
 * The hash of a position is h' = (h >> 1) + GEAR[byte], started at 0 after `minimum` bytes of each piece. Read as it
 * stands that is two dependent operations a byte. Floors nest, so four steps can be taken at once:
 *     h4 = ((h + 2*g1 + 4*g2 + 8*g3) >> 4) + g4
 * where the sum of the g does not depend on h; the three hashes in between branch off h and delay nothing.
 */
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>

#include "gear.h"

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
    for (; at + 4 <= end; at += 4) {
        uint32_t g1 = GEAR[data[at]], g2 = GEAR[data[at + 1]], g3 = GEAR[data[at + 2]], g4 = GEAR[data[at + 3]];
        uint32_t h1 = (h >> 1) + g1;
        uint32_t h2 = (h1 >> 1) + g2;
        uint32_t h3 = (h2 >> 1) + g3;
        uint64_t ahead = (((uint64_t)g3 * 2 + g2) * 2 + g1) * 2;
        h = (uint32_t)((h + ahead) >> 4) + g4;
        if (!(h1 & mask))
            return at + 1;
        if (!(h2 & mask))
            return at + 2;
        if (!(h3 & mask))
            return at + 3;
        if (!(h & mask))
            return at + 4;
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
