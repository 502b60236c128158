/* The native kernels of layerfs. They know no Python: plain memory in, plain memory out, so they run without the GIL
 * and can be tested alone. module.c turns them into layerfs.kernels._native; layerfs/kernels/native.py says what each one promises, and
 * layerfs/kernels/native_reference.py says it again in Python.
 *
 * Functions that can fail return 0 or an errno value. Memory in a result belongs to the caller, who frees it with the
 * matching _free function or free().
 */
#ifndef LAYERFS_KERNELS_H
#define LAYERFS_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* A list of offsets that grows. */
typedef struct {
    size_t *items;
    size_t count;
    size_t capacity;
} offset_list;

int offset_list_add(offset_list *list, size_t item);

/* cutpoints.c */

typedef struct {
    size_t minimum; /* no cut before so many bytes */
    size_t centre;  /* up to here the strict mask counts, then the loose one */
    size_t maximum; /* a cut here in any case */
    size_t forced;  /* the length at which a piece ends whatever its content (maximum, unless minimum is larger) */
    uint32_t strict;
    uint32_t loose;
} cut_rule;

/* Returns 0 and fills the rule, or EINVAL for sizes the fastcdc package refuses. */
int cut_rule_make(cut_rule *rule, long minimum, long average, long maximum);
/* Adds the end of each piece; without final, not that of a last piece which only the end of the data ends. */
int cut_points(const cut_rule *rule, const uint8_t *data, size_t length, int final, offset_list *ends);

/* zeropages.c */

/* Adds start and end of each maximal run of whole zero pages; page is a power of two, at least 64. */
int zero_runs(const uint8_t *data, size_t length, size_t page, offset_list *bounds);

/* linediff.c */

/* Adds four line numbers for each hunk: start and end in a, start and end in b. */
int diff_lines(const char *a, size_t a_length, const char *b, size_t b_length, int indent_heuristic,
               offset_list *hunks);

/* dirscan.c */

enum { ROW_HEADER_SIZE = 76 };

typedef struct {
    char *names;     /* the names, each followed by a NUL */
    size_t *offsets; /* where each name starts, in the order of the name bytes */
    size_t count;
    size_t rows_size; /* bytes the rows take if no entry goes away */
} name_list;

int name_list_read(int dirfd, name_list *list);
void name_list_free(name_list *list);
/* Writes the rows, *size bytes of them; on error *failed is the name concerned. */
int name_list_stat(int dirfd, const name_list *list, uint8_t *rows, size_t *size, const char **failed);

/* Whether the names have exactly these rows; stops at the first that differs or cannot be had. */
int name_list_has_rows(int dirfd, const name_list *list, const uint8_t *rows, size_t size);

/* changedscan.c */

/* Where the fields of a record of layerfs/capture/statcache.py lie; the path and then the rows follow the head. */
enum { RECORD_PATH_LENGTH = 8, RECORD_ROWS_LENGTH = 12, RECORD_LINKED = 16, RECORD_HEAD_SIZE = 72 };

/* Adds the places of the records whose directory, below dirfd, no longer scans to their rows, and of the linked ones. */
int changed_records(int dirfd, const uint8_t *records, size_t size, unsigned threads, offset_list *changed,
                    offset_list *linked);

/* readfiles.c */

typedef struct {
    int fd;    /* -1 once closed */
    int error; /* errno, or FILE_NOT_REGULAR */
    int stable;
    struct stat before;
    struct stat after;
    size_t length; /* bytes read */
    int bare;      /* surely without extended attributes */
} file_read;

enum { FILE_NOT_REGULAR = -1 };

/* Opens and stats; leaves fd open only for a regular file of at most max_size bytes. */
void file_open(int dirfd, const char *name, uint64_t max_size, file_read *file);
/* Reads into a buffer one byte larger than before.st_size, stats again, closes. */
void file_fill(file_read *file, char *buffer);

/* writefiles.c */

typedef struct {
    const char *name;
    const void *value;
    size_t length;
    int error;
} new_xattr;

/* The steps of rows.FileFault. */
enum { STEP_CREATE, STEP_WRITE, STEP_OWNER, STEP_XATTR, STEP_MODE, STEP_TIMES };

typedef struct {
    const char *name;
    const uint8_t *data;
    size_t length;
    unsigned mode;
    uint32_t uid;
    uint32_t gid;
    int64_t seconds;
    int64_t nanoseconds;
    new_xattr *xattrs;
    size_t xattr_count;
    int step; /* where it failed, if error is not 0; then no such file is left */
    int error;
    int owner_error;
    int mode_error;
} new_file;

/* Makes one file, which must not exist; owners: give it its owner. Runs of hole_min zero bytes and more become holes. */
int new_file_write(int dirfd, int owners, size_t hole_min, new_file *file);

/* treeentries.c */

enum { KIND_FILE = 1, KIND_DIRECTORY, KIND_SYMLINK, KIND_FIFO, KIND_SOCKET, KIND_CHARACTER_DEVICE, KIND_BLOCK_DEVICE };

typedef struct {
    unsigned kind;
    unsigned mode;
    uint32_t uid;
    uint32_t gid;
    int64_t seconds;
    uint32_t nanoseconds;
    uint64_t size;
    uint64_t group; /* 0: in no link group */
    const char *name;
    size_t name_length;
    const char *ref;
    size_t ref_length;
} tree_entry;

/* Reads one entry; returns its length, or 0 if it is not a whole, valid entry without extended attributes. */
size_t tree_entry_read(const uint8_t *bytes, size_t size, tree_entry *entry);
/* Whether the name sorts after that of the entry before. */
int tree_entry_follows(const tree_entry *entry, const tree_entry *before);

/* packplaces.c */

enum { INDEX_SUFFIX = 15, INDEX_KEY = 16, INDEX_KIND_BITS = 3 };
enum { INDEX_ABSENT, INDEX_FOUND, INDEX_DAMAGED };

/* Where the parts of a pack index begin, and the form of a place: rows.IndexLayout. */
typedef struct {
    size_t fanout;
    size_t prefixes;
    size_t places;
    size_t offsets;
    size_t count;
    size_t frames;
    unsigned wide;
    unsigned start_bits;
    unsigned length_bits;
    unsigned frame_bits;
} index_layout;

typedef struct {
    uint64_t frame;
    uint64_t start;
    uint64_t length;
    uint64_t kind;
} index_found;

/* Whether all that a layout tells of lies within so many bytes. */
int index_layout_fits(const index_layout *layout, size_t size);
/* Looks for a key of INDEX_KEY bytes; the layout must fit. */
int index_place(const uint8_t *data, const index_layout *layout, const uint8_t *key, index_found *found);

#endif
