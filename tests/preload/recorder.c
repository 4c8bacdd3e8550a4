/*
 * Records what a process does to the files below one directory, in the order in which it happens: every creation,
 * write, truncation, renaming, removal and sync. tests/powercut makes the disks of power cuts from it.
 *
 *   LD_PRELOAD      this library
 *   RECORDER_ROOT   the directory: absolute, without symbolic links, not "/"
 *   RECORDER_TRACE  the file that records are appended to; it must not lie below the root
 *
 * How to trust it:
 *
 *   - An effect and its record are made under one lock, so the records stand in the order of the effects.
 *   - A record's time (CLOCK_MONOTONIC) is taken under that lock and before the effect. Whoever got an answer before
 *     the time of a record got it while neither that effect nor any later one had happened.
 *   - A sync has two records, one before it begins and one after it succeeded. Only what was written before the first
 *     is durable at the second. A sync that fails has no second record.
 *   - sync_file_range is not recorded: it makes nothing durable.
 *   - What it cannot record ends the process with a line on standard error. What it does not even see (a system call
 *     made without the C library) is found by the test that compares the directory with the trace.
 *   - SIGUSR2 ends the process as by kill -9, but between two effects: the trace is then exactly what happened.
 *
 * A descriptor opened with O_DIRECTORY is for listing and is not followed: closedir would close it unseen.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* ---- The trace: a header of 32 bytes in this machine's (little-endian) order, then the payload. ---- */

enum kind {
    START = 1,           /* the process begins */
    OPEN = 2,            /* an existing file or directory is opened; payload: path */
    CREATE = 3,          /* a file is created and opened; payload: path */
    MAKE_DIRECTORY = 4,  /* payload: path */
    WRITE = 5,           /* number: offset; payload: the bytes */
    TRUNCATE = 6,        /* number: the new length */
    RENAME = 7,          /* payload: old path, 0, new path */
    REMOVE = 8,          /* payload: path */
    REMOVE_DIRECTORY = 9,/* payload: path */
    SYNC_BEGIN = 10,     /* fsync; number: of this sync */
    DATA_SYNC_BEGIN = 11,/* fdatasync; number: of this sync */
    SYNC_END = 12,       /* number: of the sync that succeeded */
};

struct header {
    uint32_t kind;
    uint32_t length; /* of the payload */
    uint64_t at_ns;
    uint64_t file; /* its inode */
    uint64_t number;
};

/* Descriptors that may be files below the root. A node opens them first, long before it has as many connections. */
#define DESCRIPTORS 4096
/* The trace's own descriptor keeps out of the way of numbers that a program expects. */
#define TRACE_DESCRIPTOR_MIN 900

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1; /* -1 while nothing is recorded */
static const char *root;
static size_t root_length;
static uint64_t syncs;
static volatile sig_atomic_t ending;

static _Atomic uint64_t inode_of[DESCRIPTORS]; /* 0: not a file below the root */
static _Atomic int appends[DESCRIPTORS];       /* opened with O_APPEND */

static void refuse(const char *what) {
    char line[256];
    int length = snprintf(line, sizeof line, "recorder: %s\n", what);
    syscall(SYS_write, 2, line, length);
    abort();
}

/* Under the lock, so between two effects. */
static void end_process(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

static void enter(void) {
    pthread_mutex_lock(&lock);
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
    if (ending) {
        pthread_mutex_lock(&lock);
        end_process();
    }
}

/* Whoever holds the lock, this very thread perhaps, ends the process when leaving; if nobody does, we do. */
static void on_end_signal(int signal) {
    (void)signal;
    ending = 1;
    if (pthread_mutex_trylock(&lock) == 0)
        end_process();
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void append_record(enum kind kind, uint64_t at_ns, uint64_t file, uint64_t number, const void *payload, size_t length) {
    struct header header = {kind, (uint32_t)length, at_ns, file, number};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)payload, length}};
    ssize_t written = syscall(SYS_writev, trace, parts, 2);
    if (written != (ssize_t)(sizeof header + length))
        refuse("the trace cannot be written");
}

__attribute__((constructor)) static void start(void) {
    root = getenv("RECORDER_ROOT");
    const char *path = getenv("RECORDER_TRACE");
    if (!root || !path)
        return;
    root_length = strlen(root);
    int low = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    trace = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, TRACE_DESCRIPTOR_MIN);
    if (low < 0 || trace < 0)
        refuse("the trace cannot be opened");
    syscall(SYS_close, low);
    struct sigaction action = {.sa_handler = on_end_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    append_record(START, now_ns(), 0, 0, NULL, 0);
}

/* ---- Which calls are about files below the root. ---- */

static uint64_t inode_at(int descriptor) {
    if (trace < 0 || descriptor < 0 || DESCRIPTORS <= descriptor)
        return 0;
    return inode_of[descriptor];
}

