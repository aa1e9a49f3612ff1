/* Preloaded into a server: its main thread stands still in a system call for ever when a client
   connects and the file $STUCK_WHEN exists, which it removes. All other threads go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int (*real)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    const char *when = getenv("STUCK_WHEN");

    if (when && syscall(SYS_gettid) == getpid() && unlink(when) == 0)
        for (;;)
            pause();
    return real(fd, level, name, value, len);
}
