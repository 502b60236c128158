/* layerfs.kernels._native: the kernels as Python sees them. All of Python.h is here; the GIL is released around every scan and
 * every loop of system calls. layerfs/kernels/native.py documents the functions. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <sys/sysmacros.h>

#include "kernels.h"

/* NamedTuples of layerfs.kernels.rows, which the results are made of. */
static PyTypeObject *row_type;
static PyTypeObject *file_read_type;
static PyTypeObject *fault_type;

enum { ROW_FIELDS = 11, FILE_READ_FIELDS = 9, READ_BATCH = 64, ENTRY_FIELDS = 9 };
enum { FAULT_FIELDS = 4 };
enum { ENTRY_MODE = 1, ENTRY_UID, ENTRY_GID, ENTRY_MTIME, ENTRY_XATTRS = 7 };

static PyObject *raise_code(int code)
{
    if (code == ENOMEM)
        return PyErr_NoMemory();
    errno = code;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *raise_named(int code, PyObject *name)
{
    errno = code;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name);
    return NULL;
}

/* A list of ints, or of tuples of `width` ints, from the flat list of offsets. */
static PyObject *list_of(const offset_list *offsets, size_t width)
{
    PyObject *list = PyList_New((Py_ssize_t)(offsets->count / width));
    if (!list)
        return NULL;
    for (size_t i = 0; i < offsets->count / width; i++) {
        PyObject *item = width == 1 ? PyLong_FromSize_t(offsets->items[i]) : PyTuple_New((Py_ssize_t)width);
        if (!item) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        for (size_t j = 0; width > 1 && j < width; j++) {
            PyObject *number = PyLong_FromSize_t(offsets->items[i * width + j]);
            if (!number) {
                Py_DECREF(list);
                return NULL;
            }
            PyTuple_SET_ITEM(item, (Py_ssize_t)j, number);
        }
    }
    return list;
}

static PyObject *list_or_error(int code, offset_list *offsets, size_t width)
{
    PyObject *result = code ? raise_code(code) : list_of(offsets, width);
    free(offsets->items);
    return result;
}

static PyObject *native_cut_points(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer data;
    long minimum, average, maximum;
    int final;
    if (!PyArg_ParseTuple(args, "y*lllp:cut_points", &data, &minimum, &average, &maximum, &final))
        return NULL;
    cut_rule rule;
    if (cut_rule_make(&rule, minimum, average, maximum)) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "chunk size out of range");
        return NULL;
    }
    offset_list ends = {0};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = cut_points(&rule, data.buf, (size_t)data.len, final, &ends);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return list_or_error(code, &ends, 1);
}

static PyObject *native_zero_runs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer data;
    Py_ssize_t page;
    if (!PyArg_ParseTuple(args, "y*n:zero_runs", &data, &page))
        return NULL;
    if (page < 64 || page & (page - 1)) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "page size is not a power of two of at least 64");
        return NULL;
    }
    offset_list bounds = {0};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zero_runs(data.buf, (size_t)data.len, (size_t)page, &bounds);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return list_or_error(code, &bounds, 2);
}

static PyObject *native_diff_lines(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a, b;
    int indent_heuristic;
    if (!PyArg_ParseTuple(args, "y*y*p:diff_lines", &a, &b, &indent_heuristic))
        return NULL;
    offset_list hunks = {0};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = diff_lines(a.buf, (size_t)a.len, b.buf, (size_t)b.len, indent_heuristic, &hunks);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    return list_or_error(code, &hunks, 4);
}

static PyObject *native_scan_directory(PyObject *self, PyObject *args)
{
    (void)self;
    int dirfd;
    if (!PyArg_ParseTuple(args, "i:scan_directory", &dirfd))
        return NULL;
    name_list names;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = name_list_read(dirfd, &names);
    Py_END_ALLOW_THREADS
    if (code)
        return raise_code(code);
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)names.rows_size);
    if (!rows) {
        name_list_free(&names);
        return NULL;
    }
    size_t size = 0;
    const char *failed = NULL;
    Py_BEGIN_ALLOW_THREADS
    code = name_list_stat(dirfd, &names, (uint8_t *)PyByteArray_AS_STRING(rows), &size, &failed);
    Py_END_ALLOW_THREADS
    if (code) {
        Py_DECREF(rows);
        PyObject *name = PyBytes_FromString(failed);
        name_list_free(&names);
        if (!name)
            return NULL;
        raise_named(code, name);
        Py_DECREF(name);
        return NULL;
    }
    name_list_free(&names);
    if (PyByteArray_Resize(rows, (Py_ssize_t)size)) {
        Py_DECREF(rows);
        return NULL;
    }
    return rows;
}

