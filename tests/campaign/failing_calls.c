// Preloaded: the n-th call that changes a file below a folder fails, once. From the environment:
//   FAIL_BELOW   the folder
//   FAIL_CALL    n, counted from 1 over all threads and processes; 0: none, they are only listed
//   FAIL_WITH    the error's number; 0: the write is short, which is no error
//   FAIL_LIST    a file that gets a line of LINE bytes for each call: its name, and the file's
//   FAIL_MEMORY  instead: the n-th request for at least so many bytes of aligned memory; the line
//                names the library that asked
// A crash gets a line too, with the library that it happened in.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum { LINE = 64 };

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

static const char* path_of(int file) {
  static __thread char path[PATH_MAX + 1];
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, PATH_MAX);
  path[size < 0 ? 0 : size] = 0;
  return path;
}

// Whether this call is the one. Lines are appended whole, so the place of its line is its number.
static int fails(const char* call, const char* at) {
  const char *list = getenv("FAIL_LIST"), *wanted = getenv("FAIL_CALL");
  const char* slash = at ? strrchr(at, '/') : NULL;
  char line[LINE + 1];
  snprintf(line, sizeof line, "%-10s %-*.*s", call, LINE - 12, LINE - 12,
           slash ? slash + 1
           : at  ? at
                 : "-");
  line[LINE - 1] = '\n';
  const int file = REAL(open)(list, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) abort();
  REAL(write)(file, line, LINE);
  const off_t end = lseek(file, 0, SEEK_CUR);
  REAL(close)(file);
  return wanted && end / LINE == atol(wanted);
}

static int fails_open(const char* call, int file) {
  const char* path = path_of(file);  // "pipe:[1]" is no path
  return path[0] == '/' && is_ours(path) && fails(call, path);
}

static int error(void) {
  const char* with = getenv("FAIL_WITH");
  return with ? atoi(with) : EIO;
}

static int has_no_memory(size_t size, const void* caller) {
  const char* from = getenv("FAIL_MEMORY");
  Dl_info found = {0};
  if (!from || size < (size_t)atol(from)) return 0;
  dladdr(caller, &found);
  return fails("request", found.dli_fname);
}

int posix_memalign(void** at, size_t alignment, size_t size) {
  if (has_no_memory(size, __builtin_return_address(0))) return ENOMEM;
  return REAL(posix_memalign)(at, alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  if (has_no_memory(size, __builtin_return_address(0))) return NULL;
  return REAL(aligned_alloc)(alignment, size);
}

// Whether the call fails as it is told to; a short write is none that fails.
static int refused(int is_it) {
  if (!is_it || error() == 0) return 0;
  errno = error();
  return 1;
}

// A short write leaves half of what it was given.
static size_t less(size_t size) {
  return size > 1 ? size / 2 : size;
}

ssize_t write(int file, const void* data, size_t size) {
  const int is_it = fails_open("write", file);
  return refused(is_it) ? -1 : REAL(write)(file, data, is_it ? less(size) : size);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  const int is_it = fails_open("writev", file);
  if (refused(is_it)) return -1;
  if (is_it) return REAL(write)(file, parts[0].iov_base, less(parts[0].iov_len));
  return REAL(writev)(file, parts, count);
}

#define FAILING(name, declared, given, ours)      \
  int name declared {                             \
    return refused(ours) ? -1 : REAL(name) given; \
  }

FAILING(fsync, (int file), (file), fails_open("fsync", file))
FAILING(ftruncate64, (int file, off64_t size), (file, size), fails_open("ftruncate64", file))
FAILING(rename, (const char* from, const char* to), (from, to),
        is_ours(from) && fails("rename", from))
FAILING(mkdir, (const char* path, mode_t mode), (path, mode), is_ours(path) && fails("mkdir", path))

#define OPENING(name)                                                       \
  int name(const char* path, int flags, ...) {                              \
    va_list more;                                                           \
    va_start(more, flags);                                                  \
    const mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0;       \
    va_end(more);                                                           \
    const int writes = (flags & O_ACCMODE) != O_RDONLY;                     \
    if (refused(writes && is_ours(path) && fails("open", path))) return -1; \
    return REAL(name)(path, flags, mode);                                   \
  }

OPENING(open)
OPENING(open64)

FILE* fopen64(const char* path, const char* mode) {
  if (refused(mode[0] != 'r' && is_ours(path) && fails("open", path))) return NULL;
  return REAL(fopen64)(path, mode);
}

#ifdef __x86_64__
static void crashed(int number, siginfo_t* info, void* context) {
  (void)number, (void)info;
  Dl_info found = {0};
  dladdr((void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP], &found);
  fails("crash", found.dli_fname);
  // the same instruction is tried once more, which ends the program as it would have ended
}

__attribute__((constructor)) static void tell_of_crashes(void) {
  struct sigaction action = {0};
  action.sa_sigaction = crashed;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  if (getenv("FAIL_LIST")) sigaction(SIGSEGV, &action, NULL);
}
#endif
