/* Which directories of a stat cache no longer scan to the rows kept of them: the whole tree, by several threads.
 *
 * The record layout is in layerfs/capture/statcache.py. Directories are independent of each other, so threads take them in small
 * runs from one counter and mark what they find in an array of bytes that nobody else writes to. What cannot be opened
 * or scanned counts as changed: the caller looks at it again and says what is wrong.
 */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RUN = 32, MOST_THREADS = 16 };

typedef struct {
    int dirfd;
    const uint8_t *records;
    const offset_list *places;
    uint8_t *marks;
    size_t next;
} comparison;

static uint64_t number_at(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

static size_t path_length(const uint8_t *record)
{
    return (size_t)number_at(record + RECORD_PATH_LENGTH, 4);
}

static size_t rows_length(const uint8_t *record)
{
    return (size_t)number_at(record + RECORD_ROWS_LENGTH, 4);
}

/* Opens a directory below dirfd without following any symlink on the way; kernels before 5.6 cannot. */
static int open_below(int dirfd, const uint8_t *path, size_t length)
{
    char text[PATH_MAX];
    if (length >= sizeof text || memchr(path, 0, length))
        return -1;
    memcpy(text, path, length);
    text[length] = 0;
    struct open_how how = {
        .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH,
    };
    return (int)syscall(SYS_openat2, dirfd, length ? text : ".", &how, sizeof how);
}

static int same_rows(int fd, const uint8_t *rows, size_t length)
{
    name_list names;
    if (name_list_read(fd, &names))
        return 0;
    int same = names.rows_size == length && name_list_has_rows(fd, &names, rows, length);
    name_list_free(&names);
    return same;
}

static void *compare_some(void *shared)
{
    comparison *all = shared;
    for (;;) {
        size_t from = __atomic_fetch_add(&all->next, RUN, __ATOMIC_RELAXED);
        if (from >= all->places->count)
            return NULL;
        size_t to = from + RUN < all->places->count ? from + RUN : all->places->count;
        for (size_t i = from; i < to; i++) {
            const uint8_t *record = all->records + all->places->items[i];
            const uint8_t *path = record + RECORD_HEAD_SIZE;
            int fd = open_below(all->dirfd, path, path_length(record));
            if (fd < 0)
                continue;
            all->marks[i] = (uint8_t)same_rows(fd, path + path_length(record), rows_length(record));
            close(fd);
        }
    }
}

/* The place of every record; EINVAL unless they lie one after the other to the very end. */
static int find_records(const uint8_t *records, size_t size, offset_list *places)
{
    for (size_t at = 0; at < size;) {
        if (size - at < RECORD_HEAD_SIZE)
            return EINVAL;
        size_t length = RECORD_HEAD_SIZE + path_length(records + at) + rows_length(records + at);
        if (length > size - at)
            return EINVAL;
        if (offset_list_add(places, at))
            return ENOMEM;
        at += length;
    }
    return 0;
}

static int collect(const comparison *all, offset_list *changed, offset_list *linked)
{
    for (size_t i = 0; i < all->places->count; i++) {
        size_t place = all->places->items[i];
        if (!all->marks[i] && offset_list_add(changed, place))
            return ENOMEM;
        if (number_at(all->records + place + RECORD_LINKED, 4) && offset_list_add(linked, place))
            return ENOMEM;
    }
    return 0;
}

int changed_records(int dirfd, const uint8_t *records, size_t size, unsigned threads, offset_list *changed,
                    offset_list *linked)
{
    offset_list places = {0};
    int code = find_records(records, size, &places);
    comparison all = {.dirfd = dirfd, .records = records, .places = &places};
    if (!code && !(all.marks = calloc(places.count + 1, 1)))
        code = ENOMEM;
    if (!code) {
        pthread_t helpers[MOST_THREADS];
        unsigned started = 0;
        size_t useful = places.count / RUN;
        while (started + 1 < threads && started < MOST_THREADS && started < useful &&
               !pthread_create(&helpers[started], NULL, compare_some, &all))
            started++;
        compare_some(&all);
        while (started)
            pthread_join(helpers[--started], NULL);
        code = collect(&all, changed, linked);
    }
    free(all.marks);
    free(places.items);
    return code;
}