static PyObject *native_changed_records(PyObject *self, PyObject *args)
{
    (void)self;
    int dirfd;
    unsigned threads;
    Py_buffer records;
    if (!PyArg_ParseTuple(args, "iy*I:changed_records", &dirfd, &records, &threads))
        return NULL;
    offset_list changed = {0}, linked = {0};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = changed_records(dirfd, records.buf, (size_t)records.len, threads, &changed, &linked);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&records);
    PyObject *first = NULL, *second = NULL;
    if (code == EINVAL)
        PyErr_SetString(PyExc_ValueError, "stat cache ends inside a record");
    else if (code)
        raise_code(code);
    else if ((first = list_of(&changed, 1)))
        second = list_of(&linked, 1);
    free(changed.items);
    free(linked.items);
    return second ? Py_BuildValue("(NN)", first, second) : (Py_XDECREF(first), NULL);
}

static uint64_t get(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

/* Nanoseconds since 1970; times beyond 64 bits of them (the year 2262) go the long way round. */
static PyObject *time_object(int64_t seconds, int64_t nanoseconds)
{
    int64_t whole;
    if (!__builtin_mul_overflow(seconds, (int64_t)1000000000, &whole) &&
        !__builtin_add_overflow(whole, nanoseconds, &whole))
        return PyLong_FromLongLong(whole);
    PyObject *second = PyLong_FromLongLong(seconds), *billion = PyLong_FromLong(1000000000);
    PyObject *rest = PyLong_FromLongLong(nanoseconds), *product = NULL, *sum = NULL;
    if (second && billion && rest && (product = PyNumber_Multiply(second, billion)))
        sum = PyNumber_Add(product, rest);
    Py_XDECREF(second);
    Py_XDECREF(billion);
    Py_XDECREF(rest);
    Py_XDECREF(product);
    return sum;
}

/* A tuple of the given NamedTuple type that takes over the references of the fields; NULL if one of them is NULL. */
static PyObject *named_tuple(PyTypeObject *type, PyObject **fields, int count)
{
    int complete = 1;
    for (int i = 0; i < count; i++)
        complete &= fields[i] != NULL;
    PyObject *result = complete ? type->tp_alloc(type, count) : NULL;
    for (int i = 0; i < count; i++) {
        if (result)
            PyTuple_SET_ITEM(result, i, fields[i]);
        else
            Py_XDECREF(fields[i]);
    }
    return result;
}

static PyObject *row_object(const uint8_t *row, size_t name_length)
{
    PyObject *fields[ROW_FIELDS] = {
        PyBytes_FromStringAndSize((const char *)row + ROW_HEADER_SIZE, (Py_ssize_t)name_length),
        PyLong_FromUnsignedLong((unsigned long)get(row + 4, 4)),
        PyLong_FromUnsignedLong((unsigned long)get(row + 8, 4)),
        PyLong_FromUnsignedLong((unsigned long)get(row + 12, 4)),
        PyLong_FromUnsignedLong((unsigned long)get(row + 16, 4)),
        PyLong_FromUnsignedLongLong(makedev((unsigned)get(row + 20, 4), (unsigned)get(row + 24, 4))),
        PyLong_FromUnsignedLongLong(makedev((unsigned)get(row + 28, 4), (unsigned)get(row + 32, 4))),
        PyLong_FromUnsignedLongLong(get(row + 36, 8)),
        PyLong_FromUnsignedLongLong(get(row + 44, 8)),
        time_object((int64_t)get(row + 52, 8), (int64_t)get(row + 68, 4)),
        time_object((int64_t)get(row + 60, 8), (int64_t)get(row + 72, 4)),
    };
    return named_tuple(row_type, fields, ROW_FIELDS);
}

/* The length of the row's name, or 0 if the bytes are not a row. */
static size_t row_name_length(const uint8_t *row, size_t room)
{
    if (room < ROW_HEADER_SIZE || get(row + 2, 2))
        return 0;
    size_t length = (size_t)get(row, 2);
    return length <= room - ROW_HEADER_SIZE ? length : 0;
}

/* The rows from *at on, at most `limit` of them; moves *at past them. NULL with an exception set on error. */
static PyObject *rows_between(const uint8_t *bytes, size_t size, size_t *at, size_t limit)
{
    size_t end = *at;
    Py_ssize_t count = 0;
    for (; end < size && (size_t)count < limit; count++) {
        size_t length = row_name_length(bytes + end, size - end);
        if (!length) {
            PyErr_SetString(PyExc_ValueError, "directory rows end inside a row");
            return NULL;
        }
        end += ROW_HEADER_SIZE + length;
    }
    PyObject *list = PyList_New(count);
    if (!list)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t length = (size_t)get(bytes + *at, 2);
        PyObject *item = row_object(bytes + *at, length);
        if (!item) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, item);
        *at += ROW_HEADER_SIZE + length;
    }
    return list;
}