/* The path in full: it may be relative to an open directory, or to the working directory. */
static const char *full_path(int directory, const char *path, char buffer[PATH_MAX]) {
    if (path[0] == '/')
        return path;
    char link[64];
    if (directory == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = syscall(SYS_readlink, link, buffer, PATH_MAX - 1);
    if (length < 0 || PATH_MAX <= (size_t)length + 1 + strlen(path))
        return path;
    buffer[length] = '/';
    strcpy(buffer + length + 1, path);
    return buffer;
}

static int is_below_root(const char *path) {
    if (trace < 0 || strncmp(path, root, root_length) != 0 || (path[root_length] != 0 && path[root_length] != '/'))
        return 0;
    /* The same file must not have two names in the trace. */
    if (strstr(path + root_length, "/..") || strstr(path + root_length, "//"))
        refuse("a path that is not in its shortest form below the root");
    return 1;
}

/* ---- Opening and closing. ---- */

static int open_recorded(const char *path, int flags, mode_t mode) {
    if ((flags & O_TMPFILE) == O_TMPFILE)
        refuse("O_TMPFILE below the root");
    enter();
    uint64_t at_ns = now_ns();
    struct stat before, after;
    int existed = syscall(SYS_newfstatat, AT_FDCWD, path, &before, 0) == 0;
    int descriptor = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    int error = errno;
    if (0 <= descriptor) {
        if (DESCRIPTORS <= descriptor)
            refuse("a descriptor beyond those that are followed");
        syscall(SYS_fstat, descriptor, &after);
        inode_of[descriptor] = after.st_ino;
        appends[descriptor] = (flags & O_APPEND) != 0;
        append_record(existed ? OPEN : CREATE, at_ns, after.st_ino, 0, path, strlen(path));
        if (existed && (flags & O_TRUNC) && before.st_size != 0)
            append_record(TRUNCATE, at_ns, after.st_ino, 0, NULL, 0);
    }
    leave();
    errno = error;
    return descriptor;
}

static int open_any(int directory, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *full = full_path(directory, path, buffer);
    if (!is_below_root(full) || ((flags & O_DIRECTORY) && (flags & O_TMPFILE) != O_TMPFILE))
        return syscall(SYS_openat, directory, path, flags, mode);
    return open_recorded(full, flags, mode);
}

#define WITH_MODE(call)              \
    va_list rest;                    \
    va_start(rest, flags);           \
    mode_t mode = va_arg(rest, int); \
    va_end(rest);                    \
    return call

int open(const char *path, int flags, ...) { WITH_MODE(open_any(AT_FDCWD, path, flags, mode)); }
int open64(const char *path, int flags, ...) { WITH_MODE(open_any(AT_FDCWD, path, flags, mode)); }
int openat(int directory, const char *path, int flags, ...) { WITH_MODE(open_any(directory, path, flags, mode)); }
int openat64(int directory, const char *path, int flags, ...) { WITH_MODE(open_any(directory, path, flags, mode)); }

int close(int descriptor) {
    /* Forgotten first: once it is closed, another thread may be given the number. */
    if (inode_at(descriptor))
        inode_of[descriptor] = 0;
    return syscall(SYS_close, descriptor);
}

/* ---- Data. ---- */

static ssize_t write_recorded(int descriptor, uint64_t inode, const void *bytes, size_t length, off_t offset) {
    enter();
    uint64_t at_ns = now_ns();
    ssize_t written;
    if (offset < 0) { /* where the descriptor stands */
        struct stat status;
        syscall(SYS_fstat, descriptor, &status);
        offset = appends[descriptor] ? status.st_size : syscall(SYS_lseek, descriptor, 0, SEEK_CUR);
        written = syscall(SYS_write, descriptor, bytes, length);
    } else {
        written = syscall(SYS_pwrite64, descriptor, bytes, length, offset);
    }
    int error = errno;
    if (0 < written)
        append_record(WRITE, at_ns, inode, offset, bytes, written);
    leave();
    errno = error;
    return written;
}

ssize_t write(int descriptor, const void *bytes, size_t length) {
    uint64_t inode = inode_at(descriptor);
    if (!inode)
        return syscall(SYS_write, descriptor, bytes, length);
    return write_recorded(descriptor, inode, bytes, length, -1);
}

static ssize_t pwrite_any(int descriptor, const void *bytes, size_t length, off_t offset) {
    uint64_t inode = inode_at(descriptor);
    if (!inode || offset < 0)
        return syscall(SYS_pwrite64, descriptor, bytes, length, offset);
    return write_recorded(descriptor, inode, bytes, length, offset);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t length, off_t offset) {
    return pwrite_any(descriptor, bytes, length, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t length, off64_t offset) {
    return pwrite_any(descriptor, bytes, length, offset);
}

static int truncate_any(int descriptor, off_t length) {
    uint64_t inode = inode_at(descriptor);
    if (!inode)
        return syscall(SYS_ftruncate, descriptor, length);
    enter();
    uint64_t at_ns = now_ns();
    int result = syscall(SYS_ftruncate, descriptor, length);
    int error = errno;
    if (result == 0)
        append_record(TRUNCATE, at_ns, inode, length, NULL, 0);
    leave();
    errno = error;
    return result;
}

int ftruncate(int descriptor, off_t length) { return truncate_any(descriptor, length); }
int ftruncate64(int descriptor, off64_t length) { return truncate_any(descriptor, length); }

/* ---- Names. ---- */

int rename(const char *from, const char *to) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *full_from = full_path(AT_FDCWD, from, from_buffer);
    const char *full_to = full_path(AT_FDCWD, to, to_buffer);
    if (!is_below_root(full_from) && !is_below_root(full_to))
        return syscall(SYS_rename, from, to);
    if (!is_below_root(full_from) || !is_below_root(full_to))
        refuse("a file is renamed across the root");
    char both[2 * PATH_MAX];
    size_t from_length = strlen(full_from), to_length = strlen(full_to);
    memcpy(both, full_from, from_length + 1);
    memcpy(both + from_length + 1, full_to, to_length);
    enter();
    uint64_t at_ns = now_ns();
    int result = syscall(SYS_rename, from, to);
    int error = errno;
    if (result == 0)
        append_record(RENAME, at_ns, 0, 0, both, from_length + 1 + to_length);
    leave();
    errno = error;
    return result;
}

static int remove_any(int directory, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *full = full_path(directory, path, buffer);
    if (!is_below_root(full))
        return syscall(SYS_unlinkat, directory, path, flags);
    enter();
    uint64_t at_ns = now_ns();
    int result = syscall(SYS_unlinkat, directory, path, flags);
    int error = errno;
    if (result == 0)
        append_record(flags & AT_REMOVEDIR ? REMOVE_DIRECTORY : REMOVE, at_ns, 0, 0, full, strlen(full));
    leave();
    errno = error;
    return result;
}

int unlink(const char *path) { return remove_any(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return remove_any(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int directory, const char *path, int flags) { return remove_any(directory, path, flags); }

int mkdir(const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *full = full_path(AT_FDCWD, path, buffer);
    if (!is_below_root(full))
        return syscall(SYS_mkdir, path, mode);
    enter();
    uint64_t at_ns = now_ns();
    int result = syscall(SYS_mkdir, path, mode);
    int error = errno;
    if (result == 0) {
        struct stat status;
        syscall(SYS_newfstatat, AT_FDCWD, full, &status, 0);
        append_record(MAKE_DIRECTORY, at_ns, status.st_ino, 0, full, strlen(full));
    }
    leave();
    errno = error;
    return result;
}

/* ---- Syncs. Not under the lock: what others write meanwhile may or may not be covered. ---- */

static int sync_any(int descriptor, long call, enum kind kind) {
    uint64_t inode = inode_at(descriptor);
    if (!inode)
        return syscall(call, descriptor);
    enter();
    uint64_t number = ++syncs;
    append_record(kind, now_ns(), inode, number, NULL, 0);
    leave();
    int result = syscall(call, descriptor);
    int error = errno;
    if (result == 0) {
        enter();
        append_record(SYNC_END, now_ns(), inode, number, NULL, 0);
        leave();
    }
    errno = error;
    return result;
}

int fsync(int descriptor) { return sync_any(descriptor, SYS_fsync, SYNC_BEGIN); }
int fdatasync(int descriptor) { return sync_any(descriptor, SYS_fdatasync, DATA_SYNC_BEGIN); }

/* ---- What is not recorded must not happen below the root. ---- */

#define REFUSED_ON(descriptor, name)  \
    do {                              \
        if (inode_at(descriptor))     \
            refuse(name " below the root"); \
    } while (0)

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REFUSED_ON(descriptor, "writev");
    return syscall(SYS_writev, descriptor, parts, count);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    REFUSED_ON(descriptor, "pwritev");
    return syscall(SYS_pwritev, descriptor, parts, count, offset, 0L);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset) {
    REFUSED_ON(descriptor, "pwritev");
    return syscall(SYS_pwritev, descriptor, parts, count, offset, 0L);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length, unsigned flags) {
    REFUSED_ON(to, "copy_file_range");
    return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, length, flags);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t length) {
    REFUSED_ON(to, "sendfile");
    return syscall(SYS_sendfile, to, from, offset, length);
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
    REFUSED_ON(descriptor, "fallocate");
    return syscall(SYS_fallocate, descriptor, mode, offset, length);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t length) {
    REFUSED_ON(descriptor, "posix_fallocate");
    return syscall(SYS_fallocate, descriptor, 0, offset, length) == 0 ? 0 : errno;
}

void *mmap64(void *address, size_t length, int protection, int flags, int descriptor, off64_t offset) {
    if ((protection & PROT_WRITE) && (flags & MAP_SHARED))
        REFUSED_ON(descriptor, "a shared writable mmap");
    return (void *)syscall(SYS_mmap, address, length, protection, flags, descriptor, offset);
}

int fcntl64(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        REFUSED_ON(descriptor, "a duplicated descriptor");
    return syscall(SYS_fcntl, descriptor, command, argument);
}

int fcntl(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        REFUSED_ON(descriptor, "a duplicated descriptor");
    return syscall(SYS_fcntl, descriptor, command, argument);
}

int link(const char *from, const char *to) {
    if (is_below_root(to))
        refuse("link below the root");
    return syscall(SYS_link, from, to);
}
