/* Zero pages: the runs of whole zero pages that become holes. */
#include "kernels.h"

#include <errno.h>
#include <string.h>

/* Most pages of real data show a bit in the first bytes, so these are looked at first; the rest of a page is taken in
 * blocks the compiler turns into vector loads. */
static int is_zero(const uint8_t *page, size_t size)
{
    uint64_t first;
    memcpy(&first, page, sizeof first);
    if (first)
        return 0;
    for (size_t at = 0; at < size; at += 64) {
        uint64_t words[8], seen = 0;
        memcpy(words, page + at, sizeof words);
        for (int i = 0; i < 8; i++)
            seen |= words[i];
        if (seen)
            return 0;
    }
    return 1;
}

int zero_runs(const uint8_t *data, size_t length, size_t page, offset_list *bounds)
{
    size_t end = length - length % page;
    for (size_t at = 0; at < end;) {
        if (!is_zero(data + at, page)) {
            at += page;
            continue;
        }
        size_t start = at;
        do
            at += page;
        while (at < end && is_zero(data + at, page));
        if (offset_list_add(bounds, start) || offset_list_add(bounds, at))
            return ENOMEM;
    }
    return 0;
}