static PyObject *native_parse_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer blob;
    if (!PyArg_ParseTuple(args, "y*:parse_rows", &blob))
        return NULL;
    size_t at = 0;
    PyObject *list = rows_between(blob.buf, (size_t)blob.len, &at, SIZE_MAX);
    PyBuffer_Release(&blob);
    return list;
}

static PyObject *native_parse_some_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer blob;
    Py_ssize_t start, limit;
    if (!PyArg_ParseTuple(args, "y*nn:parse_some_rows", &blob, &start, &limit))
        return NULL;
    PyObject *list = NULL;
    size_t at = (size_t)start;
    if (start < 0 || start > blob.len || limit < 0)
        PyErr_SetString(PyExc_ValueError, "no such place in the directory rows");
    else
        list = rows_between(blob.buf, (size_t)blob.len, &at, (size_t)limit);
    PyBuffer_Release(&blob);
    return list ? Py_BuildValue("(Nn)", list, (Py_ssize_t)at) : NULL;
}

/* The outcome of one file; takes over the reference of data, which is NULL if there is no buffer. */
static PyObject *file_read_object(const file_read *file, PyObject *data)
{
    if (data && !file->error && file->stable) {
        /* The extra byte was read into the place of the terminating NUL. */
        PyBytes_AS_STRING(data)[file->length] = 0;
    } else {
        Py_XDECREF(data);
        data = Py_NewRef(Py_None);
    }
    PyObject *fields[FILE_READ_FIELDS] = {
        data,
        PyLong_FromLong(file->error),
        Py_NewRef(file->stable ? Py_True : Py_False),
        PyLong_FromLongLong(file->after.st_size),
        time_object(file->after.st_mtim.tv_sec, file->after.st_mtim.tv_nsec),
        time_object(file->after.st_ctim.tv_sec, file->after.st_ctim.tv_nsec),
        PyLong_FromUnsignedLongLong(file->after.st_ino),
        PyLong_FromUnsignedLong(file->after.st_mode),
        Py_NewRef(file->bare ? Py_False : Py_True),
    };
    return named_tuple(file_read_type, fields, FILE_READ_FIELDS);
}

/* Reads up to READ_BATCH files and appends their outcomes. The buffers are bytes objects nobody else has seen yet. */
static int read_batch(int dirfd, PyObject **names, Py_ssize_t count, uint64_t max_size, PyObject *list, Py_ssize_t at)
{
    file_read files[READ_BATCH];
    PyObject *data[READ_BATCH] = {NULL};
    const char *texts[READ_BATCH];
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(texts[i] = PyBytes_AsString(names[i])))
            return -1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        file_open(dirfd, texts[i], max_size, &files[i]);
    Py_END_ALLOW_THREADS
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++)
        if (files[i].fd >= 0)
            failed = !(data[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)files[i].before.st_size));
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        if (files[i].fd < 0)
            continue;
        if (data[i]) {
            file_fill(&files[i], PyBytes_AS_STRING(data[i]));
        } else {
            close(files[i].fd);
            files[i].fd = -1;
        }
    }
    Py_END_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        if (failed) {
            Py_XDECREF(data[i]);
            continue;
        }
        PyObject *item = file_read_object(&files[i], data[i]);
        if (item)
            PyList_SET_ITEM(list, at + i, item);
        else
            failed = 1;
    }
    return failed ? -1 : 0;
}

static PyObject *native_read_files(PyObject *self, PyObject *args)
{
    (void)self;
    int dirfd;
    PyObject *names;
    long long max_size;
    if (!PyArg_ParseTuple(args, "iOL:read_files", &dirfd, &names, &max_size))
        return NULL;
    if (max_size < 0) {
        PyErr_SetString(PyExc_ValueError, "negative size limit");
        return NULL;
    }
    /* A tuple of our own: the GIL is given away while the names are in use. */
    PyObject *fixed = PySequence_Tuple(names);
    if (!fixed)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(fixed);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list && at < count; at += READ_BATCH) {
        Py_ssize_t batch = count - at < READ_BATCH ? count - at : READ_BATCH;
        if (read_batch(dirfd, &PyTuple_GET_ITEM(fixed, at), batch, (uint64_t)max_size, list, at))
            Py_CLEAR(list);
    }
    Py_DECREF(fixed);
    return list;
}

