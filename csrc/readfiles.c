/* Small files: open, stat, read to the end, stat again. Two steps, so that the caller can hand in a buffer of the right
 * size in between and the bytes are copied once. */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

static int open_quietly(int dirfd, const char *name)
{
    /* O_NONBLOCK: a FIFO put in place of the file must not hang us. O_NOATIME is refused on files of other users. */
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(dirfd, name, flags | O_NOATIME);
    return fd < 0 && errno == EPERM ? openat(dirfd, name, flags) : fd;
}

static void finish(file_read *file, int error)
{
    file->error = error;
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

void file_open(int dirfd, const char *name, uint64_t max_size, file_read *file)
{
    memset(file, 0, sizeof *file);
    file->stable = 1;
    file->fd = open_quietly(dirfd, name);
    if (file->fd < 0) {
        finish(file, errno);
        return;
    }
    if (fstat(file->fd, &file->before)) {
        finish(file, errno);
        return;
    }
    file->after = file->before;
    if (!S_ISREG(file->before.st_mode))
        finish(file, FILE_NOT_REGULAR);
    else if ((uint64_t)file->before.st_size > max_size)
        finish(file, EFBIG);
}

static int same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

void file_fill(file_read *file, char *buffer)
{
    size_t size = (size_t)file->before.st_size;
    while (file->length <= size) {
        ssize_t got = read(file->fd, buffer + file->length, size + 1 - file->length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            finish(file, errno);
            return;
        }
        file->length += (size_t)got;
        /* A regular file gives less than was asked for only at its end; the size is compared below all the same. */
        if (got == 0 || file->length == size)
            break;
    }
    /* Before the second stat: attributes that come while the content is read move the ctime, and that is noticed. */
    ssize_t names = flistxattr(file->fd, NULL, 0);
    file->bare = names == 0 || (names < 0 && errno == EOPNOTSUPP);
    struct stat after;
    if (fstat(file->fd, &after)) {
        finish(file, errno);
        return;
    }
    file->after = after;
    file->stable = file->length == size && after.st_size == file->before.st_size &&
                   same_time(after.st_mtim, file->before.st_mtim) && same_time(after.st_ctim, file->before.st_ctim);
    finish(file, 0);
}
