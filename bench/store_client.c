/* A client of an object store that does as little as a client can: requests over connections that stay open,
 * one at a time on each, with signatures that were made before.
 *
 *   store_client HOST PORT CONNECTIONS SECONDS [RATE] < REQUESTS
 *
 * REQUESTS has a line for each: METHOD TARGET BYTES FROM. A PUT sends BYTES, a GET asks for BYTES from FROM on.
 * Each is made once, or with SECONDS above 0 all again and again for so long. With RATE a request begins when those
 * before it have moved their bytes at so many a second. Prints one line of JSON. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct request {
    char method[8];
    char *target;
    long bytes, from;
};

static struct request *requests;
static long count, next, done, moved, asked;
static double begun, until, pace;
static const char *host;
static int port;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    fprintf(stderr, "store_client: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int dial(void) {
    int one = 1, link = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1) die("bad host");
    if (connect(link, (struct sockaddr *)&at, sizeof at) != 0) die("no connection");
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return link;
}

static void give(int link, const char *data, long left) {
    while (left > 0) {
        ssize_t sent = send(link, data, (size_t)left, MSG_NOSIGNAL);
        if (sent <= 0) {
            /* A store that refuses says so before it has read everything. */
            char said[512] = "";
            if (recv(link, said, sizeof said - 1, 0) > 0) fprintf(stderr, "%s\n", said);
            die("cannot send");
        }
        data += sent;
        left -= sent;
    }
}

/* Waits until the requests before have had their time, and counts this one. */
static void wait_for_turn(long bytes) {
    pthread_mutex_lock(&lock);
    double at = begun + (double)asked / pace;
    asked += bytes;
    pthread_mutex_unlock(&lock);
    double left = (until > 0 && at > until ? until : at) - now();
    if (left > 0) usleep((useconds_t)(left * 1e6));
}

/* Reads an answer and returns the bytes of its body. `ends`: the store ends the connection then. */
static long answer(int link, const struct request *asked, char *buffer, long room, int *ends) {
    long held = 0, body = 0;
    char *end = NULL;
    while (end == NULL) {
        ssize_t got = recv(link, buffer + held, (size_t)(room - held - 1), 0);
        if (got <= 0) die("the store ended the connection");
        held += got;
        buffer[held] = 0;
        end = strstr(buffer, "\r\n\r\n");
    }
    int status = atoi(buffer + 9);
    if (status != 200 && status != 206) {
        fprintf(stderr, "%s %s: %.300s\n", asked->method, asked->target, buffer);
        exit(1);
    }
    for (char *line = buffer; line < end; line = strstr(line, "\r\n") + 2)
        if (strncasecmp(line, "content-length:", 15) == 0)
            body = atol(line + 15);
        else if (strncasecmp(line, "connection: close", 17) == 0)
            *ends = 1;
    long left = body - (held - (end + 4 - buffer));
    while (left > 0) {
        ssize_t got = recv(link, buffer, (size_t)(left < room ? left : room), 0);
        if (got <= 0) die("the answer is cut off");
        left -= got;
    }
    return body;
}

static void *work(void *seed) {
    long room = 1 << 20, largest = 1;
    char *buffer = malloc((size_t)room), head[4096];
    for (long at = 0; at < count; at++)
        if (requests[at].method[0] == 'P' && requests[at].bytes > largest) largest = requests[at].bytes;
    char *content = malloc((size_t)largest);
    unsigned long state = (unsigned long)seed * 2654435761u + 88172645463325252u;
    for (long at = 0; at + 8 <= largest; at += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(content + at, &state, 8);
    }
    int link = dial();
    for (;;) {
        pthread_mutex_lock(&lock);
        long at = next++;
        pthread_mutex_unlock(&lock);
        if (until <= 0 && at >= count) break;
        const struct request *ask = &requests[at % count];
        if (pace > 0) wait_for_turn(ask->bytes);
        if (until > 0 && now() >= until) break;
        int is_put = ask->method[0] == 'P';
        int len = is_put ? snprintf(head, sizeof head, "PUT %s HTTP/1.1\r\nHost: %s:%d\r\nContent-Length: %ld\r\n\r\n",
                                    ask->target, host, port, ask->bytes)
                         : snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: %s:%d\r\nRange: bytes=%ld-%ld\r\n\r\n",
                                    ask->target, host, port, ask->from, ask->from + ask->bytes - 1);
        give(link, head, len);
        if (is_put) give(link, content, ask->bytes);
        int ends = 0;
        long body = answer(link, ask, buffer, room, &ends);
        if (ends) {
            close(link);
            link = dial();
        }
        pthread_mutex_lock(&lock);
        done++;
        moved += is_put ? ask->bytes : body;
        pthread_mutex_unlock(&lock);
    }
    close(link);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) die("HOST PORT CONNECTIONS SECONDS [RATE]");
    host = argv[1], port = atoi(argv[2]);
    long threads = atol(argv[3]), room = 0;
    double seconds = atof(argv[4]);
    pace = argc == 6 ? atof(argv[5]) : 0;
    if (argc == 6 && pace <= 0) die("RATE is a number of bytes a second");
    char method[8], target[2048];
    long bytes, from;
    while (scanf("%7s %2047s %ld %ld", method, target, &bytes, &from) == 4) {
        if (count == room) {
            room = room ? 2 * room : 1024;
            requests = realloc(requests, (size_t)room * sizeof *requests);
        }
        struct request *ask = &requests[count++];
        strcpy(ask->method, method);
        ask->target = strdup(target), ask->bytes = bytes, ask->from = from;
    }
    if (count == 0) die("no requests");
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    begun = now();
    until = seconds > 0 ? begun + seconds : 0;
    for (long at = 0; at < threads; at++) pthread_create(&all[at], NULL, work, (void *)(at + 1));
    for (long at = 0; at < threads; at++) pthread_join(all[at], NULL);
    printf("{\"requests\":%ld,\"bytes\":%ld,\"seconds\":%.6f}\n", done, moved, now() - begun);
    return 0;
}