/* (name, Entry); `type` is the NamedTuple Entry, `kinds` its kinds by number, `bare` the tuple of no attributes. */
static PyObject *named_entry(const tree_entry *entry, PyTypeObject *type, PyObject *kinds, PyObject *bare)
{
    PyObject *fields[ENTRY_FIELDS] = {
        Py_NewRef(PyTuple_GET_ITEM(kinds, entry->kind)),
        PyLong_FromUnsignedLong(entry->mode),
        PyLong_FromUnsignedLong(entry->uid),
        PyLong_FromUnsignedLong(entry->gid),
        time_object(entry->seconds, entry->nanoseconds),
        PyLong_FromUnsignedLongLong(entry->size),
        PyBytes_FromStringAndSize(entry->ref, (Py_ssize_t)entry->ref_length),
        Py_NewRef(bare),
        PyLong_FromUnsignedLongLong(entry->group),
    };
    PyObject *value = named_tuple(type, fields, ENTRY_FIELDS);
    PyObject *name = value ? PyBytes_FromStringAndSize(entry->name, (Py_ssize_t)entry->name_length) : NULL;
    PyObject *pair = name ? PyTuple_New(2) : NULL;
    if (!pair) {
        Py_XDECREF(name);
        Py_XDECREF(value);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, name);
    PyTuple_SET_ITEM(pair, 1, value);
    return pair;
}

static PyObject *native_plain_entries(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *payload, *kinds;
    Py_ssize_t start;
    PyTypeObject *type;
    if (!PyArg_ParseTuple(args, "SnO!O!:plain_entries", &payload, &start, &PyType_Type, &type, &PyTuple_Type, &kinds))
        return NULL;
    size_t size = (size_t)PyBytes_GET_SIZE(payload);
    if (start < 0 || (size_t)start > size || PyTuple_GET_SIZE(kinds) <= KIND_BLOCK_DEVICE ||
        !PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_ValueError, "not a place in a tree node, or not the entry's type and kinds");
        return NULL;
    }
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(payload);
    PyObject *list = PyList_New(0), *bare = PyTuple_New(0);
    size_t at = (size_t)start;
    tree_entry entry, before = {0};
    for (size_t length; list && bare && (length = tree_entry_read(bytes + at, size - at, &entry)); at += length) {
        if (before.name && !tree_entry_follows(&entry, &before))
            break;
        PyObject *pair = named_entry(&entry, type, kinds, bare);
        if (!pair || PyList_Append(list, pair))
            Py_CLEAR(list);
        Py_XDECREF(pair);
        if (!list)
            break;
        before = entry;
    }
    Py_XDECREF(bare);
    return list && bare ? Py_BuildValue("(Nn)", list, (Py_ssize_t)at) : (Py_XDECREF(list), NULL);
}

/* What write_files holds of one file: pointers into objects that the caller's tuple keeps alive, and a buffer. */
typedef struct {
    new_file file;
    Py_buffer data;
    PyObject *xattrs;
} held_file;

static int raise_wrong_file(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "not a name, an entry and its content");
    return -1;
}

/* Seconds and the rest of a time in nanoseconds, both rounded down. */
static int split_time(PyObject *time, int64_t *seconds, int64_t *rest)
{
    int overflow;
    long long whole = PyLong_AsLongLongAndOverflow(time, &overflow);
    if (!overflow) {
        if (whole == -1 && PyErr_Occurred())
            return -1;
        int before = whole % 1000000000 < 0;
        *seconds = whole / 1000000000 - before;
        *rest = whole % 1000000000 + (before ? 1000000000 : 0);
        return 0;
    }
    PyObject *billion = PyLong_FromLong(1000000000);
    PyObject *pair = billion ? PyNumber_Divmod(time, billion) : NULL;
    if (pair) {
        *seconds = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
        *rest = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 1));
    }
    Py_XDECREF(billion);
    Py_XDECREF(pair);
    return PyErr_Occurred() ? -1 : 0;
}

