/* A light load generator for HTTP/1.1 and RESP: one thread, epoll, prepared requests, keep-alive.
 *
 *     file of requests --> N connections, one request in flight on each --> statuses, latencies --> one line of JSON
 *     [u32 length][bytes] ...                    again and again for S seconds, or each request once (S = 0)
 *
 * cc -O2 -o load load.c && ./load PORT CONNECTIONS SECONDS http|resp FILE
 *
 * Each connection starts at another place in the list, so that the same request is seldom asked twice at a time.
 * `each_second` counts what was answered with 200 in each second since `began` (CLOCK_MONOTONIC), `slowest_ms` is the
 * longest of all answers in that second.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd;
    size_t request, sent;      /* the request in flight and how much of it is out */
    char *in;
    size_t have, room;         /* bytes of the answer so far */
    double began;
    int done;
} Connection;

static char *bytes;
static size_t *at, *length, requests;
static uint64_t statuses[600];
static float *latencies;
static size_t answered, latency_room;
static uint64_t *each_second;  /* answered with 200 */
static double *slowest_ms;
static size_t seconds_seen;
static int resp;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void read_requests(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) fail(path);
    bytes = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) fail("mmap");
    size_t room = 1024, place = 0;
    at = malloc(room * sizeof *at);
    length = malloc(room * sizeof *length);
    while (place + 4 <= (size_t)st.st_size) {
        uint32_t n;
        memcpy(&n, bytes + place, 4);
        if (requests == room) {
            room *= 2;
            at = realloc(at, room * sizeof *at);
            length = realloc(length, room * sizeof *length);
        }
        at[requests] = place + 4;
        length[requests++] = n;
        place += 4 + n;
    }
    if (!requests) { errno = EINVAL; fail("no requests"); }
}

/* Status of a whole answer at the front of the buffer, 0 if more must come; its length in *used. */
static int whole(Connection *c, size_t *used) {
    if (resp) {
        char *end = memmem(c->in, c->have, "\r\n", 2);
        if (!end) return 0;
        *used = end + 2 - c->in;
        return c->in[0] == '-' ? 500 : 200;
    }
    char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = end + 4 - c->in, body = 0;
    for (char *line = c->in; line < end;) {
        char *stop = memmem(line, end + 2 - line, "\r\n", 2);
        if (!strncasecmp(line, "content-length:", 15)) body = strtoul(line + 15, NULL, 10);
        line = stop + 2;
    }
    if (c->have < head + body) return 0;
    *used = head + body;
    return atoi(c->in + 9);
}

static void push_out(Connection *c) {
    while (c->sent < length[c->request]) {
        ssize_t n = send(c->fd, bytes + at[c->request] + c->sent, length[c->request] - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail("send");
        c->sent += n;
    }
}

static void note(int status, double took, size_t second) {
    statuses[status > 0 && status < 600 ? status : 0]++;
    if (second >= seconds_seen) {
        each_second = realloc(each_second, (second + 1) * sizeof *each_second);
        slowest_ms = realloc(slowest_ms, (second + 1) * sizeof *slowest_ms);
        for (; seconds_seen <= second; seconds_seen++) each_second[seconds_seen] = slowest_ms[seconds_seen] = 0;
    }
    each_second[second] += status == 200;
    if (took * 1e3 > slowest_ms[second]) slowest_ms[second] = took * 1e3;
    if (answered == latency_room) {
        latency_room = latency_room ? 2 * latency_room : 1 << 16;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
    }
    latencies[answered++] = took * 1e3;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS http|resp FILE\n");
        return 2;
    }
    int port = atoi(argv[1]), connections = atoi(argv[2]);
    double seconds = atof(argv[3]);
    resp = !strcmp(argv[4], "resp");
    read_requests(argv[5]);
    size_t next = 0; /* for "each once" */
    int poll = epoll_create1(0), running = 0;
    Connection *all = calloc(connections, sizeof *all);
    double start = now(), until = start + seconds;
    for (int i = 0; i < connections; i++) {
        Connection *c = &all[i];
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0) fail("connect");
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->room = 1 << 16;
        c->in = malloc(c->room);
        if (seconds > 0) c->request = (size_t)i * requests / connections;
        else if (next < requests) c->request = next++;
        else { c->done = 1; continue; }
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &e);
        running++;
        c->began = now();
        push_out(c);
    }
    struct epoll_event events[256];
    while (running > 0) {
        int n = epoll_wait(poll, events, 256, 60000);
        if (n == 0) { errno = ETIMEDOUT; fail("no answer"); }
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (c->done) continue;
            push_out(c);
            for (;;) {
                if (c->have == c->room) c->in = realloc(c->in, c->room *= 2);
                ssize_t got = recv(c->fd, c->in + c->have, c->room - c->have, 0);
                if (got < 0 && errno == EAGAIN) break;
                if (got <= 0) { if (!got) errno = ECONNRESET; fail("recv"); }
                c->have += got;
                size_t used;
                int status = whole(c, &used);
                if (!status) continue;
                double t = now();
                note(status, t - c->began, t - start);
                memmove(c->in, c->in + used, c->have -= used);
                if (seconds > 0 ? t >= until : next >= requests) { c->done = 1; running--; break; }
                c->request = seconds > 0 ? (c->request + 1) % requests : next++;
                c->sent = 0;
                c->began = t;
                push_out(c);
            }
        }
    }
    double elapsed = now() - start;
    qsort(latencies, answered, sizeof *latencies, ascending);
    printf("{\"elapsed_s\":%.4f,\"answered\":%zu,\"per_second\":%.1f,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f,\"statuses\":{",
           elapsed, answered, answered / elapsed, latencies[answered / 2], latencies[answered * 99 / 100], latencies[answered - 1]);
    const char *comma = "";
    for (int s = 0; s < 600; s++)
        if (statuses[s]) { printf("%s\"%d\":%lu", comma, s, (unsigned long)statuses[s]); comma = ","; }
    printf("},\"began\":%.6f,\"each_second\":[", start);
    for (size_t i = 0; i < seconds_seen; i++) printf("%s%lu", i ? "," : "", (unsigned long)each_second[i]);
    printf("],\"slowest_ms\":[");
    for (size_t i = 0; i < seconds_seen; i++) printf("%s%.2f", i ? "," : "", slowest_ms[i]);
    printf("]}\n");
    return 0;
}
