/* Directory scan: the names of one directory, sorted by their bytes, and one row of attributes for each.
 *
 * Two passes, so that memory stays near the size of the result: first the names alone (getdents64), sorted through an
 * index; then one statx a name, written straight into the result, whose size is known by then. The row layout is in
 * layerfs/kernels/rows.py.
 */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint64_t inode;
    int64_t offset;
    uint16_t record_length;
    uint8_t type;
    char name[];
} directory_record;

enum { RECORDS_SIZE = 64 * 1024 };

static int is_dot(const char *name)
{
    return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
}

static int compare_names(const void *a, const void *b, void *names)
{
    const char *base = names;
    return strcmp(base + *(const size_t *)a, base + *(const size_t *)b);
}

static int add_names(const char *records, size_t size, name_list *list, size_t *used, size_t *room,
                     offset_list *offsets)
{
    for (size_t at = 0; at < size;) {
        const directory_record *record = (const directory_record *)(records + at);
        at += record->record_length;
        if (is_dot(record->name))
            continue;
        size_t length = strlen(record->name);
        if (*used + length + 1 > *room) {
            size_t larger = *room ? *room + *room / 2 : RECORDS_SIZE;
            char *names = realloc(list->names, larger);
            if (!names)
                return ENOMEM;
            list->names = names;
            *room = larger;
        }
        memcpy(list->names + *used, record->name, length + 1);
        if (offset_list_add(offsets, *used))
            return ENOMEM;
        *used += length + 1;
        list->rows_size += ROW_HEADER_SIZE + length;
    }
    return 0;
}

int name_list_read(int dirfd, name_list *list)
{
    memset(list, 0, sizeof *list);
    if (lseek(dirfd, 0, SEEK_SET) < 0)
        return errno;
    char *records = malloc(RECORDS_SIZE);
    if (!records)
        return ENOMEM;
    offset_list offsets = {0};
    size_t used = 0, room = 0;
    int error = 0;
    while (!error) {
        long size = syscall(SYS_getdents64, dirfd, records, (size_t)RECORDS_SIZE);
        if (size <= 0) {
            error = size < 0 ? errno : 0;
            break;
        }
        error = add_names(records, (size_t)size, list, &used, &room, &offsets);
    }
    free(records);
    list->offsets = offsets.items;
    list->count = offsets.count;
    if (error) {
        name_list_free(list);
        return error;
    }
    if (list->count)
        qsort_r(list->offsets, list->count, sizeof *list->offsets, compare_names, list->names);
    return 0;
}

void name_list_free(name_list *list)
{
    free(list->names);
    free(list->offsets);
    memset(list, 0, sizeof *list);
}

static uint8_t *put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *to++ = (uint8_t)(value >> (8 * i));
    return to;
}

static int look(int dirfd, const char *name, struct statx *found)
{
    return statx(dirfd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, found);
}

static uint8_t *put_header(uint8_t *to, const struct statx *found, size_t length)
{
    to = put(to, length, 2);
    to = put(to, 0, 2);
    to = put(to, found->stx_mode, 4);
    to = put(to, found->stx_uid, 4);
    to = put(to, found->stx_gid, 4);
    to = put(to, found->stx_nlink, 4);
    to = put(to, found->stx_dev_major, 4);
    to = put(to, found->stx_dev_minor, 4);
    to = put(to, found->stx_rdev_major, 4);
    to = put(to, found->stx_rdev_minor, 4);
    to = put(to, found->stx_size, 8);
    to = put(to, found->stx_ino, 8);
    to = put(to, (uint64_t)found->stx_mtime.tv_sec, 8);
    to = put(to, (uint64_t)found->stx_ctime.tv_sec, 8);
    to = put(to, found->stx_mtime.tv_nsec, 4);
    return put(to, found->stx_ctime.tv_nsec, 4);
}

int name_list_stat(int dirfd, const name_list *list, uint8_t *rows, size_t *size, const char **failed)
{
    uint8_t *end = rows;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->names + list->offsets[i];
        struct statx found;
        if (look(dirfd, name, &found)) {
            if (errno == ENOENT)
                continue;
            *failed = name;
            return errno;
        }
        size_t length = strlen(name);
        end = put_header(end, &found, length);
        memcpy(end, name, length);
        end += length;
    }
    *size = (size_t)(end - rows);
    return 0;
}

int name_list_has_rows(int dirfd, const name_list *list, const uint8_t *rows, size_t size)
{
    const uint8_t *end = rows + size;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->names + list->offsets[i];
        size_t length = strlen(name);
        struct statx found;
        uint8_t header[ROW_HEADER_SIZE];
        if ((size_t)(end - rows) < ROW_HEADER_SIZE + length || look(dirfd, name, &found))
            return 0;
        put_header(header, &found, length);
        if (memcmp(rows, header, sizeof header) || memcmp(rows + sizeof header, name, length))
            return 0;
        rows += sizeof header + length;
    }
    return rows == end;
}