static int hold_xattrs(PyObject *xattrs, held_file *held)
{
    if (!PyTuple_Check(xattrs))
        return raise_wrong_file();
    size_t count = (size_t)PyTuple_GET_SIZE(xattrs);
    held->xattrs = xattrs;
    if (!count)
        return 0;
    held->file.xattrs = PyMem_Calloc(count, sizeof *held->file.xattrs);
    if (!held->file.xattrs) {
        PyErr_NoMemory();
        return -1;
    }
    for (; held->file.xattr_count < count; held->file.xattr_count++) {
        PyObject *pair = PyTuple_GET_ITEM(xattrs, (Py_ssize_t)held->file.xattr_count);
        new_xattr *xattr = &held->file.xattrs[held->file.xattr_count];
        char *name, *value;
        Py_ssize_t length;
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 ||
            PyBytes_AsStringAndSize(PyTuple_GET_ITEM(pair, 0), &name, NULL) ||
            PyBytes_AsStringAndSize(PyTuple_GET_ITEM(pair, 1), &value, &length))
            return raise_wrong_file();
        *xattr = (new_xattr){.name = name, .value = value, .length = (size_t)length};
    }
    return 0;
}

/* Takes what is needed out of (name, entry, data). A name that leads elsewhere is refused: it is no name. */
static int hold_file(PyObject *item, held_file *held)
{
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3)
        return raise_wrong_file();
    PyObject *entry = PyTuple_GET_ITEM(item, 1);
    char *name;
    if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(item, 0), &name, NULL))
        return -1;
    if (strchr(name, '/') || !PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != ENTRY_FIELDS)
        return raise_wrong_file();
    held->file.name = name;
    held->file.mode = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(entry, ENTRY_MODE)) & 07777;
    held->file.uid = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(entry, ENTRY_UID));
    held->file.gid = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(entry, ENTRY_GID));
    if (PyErr_Occurred() ||
        split_time(PyTuple_GET_ITEM(entry, ENTRY_MTIME), &held->file.seconds, &held->file.nanoseconds) ||
        hold_xattrs(PyTuple_GET_ITEM(entry, ENTRY_XATTRS), held) ||
        PyObject_GetBuffer(PyTuple_GET_ITEM(item, 2), &held->data, PyBUF_SIMPLE))
        return -1;
    held->file.data = held->data.buf;
    held->file.length = (size_t)held->data.len;
    return 0;
}

static int add_fault(PyObject *faults, Py_ssize_t number, int step, int error, PyObject *xattr)
{
    if (!error)
        return 0;
    PyObject *fields[FAULT_FIELDS] = {
        PyLong_FromSsize_t(number),
        PyLong_FromLong(step),
        PyLong_FromLong(error),
        Py_NewRef(xattr),
    };
    PyObject *item = named_tuple(fault_type, fields, FAULT_FIELDS);
    int failed = !item || PyList_Append(faults, item);
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

static int add_faults(PyObject *faults, Py_ssize_t number, const held_file *held)
{
    const new_file *file = &held->file;
    if (add_fault(faults, number, STEP_OWNER, file->owner_error, Py_None))
        return -1;
    for (size_t i = 0; i < file->xattr_count; i++) {
        PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(held->xattrs, (Py_ssize_t)i), 0);
        if (add_fault(faults, number, STEP_XATTR, file->xattrs[i].error, name))
            return -1;
    }
    if (add_fault(faults, number, STEP_MODE, file->mode_error, Py_None))
        return -1;
    return add_fault(faults, number, file->step, file->error, Py_None);
}

static PyObject *native_write_files(PyObject *self, PyObject *args)
{
    (void)self;
    int dirfd, owners;
    PyObject *files;
    Py_ssize_t hole_min;
    if (!PyArg_ParseTuple(args, "iOpn:write_files", &dirfd, &files, &owners, &hole_min))
        return NULL;
    if (hole_min <= 0) {
        PyErr_SetString(PyExc_ValueError, "a hole has no length");
        return NULL;
    }
    /* A tuple of our own: the GIL is given away while what it holds is in use. */
    PyObject *fixed = PySequence_Tuple(files);
    if (!fixed)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(fixed), made = 0;
    held_file *held = PyMem_Calloc(count ? (size_t)count : 1, sizeof *held);
    int failed = !held;
    if (failed)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        failed = hold_file(PyTuple_GET_ITEM(fixed, i), &held[i]);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        while (made < count && !new_file_write(dirfd, owners, (size_t)hole_min, &held[made++].file))
            continue;
        Py_END_ALLOW_THREADS
    }
    PyObject *faults = failed ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; held && i < count; i++) {
        if (faults && i < made && add_faults(faults, i, &held[i]))
            Py_CLEAR(faults);
        PyMem_Free(held[i].file.xattrs);
        if (held[i].data.obj)
            PyBuffer_Release(&held[i].data);
    }
    PyMem_Free(held);
    Py_DECREF(fixed);
    return faults;
}

