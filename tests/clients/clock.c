/* Preloaded into a server or a command: the clock of day is what it is, and CLOCK_CONTROL's seconds more (a
 * file of one number of 64 bits, which can be written while it runs). The monotonic clocks stay. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none;
static volatile int64_t *ahead = &none;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    /* Not libc's, which would be found by a look-up that may ask for the time. */
    int code = (int)syscall(SYS_clock_gettime, clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        now->tv_sec += *ahead;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_CONTROL");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *held = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (held == MAP_FAILED)
        _exit(99);
    ahead = held;
    close(file);
}
