/* A device whose response times are known, for nbdkit (nbdkit cc bench/paced_device.c base_us=4000): 256 MiB of
 * memory. Each write takes the base time, one of 50 takes four times as long, one of 500 sixteen times as long, by
 * their count and not by chance: half of the responses are at the base, the 99th percentile is at four times, the
 * 99.9th at sixteen times of it. Flushes and reads take no time. */
#define NBDKIT_API_VERSION 2
#include <errno.h>
#include <nbdkit-plugin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
#define SIZE (256u << 20)

static char *memory;
static long base_us = 4000;
static atomic_uint writes;

static int paced_config(const char *key, const char *value) {
    if (strcmp(key, "base_us") != 0) {
        nbdkit_error("unknown parameter: %s", key);
        return -1;
    }
    base_us = atol(value);
    return 0;
}

static int paced_get_ready(void) {
    memory = calloc(1, SIZE);
    return memory ? 0 : -1;
}

static void *paced_open(int readonly) {
    (void)readonly;
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t paced_get_size(void *handle) {
    (void)handle;
    return SIZE;
}

static int paced_can_multi_conn(void *handle) {
    (void)handle;
    return 1;
}

static int paced_can_fua(void *handle) {
    (void)handle;
    return NBDKIT_FUA_NATIVE;
}

static int paced_pread(void *handle, void *data, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)handle, (void)flags;
    memcpy(data, memory + offset, count);
    return 0;
}

static int paced_pwrite(void *handle, const void *data, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)handle, (void)flags;
    /* The end is fixed when the request arrives, so that what the thread waits for does not add up. */
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    unsigned number = atomic_fetch_add(&writes, 1);
    long times = number % 500 == 250 ? 16 : number % 50 == 25 ? 4 : 1;
    long ns = end.tv_nsec + base_us * times * 1000;
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    memcpy(memory + offset, data, count);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) {
    }
    return 0;
}

static int paced_flush(void *handle, uint32_t flags) {
    (void)handle, (void)flags;
    return 0;
}

static struct nbdkit_plugin plugin = {
    .name = "paced",
    .config = paced_config,
    .get_ready = paced_get_ready,
    .open = paced_open,
    .get_size = paced_get_size,
    .can_multi_conn = paced_can_multi_conn,
    .can_fua = paced_can_fua,
    .pread = paced_pread,
    .pwrite = paced_pwrite,
    .flush = paced_flush,
};
NBDKIT_REGISTER_PLUGIN(plugin)
