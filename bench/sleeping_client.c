/* A load on one NBD export through libnbd: the client sleeps in poll(2) while it waits.
 *
 *   sleeping-client URI MODE BLOCK_BYTES DEPTH SECONDS [SEED]
 *
 * MODE: fua, write, flush (each write is followed by a FLUSH), read, seqwrite, seqread.
 * Prints one line of JSON: requests, seconds, bytes, latency percentiles in microseconds, and the longest
 * latency of each tenth of a second; of a minute and more also the percentiles of each sixtieth of the time.
 */
#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum mode { FUA, WRITE, FLUSH, READ, SEQWRITE, SEQREAD };
static const char *const names[] = {"fua", "write", "flush", "read", "seqwrite", "seqread"};

struct slot {
    uint64_t begun;
    int flushing;
    int idle;
    char *buffer;
};

static struct nbd_handle *nbd;
static enum mode mode;
static uint64_t block, blocks, next_block, state;
static uint64_t *latencies, count, capacity;
static uint32_t longest[36000];
static uint64_t begin, length;
static int failed;
/* Requests that have ended before each part of the time does. */
enum { PARTS = 60 };
static uint64_t part_ends[PARTS];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "sleeping-client: %s: %s\n", what, nbd_get_error());
    exit(1);
}

static uint64_t random_u64(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int done(void *data, int *error) {
    struct slot *slot = data;
    if (*error) {
        fprintf(stderr, "sleeping-client: a request failed: %s\n", strerror(*error));
        failed = 1;
    }
    if (mode == FLUSH && !slot->flushing) {
        slot->flushing = 1;
        slot->idle = 1;
        return 1;
    }
    slot->flushing = 0;
    slot->idle = 1;
    if (count == capacity) {
        capacity = capacity ? 2 * capacity : 1 << 16;
        latencies = realloc(latencies, capacity * sizeof *latencies);
    }
    uint64_t end = now(), took = end - slot->begun;
    latencies[count++] = took;
    uint64_t tenth = (end - begin) / 100000000;
    uint64_t part = (end - begin) * PARTS / length;
    if (part < PARTS) part_ends[part] = count;
    if (tenth < 36000 && took / 1000 > longest[tenth]) longest[tenth] = took / 1000;
    return 1;
}

static void start(struct slot *slot) {
    nbd_completion_callback callback = {.callback = done, .user_data = slot};
    int64_t cookie;
    slot->idle = 0;
    if (slot->flushing) {
        cookie = nbd_aio_flush(nbd, callback, 0);
        if (cookie < 0) die("flush");
        return;
    }
    uint64_t at = mode == SEQWRITE || mode == SEQREAD ? next_block++ % blocks : random_u64() % blocks;
    slot->begun = now();
    if (mode == READ || mode == SEQREAD) {
        cookie = nbd_aio_pread(nbd, slot->buffer, block, at * block, callback, 0);
    } else {
        uint32_t flags = mode == FUA ? LIBNBD_CMD_FLAG_FUA : 0;
        *(uint64_t *)slot->buffer = random_u64();
        cookie = nbd_aio_pwrite(nbd, slot->buffer, block, at * block, callback, flags);
    }
    if (cookie < 0) die("request");
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile(const uint64_t *sorted, uint64_t len, double share) {
    return len ? sorted[(uint64_t)(share * (len - 1))] / 1e3 : 0.0;
}

static const double shares[] = {0.5, 0.9, 0.99, 0.999, 0.9999};
static const char *const labels[] = {"p50", "p90", "p99", "p99_9", "p99_99"};

static void print_percentiles(const uint64_t *sorted, uint64_t len) {
    for (int i = 0; i < 5; i++) printf(",\"%s_us\":%.1f", labels[i], percentile(sorted, len, shares[i]));
    printf(",\"max_us\":%.1f", percentile(sorted, len, 1));
}

/* The latencies are in the order of their ends still, and are sorted part by part. */
static void print_parts(void) {
    printf(",\"parts\":[");
    for (uint64_t i = 0, first = 0; i < PARTS; i++) {
        uint64_t len = part_ends[i] > first ? part_ends[i] - first : 0;
        qsort(latencies + first, len, sizeof *latencies, by_size);
        printf("%s{\"requests\":%" PRIu64, i ? "," : "", len);
        print_percentiles(latencies + first, len);
        printf("}");
        first += len;
    }
    printf("]");
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: sleeping-client URI MODE BLOCK_BYTES DEPTH SECONDS [SEED]\n");
        return 2;
    }
    int known = -1;
    for (int i = 0; i < 6; i++)
        if (!strcmp(argv[2], names[i])) known = i;
    if (known < 0) return fprintf(stderr, "sleeping-client: no such mode: %s\n", argv[2]), 2;
    mode = known;
    block = strtoull(argv[3], NULL, 10);
    int depth = atoi(argv[4]);
    double seconds = atof(argv[5]);
    state = 0x9e3779b97f4a7c15 ^ (argc > 6 ? strtoull(argv[6], NULL, 10) * 0x2545f4914f6cdd1d : 1);
    nbd = nbd_create();
    if (!nbd || nbd_connect_uri(nbd, argv[1]) < 0) die("connect");
    int64_t size = nbd_get_size(nbd);
    if (size < 0) die("size");
    blocks = size / block;
    struct slot *slots = calloc(depth, sizeof *slots);
    begin = now();
    length = (uint64_t)(seconds * 1e9);
    uint64_t end = begin + length;
    for (int i = 0; i < depth; i++) {
        slots[i].buffer = aligned_alloc(4096, block);
        for (uint64_t at = 0; at < block / 8; at++) ((uint64_t *)slots[i].buffer)[at] = random_u64();
        start(&slots[i]);
    }
    int active = depth;
    while (active > 0 && !failed) {
        if (nbd_poll(nbd, -1) < 0) die("poll");
        int ending = now() >= end;
        for (int i = 0; i < depth; i++) {
            if (slots[i].idle != 1) continue;
            if (ending && !slots[i].flushing) {
                slots[i].idle = 2;
                active--;
            } else {
                start(&slots[i]);
            }
        }
    }
    if (failed) return 1;
    double took = (now() - begin) / 1e9;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"requests\":%" PRIu64 ",\"seconds\":%.6f,\"bytes\":%" PRIu64 ",\"cpu_seconds\":%.6f", count, took,
           count * block, cpu);
    if (seconds >= 60) print_parts();
    qsort(latencies, count, sizeof *latencies, by_size);
    print_percentiles(latencies, count);
    printf(",\"longest_us\":[");
    uint64_t tenths = (uint64_t)(took * 10);
    for (uint64_t i = 0; i < tenths && i < 36000; i++) printf("%s%" PRIu32, i ? "," : "", longest[i]);
    printf("]}\n");
    nbd_close(nbd);
    return 0;
}
