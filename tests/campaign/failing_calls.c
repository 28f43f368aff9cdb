// Preloaded: the n-th call that changes a file below a folder fails, once. From the environment:
//   FAIL_BELOW   the folder
//   FAIL_CALL    n, counted from 1 over all threads; 0: none, they are counted only
//   FAIL_WITH    the error's number; 0: the write is short, which is no error
//   FAIL_COUNT   a file that gets a byte for each call
//   FAIL_MEMORY  instead: the n-th request for at least so many bytes of aligned memory
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_ours(const char* path) {
  const char* below = getenv("FAIL_BELOW");
  if (!below || !path || getenv("FAIL_MEMORY")) return 0;
  char whole[PATH_MAX + 1];
  if (path[0] != '/') {  // relative: of the folder in which the program works
    if (!getcwd(whole, sizeof whole)) return 0;
    strncat(whole, "/", PATH_MAX - strlen(whole));
    strncat(whole, path, PATH_MAX - strlen(whole));
    path = whole;
  }
  return strncmp(path, below, strlen(below)) == 0;
}

static int is_ours_open(int file) {
  const char* below = getenv("FAIL_BELOW");
  char link[64], path[PATH_MAX + 1];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, PATH_MAX);
  if (size < 0) return 0;
  path[size] = 0;
  return is_ours(path);
}

// Whether this call is the one.
static int fails(void) {
  const char* count = getenv("FAIL_COUNT");
  if (count) {
    const int file = REAL(openat)(AT_FDCWD, count, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file >= 0) {
      REAL(write)(file, ".", 1);
      REAL(close)(file);
    }
  }
  const char* wanted = getenv("FAIL_CALL");
  return atomic_fetch_add(&calls, 1) + 1 == (wanted ? atol(wanted) : 0);
}

static int error(void) {
  const char* with = getenv("FAIL_WITH");
  return with ? atoi(with) : EIO;
}

static int has_no_memory(size_t size) {
  const char* from = getenv("FAIL_MEMORY");
  return from && size >= (size_t)atol(from) && fails();
}

int posix_memalign(void** at, size_t alignment, size_t size) {
  return has_no_memory(size) ? ENOMEM : REAL(posix_memalign)(at, alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  return has_no_memory(size) ? NULL : REAL(aligned_alloc)(alignment, size);
}

ssize_t write(int file, const void* data, size_t size) {
  if (is_ours_open(file) && fails()) {
    if (error() == 0) return REAL(write)(file, data, size > 1 ? size / 2 : size);
    errno = error();
    return -1;
  }
  return REAL(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  if (is_ours_open(file) && fails()) {
    if (error() == 0 && count > 1) return REAL(writev)(file, parts, 1);
    if (error() != 0) {
      errno = error();
      return -1;
    }
  }
  return REAL(writev)(file, parts, count);
}

#define FAILING(type, name, declared, given, ours)                 \
  type name declared {                                             \
    if ((ours) && fails() && error() != 0) {                       \
      errno = error();                                             \
      return -1;                                                   \
    }                                                              \
    return REAL(name) given;                                       \
  }

FAILING(ssize_t, pwrite64, (int file, const void* data, size_t size, off64_t at),
        (file, data, size, at), is_ours_open(file))
FAILING(int, fsync, (int file), (file), is_ours_open(file))
FAILING(int, fdatasync, (int file), (file), is_ours_open(file))
FAILING(int, ftruncate64, (int file, off64_t size), (file, size), is_ours_open(file))
FAILING(int, rename, (const char* from, const char* to), (from, to), is_ours(from))
FAILING(int, mkdir, (const char* path, mode_t mode), (path, mode), is_ours(path))

static int opened(const char* name, int folder, const char* path, int flags, mode_t mode) {
  if ((flags & O_ACCMODE) != O_RDONLY && is_ours(path) && fails() && error() != 0) {
    errno = error();
    return -1;
  }
  return ((int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, name))(folder, path, flags, mode);
}

#define OPENING(name, at, declared, folder)                        \
  int name declared {                                              \
    va_list more;                                                  \
    va_start(more, flags);                                         \
    const mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                  \
    return opened(at, folder, path, flags, mode);                  \
  }

OPENING(open, "openat", (const char* path, int flags, ...), AT_FDCWD)
OPENING(open64, "openat64", (const char* path, int flags, ...), AT_FDCWD)
OPENING(openat, "openat", (int folder, const char* path, int flags, ...), folder)
OPENING(openat64, "openat64", (int folder, const char* path, int flags, ...), folder)

#define OPENING_STREAM(name)                                                      \
  FILE* name(const char* path, const char* mode) {                                \
    if (mode[0] != 'r' && is_ours(path) && fails() && error() != 0) {             \
      errno = error();                                                            \
      return NULL;                                                                \
    }                                                                             \
    return REAL(name)(path, mode);                                                \
  }

OPENING_STREAM(fopen)
OPENING_STREAM(fopen64)