static PyObject *native_index_places(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer data;
    Py_ssize_t at[6];
    index_layout layout;
    PyObject *keys;
    if (!PyArg_ParseTuple(args, "y*(nnnnnnIIII)O:index_places", &data, &at[0], &at[1], &at[2], &at[3], &at[4], &at[5],
                          &layout.wide, &layout.start_bits, &layout.length_bits, &layout.frame_bits, &keys))
        return NULL;
    layout.fanout = (size_t)at[0];
    layout.prefixes = (size_t)at[1];
    layout.places = (size_t)at[2];
    layout.offsets = (size_t)at[3];
    layout.count = (size_t)at[4];
    layout.frames = (size_t)at[5];
    PyObject *fixed = PySequence_Fast(keys, "keys are not a sequence");
    PyObject *list = fixed ? PyList_New(PySequence_Fast_GET_SIZE(fixed)) : NULL;
    if (list && !index_layout_fits(&layout, (size_t)data.len)) {
        PyErr_SetString(PyExc_ValueError, "an index of this layout is larger");
        Py_CLEAR(list);
    }
    for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++) {
        PyObject *key = PySequence_Fast_GET_ITEM(fixed, i);
        index_found found;
        int outcome = INDEX_DAMAGED;
        if (PyBytes_Check(key) && PyBytes_GET_SIZE(key) >= INDEX_KEY)
            outcome = index_place(data.buf, &layout, (const uint8_t *)PyBytes_AS_STRING(key), &found);
        PyObject *place = NULL;
        if (outcome == INDEX_ABSENT)
            place = Py_NewRef(Py_None);
        else if (outcome == INDEX_FOUND)
            place = Py_BuildValue("KKKK", (unsigned long long)found.frame, (unsigned long long)found.start,
                                  (unsigned long long)found.length, (unsigned long long)found.kind);
        else
            PyErr_SetString(PyExc_ValueError, "a key is too short, or the index is impossible");
        if (!place) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, place);
    }
    Py_XDECREF(fixed);
    PyBuffer_Release(&data);
    return list;
}

static PyMethodDef methods[] = {
    {"cut_points", native_cut_points, METH_VARARGS, "cut_points(data, minimum, average, maximum, final)"},
    {"zero_runs", native_zero_runs, METH_VARARGS, "zero_runs(data, page)"},
    {"diff_lines", native_diff_lines, METH_VARARGS, "diff_lines(a, b, indent_heuristic)"},
    {"scan_directory", native_scan_directory, METH_VARARGS, "scan_directory(dirfd)"},
    {"changed_records", native_changed_records, METH_VARARGS, "changed_records(dirfd, records, threads)"},
    {"parse_rows", native_parse_rows, METH_VARARGS, "parse_rows(blob)"},
    {"parse_some_rows", native_parse_some_rows, METH_VARARGS, "parse_some_rows(blob, start, limit)"},
    {"index_places", native_index_places, METH_VARARGS, "index_places(data, layout, keys)"},
    {"plain_entries", native_plain_entries, METH_VARARGS, "plain_entries(payload, start, entry_type, kinds)"},
    {"read_files", native_read_files, METH_VARARGS, "read_files(dirfd, names, max_size)"},
    {"write_files", native_write_files, METH_VARARGS, "write_files(dirfd, files, owners, hole_min)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "layerfs.kernels._native",
    .m_doc = "Compiled kernels; see layerfs.kernels.native.",
    .m_size = -1,
    .m_methods = methods,
};

static PyTypeObject *type_named(PyObject *from, const char *name)
{
    PyObject *type = PyObject_GetAttrString(from, name);
    if (type && !(PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))) {
        PyErr_Format(PyExc_TypeError, "layerfs.kernels.rows.%s is not a tuple type", name);
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *rows = PyImport_ImportModule("layerfs.kernels.rows");
    if (!rows)
        return NULL;
    row_type = type_named(rows, "Row");
    file_read_type = type_named(rows, "FileRead");
    fault_type = type_named(rows, "FileFault");
    Py_DECREF(rows);
    if (!row_type || !file_read_type || !fault_type)
        return NULL;
    return PyModule_Create(&module);
}
