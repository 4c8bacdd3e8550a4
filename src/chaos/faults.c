/*
 * A disk that fails, hangs, is slow or full when it is told so: preloaded into a node, it stands between the node and the
 * kernel. `highwater chaos` and the tests compile it.
 *
 * FAULTS_CONTROL names a file. While there is none, every call goes through. Its one line is a fault:
 *
 *     CALL PATH NTH ACTION DELAY_MS
 *
 * CALL     write, pwrite, fsync, fdatasync or sync_file_range, or several of them with commas between
 * PATH     a part of the file's path
 * NTH      which of the matching calls since the file was put there, from 1 on
 * ACTION   an errno: that one call fails with it, and the file is renamed to FAULTS_CONTROL.hit, so that no other does;
 *          or an errno below zero: this and all later matching calls fail with it until the file is gone;
 *          or 0: this and all later matching calls wait until the file is gone.
 *          These two make FAULTS_CONTROL.hit
 * DELAY_MS how long the call takes before it fails; for 0, how long each call waits at most, where that is not 0
 *
 * FAULTS_TRACE, if set, names a file that gets a line "CALL PATH" for every call on a path below FAULTS_ROOT, and a line
 * "failed PATH" where one is about to fail.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct stat counted;
static long matches;

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The path behind a descriptor; empty where it has none. */
static void path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    path[length < 0 ? 0 : length] = 0;
}

static void trace(const char *call, const char *path) {
    const char *file = getenv("FAULTS_TRACE"), *root = getenv("FAULTS_ROOT");
    if (!file || !root || strncmp(path, root, strlen(root)) != 0) return;
    char line[4200];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, (size_t)length);
    syscall(SYS_close, fd);
}

/* Which matching call this is, since the control file was put there. */
static long number_of(const struct stat *control) {
    pthread_mutex_lock(&counting);
    if (control->st_ino != counted.st_ino || control->st_ctim.tv_sec != counted.st_ctim.tv_sec ||
        control->st_ctim.tv_nsec != counted.st_ctim.tv_nsec) {
        counted = *control;
        matches = 0;
    }
    long number = ++matches;
    pthread_mutex_unlock(&counting);
    return number;
}

/* Whether the call is one of those in the list. */
static int is_one_of(const char *call, char *list) {
    char *rest = NULL;
    for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (strcmp(one, call) == 0) return 1;
    return 0;
}

/* Returns the errno that the call fails with, or 0. */
static int fault(const char *call, int fd) {
    const char *control = getenv("FAULTS_CONTROL");
    char path[4096];
    struct stat found;
    int is_there = control && stat(control, &found) == 0;
    if (!is_there && !getenv("FAULTS_TRACE")) return 0;
    path_of(fd, path, sizeof path);
    if (path[0] != '/') return 0;
    trace(call, path);
    if (!is_there) return 0;

    char line[4200] = "", wanted[64], part[4096];
    long nth, delay;
    int action;
    int file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return 0;
    ssize_t length = syscall(SYS_read, file, line, sizeof line - 1);
    syscall(SYS_close, file);
    if (length <= 0 || sscanf(line, "%63s %4095s %ld %d %ld", wanted, part, &nth, &action, &delay) != 5) return 0;
    if (!is_one_of(call, wanted) || !strstr(path, part)) return 0;

    long number = number_of(&found);
    char hit[4200];
    snprintf(hit, sizeof hit, "%s.hit", control);
    if (action <= 0) {
        if (number < nth) return 0;
        int made = syscall(SYS_openat, AT_FDCWD, hit, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (0 <= made) syscall(SYS_close, made);
        if (action < 0) return -action;
        if (delay) pause_ms(delay);
        else while (stat(control, &found) == 0) pause_ms(5);
        return 0;
    }
    if (number != nth || rename(control, hit) != 0) return 0;
    trace("failed", path);
    pause_ms(delay);
    return action;
}

static int fails(const char *call, int fd) {
    int before = errno;
    int code = fault(call, fd);
    errno = code ? code : before;
    return code != 0;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    return fails("write", fd) ? -1 : syscall(SYS_write, fd, bytes, size);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) {
    return fails("pwrite", fd) ? -1 : syscall(SYS_pwrite64, fd, bytes, size, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    return pwrite64(fd, bytes, size, offset);
}

int fsync(int fd) {
    return fails("fsync", fd) ? -1 : syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return fails("fdatasync", fd) ? -1 : syscall(SYS_fdatasync, fd);
}

int sync_file_range(int fd, off_t offset, off_t size, unsigned int flags) {
    return fails("sync_file_range", fd) ? -1 : syscall(SYS_sync_file_range, fd, offset, size, flags);
}
