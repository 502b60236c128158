/* Entries of tree nodes: where the plain ones lie and what their fixed fields say. Plain are those without extended
 * attributes; everything else, and everything malformed, is left to layerfs/objects/entry.py, which has the byte table and
 * knows how to complain. */
#include "kernels.h"

#include <string.h>

enum {
    HEADER_SIZE = 36,
    FLAG_LINKED = 2,
    GROUP_SIZE = 8,
    ID_SIZE = 32,
    DEVICE_SIZE = 8,
    NAME_MAX_BYTES = 255,
    TARGET_MAX_BYTES = 4095,
    MODE_LIMIT = 07777,
};

static uint64_t get(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

static int is_name(const char *name, size_t length)
{
    if (!length || length > NAME_MAX_BYTES || memchr(name, '/', length) || memchr(name, 0, length))
        return 0;
    return !(name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.')));
}

static int fits_kind(const tree_entry *entry)
{
    if (entry->kind == KIND_FILE)
        return entry->ref_length == (entry->size ? ID_SIZE : 0);
    if (entry->size)
        return 0;
    switch (entry->kind) {
    case KIND_DIRECTORY:
        return entry->ref_length == ID_SIZE && !entry->group;
    case KIND_SYMLINK:
        return entry->ref_length && entry->ref_length <= TARGET_MAX_BYTES && !memchr(entry->ref, 0, entry->ref_length);
    case KIND_FIFO:
    case KIND_SOCKET:
        return !entry->ref_length;
    default:
        return entry->ref_length == DEVICE_SIZE;
    }
}

size_t tree_entry_read(const uint8_t *bytes, size_t size, tree_entry *entry)
{
    if (size < HEADER_SIZE)
        return 0;
    unsigned flags = bytes[1];
    entry->kind = bytes[0];
    entry->mode = (unsigned)get(bytes + 2, 2);
    entry->uid = (uint32_t)get(bytes + 4, 4);
    entry->gid = (uint32_t)get(bytes + 8, 4);
    entry->seconds = (int64_t)get(bytes + 12, 8);
    entry->nanoseconds = (uint32_t)get(bytes + 20, 4);
    entry->size = get(bytes + 24, 8);
    entry->name_length = (size_t)get(bytes + 32, 2);
    entry->ref_length = (size_t)get(bytes + 34, 2);
    entry->name = (const char *)bytes + HEADER_SIZE;
    entry->ref = entry->name + entry->name_length;
    entry->group = 0;
    if ((flags & ~(unsigned)FLAG_LINKED) || entry->kind < KIND_FILE || entry->kind > KIND_BLOCK_DEVICE)
        return 0;
    size_t end = HEADER_SIZE + entry->name_length + entry->ref_length;
    if (end + (flags ? GROUP_SIZE : 0) > size)
        return 0;
    if (flags) {
        entry->group = get(bytes + end, GROUP_SIZE);
        if (!entry->group)
            return 0;
        end += GROUP_SIZE;
    }
    if (entry->mode > MODE_LIMIT || entry->nanoseconds >= 1000000000)
        return 0;
    return is_name(entry->name, entry->name_length) && fits_kind(entry) ? end : 0;
}

int tree_entry_follows(const tree_entry *entry, const tree_entry *before)
{
    size_t shorter = entry->name_length < before->name_length ? entry->name_length : before->name_length;
    int order = memcmp(entry->name, before->name, shorter);
    return order ? order > 0 : entry->name_length > before->name_length;
}
