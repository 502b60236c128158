/* Places in a pack index: a fanout, ascending id prefixes without their first byte, places of a few bits each, and the
 * offsets of the frames. layerfs/objects/packindex.py describes the file. */
#include <string.h>

#include "kernels.h"

static uint32_t little32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t little64(const uint8_t *at)
{
    return little32(at) | (uint64_t)little32(at + 4) << 32;
}

/* Whether `rows` rows of `width` bytes from `at` on lie within `size` bytes. */
static int lies_within(size_t at, size_t rows, size_t width, size_t size)
{
    return at <= size && (!width || rows <= (size - at) / width);
}

int index_layout_fits(const index_layout *layout, size_t size)
{
    return lies_within(layout->fanout, 256, 4, size) &&
           lies_within(layout->prefixes, layout->count, INDEX_SUFFIX, size) &&
           lies_within(layout->places, layout->count, layout->wide, size) &&
           lies_within(layout->offsets, layout->frames, 8, size) && layout->start_bits < 64 &&
           layout->length_bits < 64 && layout->frame_bits < 64 &&
           INDEX_KIND_BITS + layout->start_bits + layout->length_bits + layout->frame_bits <=
               8 * (layout->wide < 16 ? layout->wide : 16);
}

int index_place(const uint8_t *data, const index_layout *layout, const uint8_t *key, index_found *found)
{
    const uint8_t *fanout = data + layout->fanout;
    size_t low = key[0] ? little32(fanout + 4 * (key[0] - 1)) : 0;
    size_t high = little32(fanout + 4 * key[0]);
    if (high > layout->count)
        return INDEX_DAMAGED;
    const size_t end = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memcmp(data + layout->prefixes + middle * INDEX_SUFFIX, key + 1, INDEX_SUFFIX) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low >= end || memcmp(data + layout->prefixes + low * INDEX_SUFFIX, key + 1, INDEX_SUFFIX))
        return INDEX_ABSENT;
    const uint8_t *place = data + layout->places + low * layout->wide;
    unsigned __int128 bits = 0;
    for (unsigned i = layout->wide < 16 ? layout->wide : 16; i--;)
        bits = bits << 8 | place[i];
    found->kind = (uint64_t)bits & ((1u << INDEX_KIND_BITS) - 1);
    bits >>= INDEX_KIND_BITS;
    found->start = (uint64_t)bits & (((uint64_t)1 << layout->start_bits) - 1);
    bits >>= layout->start_bits;
    found->length = (uint64_t)bits & (((uint64_t)1 << layout->length_bits) - 1);
    bits >>= layout->length_bits;
    uint64_t frame = (uint64_t)bits & (((uint64_t)1 << layout->frame_bits) - 1);
    if (frame >= layout->frames)
        return INDEX_DAMAGED;
    found->frame = little64(data + layout->offsets + 8 * frame);
    return INDEX_FOUND;
}
