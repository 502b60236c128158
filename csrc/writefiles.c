/* New files: create, write, owner, attributes, mode, times, close. Every name is created exclusively relative to an open
 * directory, so nothing that is there is ever opened, and no link is followed. */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PRIVATE = 0600, PAGE = 4096 };

static int write_all(int fd, const uint8_t *data, size_t length, off_t at)
{
    while (length) {
        ssize_t written = pwrite(fd, data, length, at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written ? errno : EIO;
        data += written;
        length -= (size_t)written;
        at += written;
    }
    return 0;
}

/* Writes everything but runs of at least hole_min zero bytes (whole pages), which are left out: they become holes. */
static int write_sparse(int fd, const uint8_t *data, size_t length, size_t hole_min)
{
    offset_list bounds = {0};
    int error = zero_runs(data, length, PAGE, &bounds);
    size_t at = 0;
    for (size_t i = 0; !error && i + 1 < bounds.count; i += 2) {
        size_t start = bounds.items[i], end = bounds.items[i + 1];
        if (end - start < hole_min)
            continue;
        error = write_all(fd, data + at, start - at, (off_t)at);
        at = end;
    }
    free(bounds.items);
    if (!error)
        error = write_all(fd, data + at, length - at, (off_t)at);
    if (!error && at == length && ftruncate(fd, (off_t)length))
        error = errno;
    return error;
}

static int fault(new_file *file, int step, int error)
{
    file->step = step;
    file->error = error;
    return error;
}

/* What may fail and leave a good file all the same: the owner, attributes, and the mode. Each remembers how it went. */
static void dress(int fd, const struct stat *found, int owners, new_file *file)
{
    int changed = owners && (found->st_uid != file->uid || found->st_gid != file->gid);
    if (changed && fchown(fd, file->uid, file->gid))
        file->owner_error = errno;
    for (size_t i = 0; i < file->xattr_count; i++) {
        new_xattr *xattr = &file->xattrs[i];
        if (fsetxattr(fd, xattr->name, xattr->value, xattr->length, 0))
            xattr->error = errno;
    }
    /* A change of the owner takes set-id bits away, and an access list changes the bits of the group. */
    if ((changed || file->xattr_count || (found->st_mode & 07777) != file->mode) && fchmod(fd, file->mode))
        file->mode_error = errno;
}

static int fill(int fd, int owners, size_t hole_min, new_file *file)
{
    int error = file->length >= hole_min ? write_sparse(fd, file->data, file->length, hole_min)
                                         : write_all(fd, file->data, file->length, 0);
    if (error)
        return fault(file, STEP_WRITE, error);
    struct stat found;
    if (fstat(fd, &found))
        return fault(file, STEP_WRITE, errno);
    dress(fd, &found, owners, file);
    struct timespec time = {.tv_sec = file->seconds, .tv_nsec = file->nanoseconds};
    struct timespec times[2] = {time, time};
    return futimens(fd, times) ? fault(file, STEP_TIMES, errno) : 0;
}

int new_file_write(int dirfd, int owners, size_t hole_min, new_file *file)
{
    /* With the final mode at once where the owner will be right at once; set-id bits come after the owner. */
    int known = !owners || (file->uid == geteuid() && file->gid == getegid());
    mode_t mode = known ? file->mode & 0777 : PRIVATE;
    int fd = openat(dirfd, file->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return fault(file, STEP_CREATE, errno);
    int error = fill(fd, owners, hole_min, file);
    if (close(fd) && !error && errno != EINTR)
        error = fault(file, STEP_WRITE, errno);
    if (error)
        unlinkat(dirfd, file->name, 0);
    return error;
}
